"""The in-line gap counting of `timed_reads` counts every wait, and keeps the longest over time."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.core.gap_slots import MAX_SLOTS, GapSlots, read_slots, written
from llmtrace.core.recording import Recording
from llmtrace.core.request_clock import GAP_BOUNDS_NS, REASONING, TEXT
from llmtrace.instrumentation.streams.chunk_timing import atimed_reads, timed_reads

# Waits around one bound, one after the other, and those that are far from any.
AROUND = st.builds(
    lambda bound, offs: [bound + off for off in offs],
    st.sampled_from(GAP_BOUNDS_NS),
    st.lists(st.integers(-1, 1), min_size=2, max_size=6),
)
FAR = st.lists(st.integers(0, 2 * GAP_BOUNDS_NS[-1]), max_size=3)
WAITS = st.lists(AROUND | FAR, max_size=8).map(lambda runs: [one for run in runs for one in run])


def counted(waits: list[int], how: str, other: int = 0) -> Recording:
    """Read a stream whose first chunk comes at once and the others after such waits.

    Args:
        waits: of each chunk after the first.
        how: `sync` or `async`.
        other: the number of the chunk that is the first of another kind.
    """
    now = 1

    def clock() -> int:
        return now

    known = {"service": "s", "request_id": "r", "trace_id": "1" * 32, "span_id": "2" * 16}
    recording = Recording(lambda *_: None, known, clock=clock)
    recording.opened()
    left = iter([0, *waits])
    kinds = iter([TEXT] * other + [REASONING] * bool(other) + [TEXT] * len(waits) + [TEXT])

    def read() -> str:
        nonlocal now
        now += next(left)
        return "chunk"

    def classify(_: Recording, _chunk: Any) -> int:
        return next(kinds)

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


@pytest.mark.parametrize("how", ["sync", "async"])
@given(waits=WAITS | st.lists(st.integers(0, 10**9), max_size=100), other=st.integers(0, 5))
def test_of_every_slot_the_longest_wait_is_kept(how: str, waits: list[int], other: int) -> None:
    """However often the slots have doubled, and whichever path a chunk took."""
    recording = counted(waits, how, other)
    slots, slot_ns = recording.gap_slots, recording.slot_ns

    expected: dict[int, int] = {}
    for wait, ended in zip(waits, accumulate(waits), strict=True):
        expected[ended // slot_ns] = max(wait, expected.get(ended // slot_ns, -1))
    assert {slot: gap for slot, gap in enumerate(slots) if gap >= 0} == expected
    assert len(slots) <= MAX_SLOTS
    assert not waits or len(slots) == 1 + sum(waits) // slot_ns
    if slots:
        kept = tuple(None if gap < 0 else gap // 1000 * 1000 for gap in slots)
        found = read_slots(written(slot_ns, slots))
        assert found == GapSlots(slot_ns // 1000 * 1000, kept)


@pytest.mark.parametrize(
    "text", [None, "", "5", "5:", "0: 1", "5: x", "5: 1  2", "5: 1\n", "5: ٣", "5:" + " 1" * 33]
)
def test_what_is_not_written_by_llmtrace_is_no_gaps(text: str | None) -> None:
    """A span may hold anything under this name."""
    assert read_slots(text) is None
