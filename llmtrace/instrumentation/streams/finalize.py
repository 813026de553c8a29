"""Finalize the row of a stream that is released, even from inside the garbage collector.

The collector may run in a thread that holds a lock of an exporter or of the application's tracer:
taking that lock again would wait forever. So the row is made at once, and a separate thread passes
it on.
"""

from __future__ import annotations

import _thread
import gc
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from llmtrace.core.failopen import fails_open
from llmtrace.core.recording import Defer, Recording
from llmtrace.core.row import Row

_waiting: deque[tuple[Callable[[Row], None], Row]] = deque()
_passing: set[int] = set()  # ids of the threads that are passing rows on
# Rows that waited in the parent process are passed on by the parent.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_waiting.clear)
    os.register_at_fork(after_in_child=_passing.clear)
_SOON_S: Final = 0.001
_collector = 0  # the thread that collects garbage right now


def _watch(phase: str, _: Mapping[str, Any]) -> None:
    global _collector
    _collector = _thread.get_ident() if phase == "start" else 0


def prepare() -> None:
    """Watch the garbage collector, so that its finalizations differ from the program's own."""
    if _watch not in gc.callbacks:
        gc.callbacks.append(_watch)


@fails_open("record")
def abandon(recording: Recording, error_type: str | None = None, *, late: bool = False) -> None:
    """End a stream that the consumer closed, left or released, wherever that happens.

    Args:
        recording: of the request.
        error_type: of the row, if that was before the stream's end.
        late: it was released some time ago, as always where the garbage collector finds it.
    """
    deferred = defer()
    end = partial(recording.abandoned, deferred, error_type)
    if late or deferred is not None:
        recording.ends_unseen(end)
    else:
        end()


def defer() -> Defer | None:
    """Return the function that defers rows while the garbage collector runs, else `None`."""
    return _elsewhere if _collector and _collector == _thread.get_ident() else None


class StreamFinalizer:
    """Ends the row of a stream that can no longer be read: it is kept where the stream is.

    In the frame of `timed_reads`, however that ends: closed, garbage collected, never read from,
    or an async generator whose loop is gone. A row that has ended already stays as it is.
    """

    __slots__ = ("_late", "_recording")

    def __init__(self, recording: Recording, *, late: bool = False) -> None:
        self._recording, self._late = recording, late
        prepare()

    def __del__(self) -> None:
        if not self._recording.ended:
            abandon(self._recording, late=self._late)


def closed(recording: Recording, error_type: str | None = None) -> None:
    """Note that the response's connection was closed: by the consumer, if no read is under way."""
    if recording.open and not recording.reading:
        abandon(recording, error_type)


def _elsewhere(row: Row, emit: Callable[[Row], None]) -> None:
    _waiting.append((emit, row))
    if len(_waiting) == 1:
        try:
            _thread.start_new_thread(_pass_on, ())
        except RuntimeError:  # out of threads, or the interpreter is going down
            _waiting.clear()
            raise


def _pass_on() -> None:
    thread = _thread.get_ident()
    _passing.add(thread)  # before taking a row, so that it is always in one place or the other
    try:
        while _waiting:
            try:
                emit, row = _waiting.popleft()
            except IndexError:  # another thread was faster
                return
            emit(row)
    finally:
        _passing.discard(thread)


def flush_deferred(timeout_s: float) -> bool:
    """Pass on all deferred rows. Return whether that was done within so many seconds."""
    _pass_on()
    give_up = None
    while _passing - {_thread.get_ident()}:
        now = time.monotonic()
        give_up = now + timeout_s if give_up is None else give_up
        if now >= give_up:
            return False
        time.sleep(_SOON_S)
    return True
