"""How is reading a stream timed, chunk by chunk, without touching what is read?

Two readers, sync and async, that stand where the stream's own iterator stood. Each read is a pair
of boundaries: before it the consumer held the stream, during it the consumer waited.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, Final

from llmtrace.core.failopen import internal_error
from llmtrace.core.recording import GAP_BOUNDS_NS, HIDDEN, NOTHING, Recording
from llmtrace.instrumentation.streams.cancellation import cancelled
from llmtrace.instrumentation.streams.finalize import StreamFinalizer

# Looks at one chunk, notes on the recording what it tells, returns its kind.
Classify = Callable[[Recording, Any], int]

# The bucket of a gap lies between two of these, and the upper one belongs to it.
_EDGES: Final = (-(1 << 62), *GAP_BOUNDS_NS, 1 << 62)


def only_usage(chunk: Any) -> bool:
    """Say whether a chunk is the one that only llmtrace asked for."""
    return not getattr(chunk, "choices", None) and getattr(chunk, "usage", None) is not None


def timed_reads(
    recording: Recording, read: Callable[[], Any], classify: Classify
) -> Generator[Any, None, None]:
    """Yield what `read` returns until it raises `StopIteration`, timing every read."""
    # An argument, and not made inside: the frame of a generator nobody starts never runs.
    return _reads(recording, read, classify, StreamFinalizer(recording))


def atimed_reads(
    recording: Recording, read: Callable[[], Awaitable[Any]], classify: Classify
) -> AsyncGenerator[Any, None]:
    """Do the same for `read` to be awaited, until it raises `StopAsyncIteration`."""
    return _areads(recording, read, classify, StreamFinalizer(recording))


def _reads(
    recording: Recording, read: Callable[[], Any], classify: Classify, _let_go: StreamFinalizer
) -> Generator[Any, None, None]:
    # `Recording.switch_interval` and `add_content_chunk` are written out in line here and in
    # `_areads`, because they run for every chunk: see `make bench`.
    clock, firsts, counts = recording.clock, recording.firsts, recording.gap_counts
    bucket = low = high = 0
    while True:
        try:
            recording.wait_started = asked = clock()
        except Exception as error:  # noqa: BLE001 - the stream goes on untimed
            internal_error("record", error)
            asked = recording.mark
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
            recording.waited = waited = recording.waited + now - asked
            kind = classify(recording, chunk)
            if kind > NOTHING and firsts[kind] is not None:
                gap = waited - recording.waited_at_content
                if not low < gap <= high:  # most gaps are much like the one before
                    bucket = bisect_left(GAP_BOUNDS_NS, gap)
                    low, high = _EDGES[bucket : bucket + 2]
                counts[bucket] += 1
                if gap > recording.max_gap:  # noqa: PLR1730 - a call to max() costs more
                    recording.max_gap = gap
                recording.waited_at_content = waited
                recording.last_content = now
            elif kind == HIDDEN:
                continue
            else:
                recording.event(kind)
        except Exception as error:  # noqa: BLE001
            internal_error("record", error)
            if recording.usage_hidden and only_usage(chunk):
                continue
        yield chunk


async def _areads(
    recording: Recording,
    read: Callable[[], Awaitable[Any]],
    classify: Classify,
    _let_go: StreamFinalizer,
) -> AsyncGenerator[Any, None]:
    clock, firsts, counts = recording.clock, recording.firsts, recording.gap_counts
    bucket = low = high = 0
    while True:
        try:
            recording.wait_started = asked = clock()
        except Exception as error:  # noqa: BLE001 - the stream goes on untimed
            internal_error("record", error)
            asked = recording.mark
        try:
            chunk = await read()
        except StopAsyncIteration:
            recording.exhausted()
            return
        except asyncio.CancelledError as error:
            cancelled(recording, error)
            raise
        except BaseException as error:
            recording.failed(error)
            raise
        try:
            recording.mark = now = clock()
            recording.wait_started = 0
            recording.waited = waited = recording.waited + now - asked
            kind = classify(recording, chunk)
            if kind > NOTHING and firsts[kind] is not None:
                gap = waited - recording.waited_at_content
                if not low < gap <= high:  # most gaps are much like the one before
                    bucket = bisect_left(GAP_BOUNDS_NS, gap)
                    low, high = _EDGES[bucket : bucket + 2]
                counts[bucket] += 1
                if gap > recording.max_gap:  # noqa: PLR1730 - a call to max() costs more
                    recording.max_gap = gap
                recording.waited_at_content = waited
                recording.last_content = now
            elif kind == HIDDEN:
                continue
            else:
                recording.event(kind)
        except Exception as error:  # noqa: BLE001
            internal_error("record", error)
            if recording.usage_hidden and only_usage(chunk):
                continue
        yield chunk
