"""Concurrent async streams, a time-out, and what their rows say."""

from __future__ import annotations

import asyncio
import os

import openai
from engine import endpoint

import llmtrace
from llmtrace.testing import capture


async def ask(client: openai.AsyncOpenAI, model: str, tokens: int) -> None:
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Count."}],
        max_tokens=tokens,
        stream=True,
    )
    async for _ in stream:
        pass


async def main(url: str, model: str) -> None:
    key = os.environ.get("OPENAI_API_KEY", "none")
    async with openai.AsyncOpenAI(base_url=url, api_key=key) as client:
        await asyncio.gather(*(ask(client, model, 30) for _ in range(4)))
        try:
            async with asyncio.timeout(0.2):
                await ask(client, model, 500)
        except TimeoutError:
            print("gave up after 0.2 s")


with endpoint() as (url, model), capture(service="async-chat") as rows:
    asyncio.run(main(url, model))

for row in rows:
    stages = ", ".join(f"{s} {ns / 1e6:.0f}" for s, ns in row.stages if ns)
    print(f"{row.outcome:8} {row.e2e_s * 1000:6.0f} ms = {stages}", end="")
    rest = row.stages.unattributed
    print(f", unattributed {rest / 1e6:.0f}" if rest else "")

assert all(row.stages.total == row.e2e_ns for row in rows)
assert llmtrace.internal_errors() == {}
