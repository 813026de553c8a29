"""A starved event loop before a server that never changes: does triage blame the client?"""

from __future__ import annotations

import asyncio
import sys
import threading
from dataclasses import replace

import pytest

from llmtrace.core.row import Row
from llmtrace.dataset.case import Case, Window, no_signals
from llmtrace.dataset.columns import from_rows
from llmtrace.testing import capture
from llmtrace.triage.pipeline import Settings, triage
from tests.instrumentation import answers
from tests.instrumentation.reading import client, method
from tests.support.sse_server import serve

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO is read on Linux only")

REQUESTS, AT_ONCE = 120, 6
BUSY_S, FREE_S = 0.4, 0.05
START, MINUTES = 1_790_000_000, 10.0


@pytest.mark.timing
def test_a_starved_loop_is_the_clients_own():
    """Connecting and sending take longer as well, and they are not the network's."""
    pytest.importorskip("openai")
    script = answers.chat(first_s=0.1, gap_s=0.005, metrics=None)
    with serve(script) as server, capture(instrument=["openai"]) as rows:
        asyncio.run(ask(server))
        quiet = len(rows)
        asyncio.run(starved(server))
        before, after = list(rows)[:quiet], list(rows)[quiet:]
    at = START + 60 * MINUTES
    case = Case(rows=from_rows([*spread(before, START), *spread(after, at)]), signals=no_signals())

    windows = Window(START, at), Window(at, at + 60 * MINUTES)
    found = triage(case, Settings(before=windows[0], after=windows[1], metric="ttft"))

    assert len(before) == len(after) == REQUESTS
    assert found.verdict == "regression", found.reason
    assert found.causes[0].id == "busy_client"
    assert found.causes[0].status in ("likely", "confirmed")


async def ask(server) -> None:
    """Read so many streams, a few at once."""
    made = client("async", server)
    create, arguments = method(made)
    free = asyncio.Semaphore(AT_ONCE)

    async def one() -> None:
        async with free:
            async for _ in await create(stream=True, **arguments):
                pass

    await asyncio.gather(*(one() for _ in range(REQUESTS)))
    await made.close()


async def starved(server) -> None:
    """Ask, with another task on the loop that keeps it busy."""
    asked = asyncio.ensure_future(ask(server))
    while not asked.done():
        threading.Event().wait(BUSY_S)  # what must not be done on a loop, and is
        await asyncio.wait({asked}, timeout=FREE_S)
    await asked


def spread(rows: list[Row], start: float) -> list[Row]:
    """Return rows as if they had come evenly over the window, not within seconds."""
    apart_ns = round(60e9 * MINUTES / len(rows))
    return [replace(row, start=round(start * 1e9) + n * apart_ns) for n, row in enumerate(rows)]
