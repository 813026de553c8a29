"""Twenty-four quick requests and a slow one: what docs/start/slow-request.md finds again.

It sends its rows to OTEL_EXPORTER_OTLP_ENDPOINT, and prints the id of the slow one.
"""

from __future__ import annotations

import asyncio
import os

import openai
from engine import endpoint

import llmtrace

QUICK = 24
AT_ONCE = 6


@llmtrace.trace(route="chat")
async def ask(client: openai.AsyncOpenAI, model: str, words: int) -> str | None:
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Sum up: " + "it rains. " * words}],
        max_tokens=10,
        stream=True,
    )
    name = None
    async for chunk in stream:
        name = chunk.id
    return name


async def main(url: str, model: str) -> None:
    key = os.environ.get("OPENAI_API_KEY", "none")
    async with openai.AsyncOpenAI(base_url=url, api_key=key) as client:
        for _ in range(QUICK // AT_ONCE):
            await asyncio.gather(*(ask(client, model, 20) for _ in range(AT_ONCE)))
        print("the slow one is", await ask(client, model, 6_000))


llmtrace.init("slow-request")
with endpoint() as (url, model):
    asyncio.run(main(url, model))
llmtrace.shutdown()
