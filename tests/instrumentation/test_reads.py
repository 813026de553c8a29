"""The in-line gap counting of `timed_reads` agrees with `Recording.add_content_chunk`."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.core.recording import Recording
from llmtrace.core.stream_clock import GAP_BOUNDS_NS, TEXT
from llmtrace.instrumentation.streams.timed_reads import atimed_reads, timed_reads

# Waits around one bound, one after the other, and those that are far from any.
AROUND = st.builds(
    lambda bound, offs: [bound + off for off in offs],
    st.sampled_from(GAP_BOUNDS_NS),
    st.lists(st.integers(-1, 1), min_size=2, max_size=6),
)
FAR = st.lists(st.integers(0, 2 * GAP_BOUNDS_NS[-1]), max_size=3)
WAITS = st.lists(AROUND | FAR, max_size=8).map(lambda runs: [one for run in runs for one in run])


def counted(waits: list[int], how: str) -> Recording:
    """Read a stream whose first chunk comes at once and the others after such waits."""
    now = 1

    def clock() -> int:
        return now

    known = {"service": "s", "request_id": "r", "trace_id": "1" * 32, "span_id": "2" * 16}
    recording = Recording(lambda *_: None, known, clock=clock)
    recording.opened()
    left = iter([0, *waits])

    def read() -> str:
        nonlocal now
        now += next(left)
        return "chunk"

    def classify(_: Recording, _chunk: Any) -> int:
        return TEXT

    async def aread() -> str:
        try:
            return read()
        except StopIteration:
            raise StopAsyncIteration from None

    async def all_of_it() -> None:
        async for _ in atimed_reads(recording, aread, classify):
            pass

    if how == "sync":
        for _ in timed_reads(recording, read, classify):
            pass
    else:
        asyncio.run(all_of_it())
    return recording


@pytest.mark.parametrize("how", ["sync", "async"])
@given(waits=WAITS)
def test_every_wait_is_counted_in_its_bucket(how: str, waits: list[int]) -> None:
    """Whether a wait is like the one before or not; a bound belongs to the bucket below it."""
    recording = counted(waits, how)

    expected = Counter(bisect_left(GAP_BOUNDS_NS, wait) for wait in waits)
    found = {bucket: count for bucket, count in enumerate(recording.gap_counts) if count}
    assert found == expected
    assert recording.max_gap == max(waits, default=-1)
