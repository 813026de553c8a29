"""An application that is asked fourteen times a second, however long its answers take.

    python shop.py http://127.0.0.1:8000/v1 MODEL

Its spans go where OTEL_EXPORTER_OTLP_TRACES_ENDPOINT says; SIGTERM ends it, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import Any, Final

import openai

import llmtrace

PER_SECOND: Final = 14.0


@llmtrace.trace(route="chat")
async def answer(client: openai.AsyncOpenAI, model: str, number: int) -> Any:
    """Ask for one answer, as a stream."""
    return await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"Number {number}. " * (5 + number % 20)}],
        max_tokens=8,
        stream=True,
    )


async def read(client: openai.AsyncOpenAI, model: str, number: int) -> None:
    """Read an answer to its end."""
    # On a busy machine a connection may be kept just longer than the engine keeps it.
    with contextlib.suppress(openai.APIError):
        async with await answer(client, model, number) as stream:
            async for _ in stream:
                pass


async def work(url: str, model: str) -> None:
    """Be asked until SIGTERM, and wait for the answers."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    number = 0
    async with (
        openai.AsyncOpenAI(base_url=url, api_key="none") as client,
        asyncio.TaskGroup() as group,
    ):
        while not over.is_set():
            group.create_task(read(client, model, number))
            number += 1
            await asyncio.sleep(1 / PER_SECOND)


if __name__ == "__main__":
    llmtrace.init("shop", exporters=["otlp"])
    asyncio.run(work(sys.argv[1], sys.argv[2]))
    llmtrace.shutdown()
