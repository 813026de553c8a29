"""An agent's turn with three tools of 1.5 s: one after the other, then together."""

from __future__ import annotations

import asyncio
import os

import openai
from engine import endpoint

import llmtrace
from llmtrace.exporters.console import waterfall
from llmtrace.testing import capture

TOOL_S = 1.5


@llmtrace.tool
async def search(query: str) -> str:
    await asyncio.sleep(TOOL_S)
    return f"three pages about {query}"


@llmtrace.tool
async def weather(city: str) -> str:
    await asyncio.sleep(TOOL_S)
    return f"rain in {city}"


@llmtrace.tool
async def news(city: str) -> str:
    await asyncio.sleep(TOOL_S)
    return f"nothing new in {city}"


async def answer(client: openai.AsyncOpenAI, model: str, *, together: bool) -> None:
    async def ask(content: str) -> None:
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": content}],
            max_tokens=20,
            stream=True,
        )
        async for _ in stream:
            pass

    async with llmtrace.turn("together" if together else "in turn", session="s-1"):
        await ask("What should I do in Rome today?")
        if together:
            found = await asyncio.gather(search("Rome"), weather("Rome"), news("Rome"))
        else:
            found = [await search("Rome"), await weather("Rome"), await news("Rome")]
        await ask("; ".join(found))


async def main(url: str, model: str) -> None:
    key = os.environ.get("OPENAI_API_KEY", "none")
    async with openai.AsyncOpenAI(base_url=url, api_key=key) as client:
        await answer(client, model, together=False)
        await answer(client, model, together=True)


with endpoint() as (url, model), capture(service="agent") as rows:
    asyncio.run(main(url, model))

in_turn, together = (row for row in rows if row.is_turn)
for turn in (in_turn, together):
    print(waterfall(turn, 100), end="\n\n")
saved = in_turn.e2e_s - together.e2e_s
print(f"run together, the same turn took {saved:.1f} s less")

assert in_turn.tool_serial_loss_s > 1.9 * TOOL_S
assert together.tool_wall_s < in_turn.tool_wall_s
assert llmtrace.internal_errors() == {}
