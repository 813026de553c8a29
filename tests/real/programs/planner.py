"""An application of agents, which shows its metrics on a page of its own.

    python planner.py http://127.0.0.1:8000/v1 MODEL PORT

Turns, tools, tenants and the gaps between chunks are exposed there alone; its spans go where
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT says. SIGTERM ends it, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import Any, Final

import openai

import llmtrace
from llmtrace.budget import DEFAULT

PAUSE_S: Final = 0.15
_STUCK_EVERY: Final = 5


class Broken:
    """A sink of the application's own that cannot keep anything: llmtrace has to count that."""

    def write(self, row: Any) -> None:
        """Fail."""
        raise OSError("disk full")


@llmtrace.tool
async def search(words: str) -> str:
    """Find something."""
    await asyncio.sleep(0.04)
    return words.upper()


@llmtrace.tool
async def weather(place: str, day: int) -> str:
    """Look out of the window; now and then it is stuck."""
    await asyncio.sleep(0.02)
    if day % _STUCK_EVERY == 0:
        raise LookupError(place)
    return "rain"


@llmtrace.trace(route="plan")
async def think(client: openai.AsyncOpenAI, model: str, tenant: str) -> Any:
    """Ask what to do, as a stream."""
    llmtrace.annotate(tenant=tenant)
    return await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"A day in Rome for {tenant}."}],
        max_tokens=8,
        stream=True,
    )


async def plan(client: openai.AsyncOpenAI, model: str, number: int) -> None:
    """Plan one day: think, then look up two things that have nothing to do with each other."""
    with llmtrace.turn("planner"):
        # On a busy machine a connection may be kept just longer than the engine keeps it.
        with contextlib.suppress(openai.APIError):
            async with await think(client, model, f"tenant-{number % 2}") as stream:
                async for _ in stream:
                    pass
        await search("museums")
        with contextlib.suppress(LookupError):
            await weather("Rome", number)


async def work(url: str, model: str) -> None:
    """Plan days until SIGTERM."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    number = 0
    async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
        while not over.is_set():
            number += 1
            await plan(client, model, number)
            await asyncio.sleep(PAUSE_S)


if __name__ == "__main__":
    llmtrace.init(
        "planner",
        exporters=["otlp", f"prometheus:{sys.argv[3]}", Broken()],
        budget=DEFAULT,
        region="eu-west",
        tenant_metrics=True,
    )
    asyncio.run(work(sys.argv[1], sys.argv[2]))
    llmtrace.shutdown()
