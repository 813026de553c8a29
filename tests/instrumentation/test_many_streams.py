"""A thousand concurrent streams leave a row each, and nothing else.

Ten thousand, and what they cost: `make bench-streams`.
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections import Counter

import pytest

from llmtrace.core.recording import Recording
from llmtrace.core.row import Row
from llmtrace.testing import capture

pytest.importorskip("openai")

from tests.bench.many_streams import Streams

STREAMS = 1000
WATCHED = 250  # of whose memory each piece is watched, which takes ten times as long
# A recording is some kilobytes: what is still there after all rows are made is none of them.
LEFT_BYTES_A_STREAM = 300


async def one_round(number: int) -> None:
    """Open so many streams, cancel every other one, and end the rest."""
    streams = Streams(gap_s=60)
    await streams.open(number)
    await asyncio.sleep(0)
    await streams.cancel(number // 2)
    await streams.end(number - number // 2)
    await streams.http.aclose()
    await asyncio.sleep(0)


def recordings() -> int:
    """Count the recordings that are alive."""
    for _ in range(3):  # what has a finalizer goes only after it has run
        gc.collect()
    # Not `isinstance`: that would wake up modules that are loaded when they are looked at.
    return sum(issubclass(type(one), Recording) for one in gc.get_objects())


def left_behind(rows: list[Row]) -> int:
    """Return how many bytes there are more after a round, whose rows are no longer referenced."""
    tracemalloc.start()
    asyncio.run(one_round(WATCHED))
    rows.clear()
    recordings()
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return left


def test_a_thousand_streams_leave_a_row_each_and_nothing_else():
    """Half are cancelled, half end: no recording, task or memory stays."""
    asyncio.run(one_round(50))  # what is made once, is made here
    alive = recordings()
    with capture(instrument=["openai"]) as rows:
        asyncio.run(one_round(STREAMS))
        outcomes = Counter(row.outcome for row in rows)
        sound = all(row.stages.total == row.e2e_ns for row in rows)
        ids = {row.request_id for row in rows}
        rows.clear()

        assert recordings() == alive
        assert outcomes == {"cancelled": STREAMS // 2, "success": STREAMS // 2}
        assert sound
        assert len(ids) == STREAMS
        # A leak is there every time; what other tests' threads do meanwhile is not.
        assert any(left_behind(rows) < LEFT_BYTES_A_STREAM * WATCHED for _ in range(3))
