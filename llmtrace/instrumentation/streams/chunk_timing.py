"""Time the reads of a stream, chunk by chunk, without touching the chunks.

Two generators, sync and async, take the place of the stream's own iterator. The time during a read
is a wait, the time between two reads is consumer time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, Final

from llmtrace.core.arrival import LOOK_NS
from llmtrace.core.failopen import internal_error
from llmtrace.core.recording import Recording
from llmtrace.core.request_clock import GAP_BOUNDS_NS, HIDDEN, NOTHING
from llmtrace.instrumentation.llm_sdks.attribute_view import viewed
from llmtrace.instrumentation.streams import cancellation
from llmtrace.instrumentation.streams.finalize import StreamFinalizer

# Looks at one chunk, notes on the recording what it reports, returns its kind.
Classify = Callable[[Recording, Any], int]

# The bucket of a gap lies between two of these, and the upper one belongs to it.
_EDGES: Final = (-(1 << 62), *GAP_BOUNDS_NS, 1 << 62)


def only_usage(chunk: Any) -> bool:
    """Return whether a chunk is the usage chunk that only llmtrace requested."""
    chunk = viewed(chunk)
    return not getattr(chunk, "choices", None) and getattr(chunk, "usage", None) is not None


def timed_reads(
    recording: Recording, read: Callable[[], Any], classify: Classify
) -> Generator[Any, None, None]:
    """Yield what `read` returns until it raises `StopIteration`, timing every read."""
    # The finalizer is an argument, as the code of a generator that is never started never runs. It
    # is the first one, so that the row ends before what `read` reads from is closed.
    return _timed_reads(StreamFinalizer(recording), recording, read, classify)


def atimed_reads(
    recording: Recording, read: Callable[[], Awaitable[Any]], classify: Classify
) -> AsyncGenerator[Any, None]:
    """Yield what awaiting `read` returns until `StopAsyncIteration`, timing every read."""
    return _atimed_reads(StreamFinalizer(recording), recording, read, classify)


def _timed_reads(
    _finalizer: StreamFinalizer, recording: Recording, read: Callable[[], Any], classify: Classify
) -> Generator[Any, None, None]:
    # `Recording.switch_interval` and `add_content_chunk` are written out inline here and in
    # `_atimed_reads`, because they run for every chunk: see `make bench`.
    clock, firsts, counts = recording.clock, recording.firsts, recording.gap_counts
    slots = recording.gap_slots
    bucket = low = high = slot_end = 0
    while True:
        try:
            recording.wait_started = began = clock()
        except Exception as error:  # noqa: BLE001 - the stream goes on untimed
            internal_error("record", error)
            began = recording.mark
        try:
            chunk = read()
        except StopIteration:
            recording.exhausted()
            return
        except BaseException as error:
            recording.failed(error)
            raise
        try:
            recording.mark = now = clock()
            recording.wait_started = 0
            recording.waited = waited = recording.waited + now - began
            kind = classify(recording, chunk)
            if kind > NOTHING and firsts[kind] is not None:
                gap = waited - recording.waited_at_content
                if now >= slot_end:
                    slot_end, high = recording.next_slot(now), low
                if not low < gap <= high:  # most are like the one before, and not the longest
                    bucket = bisect_left(GAP_BOUNDS_NS, gap)
                    low, high = _EDGES[bucket : bucket + 2]
                    if gap > LOOK_NS and recording.arrival is not None:
                        high = min(high, recording.arrival.read(began, now))
                    longest = slots[-1]
                    if gap > longest:
                        slots[-1] = longest = gap
                    if longest < high:  # noqa: PLR1730 - a call to min() costs more
                        high = longest
                counts[bucket] += 1
                recording.waited_at_content = waited
                recording.last_content = now
            elif kind == HIDDEN:
                continue
            else:
                recording.read_began = began
                recording.event(kind)
                slot_end = 0  # it may have begun another slot
        except Exception as error:  # noqa: BLE001
            internal_error("record", error)
            if recording.usage_hidden and only_usage(chunk):
                continue
        yield chunk


async def _atimed_reads(
    _finalizer: StreamFinalizer,
    recording: Recording,
    read: Callable[[], Awaitable[Any]],
    classify: Classify,
) -> AsyncGenerator[Any, None]:
    clock, firsts, counts = recording.clock, recording.firsts, recording.gap_counts
    slots = recording.gap_slots
    bucket = low = high = slot_end = 0
    while True:
        try:
            recording.wait_started = began = clock()
        except Exception as error:  # noqa: BLE001 - the stream goes on untimed
            internal_error("record", error)
            began = recording.mark
        try:
            chunk = await read()
        except StopAsyncIteration:
            recording.exhausted()
            return
        except BaseException as error:
            cancellation.failed(recording, error)
            raise
        try:
            recording.mark = now = clock()
            recording.wait_started = 0
            recording.waited = waited = recording.waited + now - began
            kind = classify(recording, chunk)
            if kind > NOTHING and firsts[kind] is not None:
                gap = waited - recording.waited_at_content
                if now >= slot_end:
                    slot_end, high = recording.next_slot(now), low
                if not low < gap <= high:  # most are like the one before, and not the longest
                    bucket = bisect_left(GAP_BOUNDS_NS, gap)
                    low, high = _EDGES[bucket : bucket + 2]
                    if gap > LOOK_NS and recording.arrival is not None:
                        high = min(high, recording.arrival.read(began, now))
                    longest = slots[-1]
                    if gap > longest:
                        slots[-1] = longest = gap
                    if longest < high:  # noqa: PLR1730 - a call to min() costs more
                        high = longest
                counts[bucket] += 1
                recording.waited_at_content = waited
                recording.last_content = now
            elif kind == HIDDEN:
                continue
            else:
                recording.read_began = began
                recording.event(kind)
                slot_end = 0  # it may have begun another slot
        except Exception as error:  # noqa: BLE001
            internal_error("record", error)
            if recording.usage_hidden and only_usage(chunk):
                continue
        yield chunk
