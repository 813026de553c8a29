"""Users of an engine: a few requests a second, of which one in fifty is a long one.

OPENAI_BASE_URL and OTEL_EXPORTER_OTLP_ENDPOINT say where to; MODEL what the engine serves, if it
is not the simulated one. An argument is how many requests to make; without one it goes on.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from contextlib import suppress
from itertools import count

import openai

import llmtrace

MODEL = os.environ.get("MODEL", "llmtrace-sim")
PER_SECOND = 3
LONG = 50


@llmtrace.trace(route="chat")
async def ask(client: openai.AsyncOpenAI, words: int) -> None:
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Sum this up: " + "it rains. " * words}],
        max_tokens=random.randint(10, 80),
        stream=True,
    )
    async for _ in stream:
        pass


async def user(client: openai.AsyncOpenAI, words: int) -> None:
    with suppress(openai.OpenAIError):  # a request that fails is a row, and no reason to leave
        await ask(client, words)


async def main(most: int | None) -> None:
    async with openai.AsyncOpenAI() as client, asyncio.TaskGroup() as users:
        for number in count(1):
            if most is not None and number > most:
                return
            words = 3_000 if number % LONG == 0 else random.randint(10, 300)
            users.create_task(user(client, words))
            await asyncio.sleep(random.expovariate(PER_SECOND))


if __name__ == "__main__":
    llmtrace.init("shop")
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else None))
    llmtrace.shutdown()
