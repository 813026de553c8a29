"""How does a stream that is let go end its row, even from inside the garbage collector?

The collector runs anywhere, also in a thread that holds a lock of an exporter or of the
application's tracer: who takes that lock again waits for ever. So the row is made at once, and
handed on by a thread of its own.
"""

from __future__ import annotations

import _thread
import gc
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from llmtrace.core.failopen import fails_open
from llmtrace.core.recording import Defer, Recording
from llmtrace.core.row import Row

_waiting: deque[tuple[Callable[[Row], None], Row]] = deque()
_handing: set[int] = set()  # the threads that hand rows on right now
# What waited in the parent is the parent's to hand on.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_waiting.clear)
    os.register_at_fork(after_in_child=_handing.clear)
_SOON_S: Final = 0.001
_collector = 0  # the thread that collects garbage right now


def _watch(phase: str, _: Mapping[str, Any]) -> None:
    global _collector
    _collector = _thread.get_ident() if phase == "start" else 0


def prepare() -> None:
    """Watch the collector from here on, so that what it lets go is known from what code does."""
    if _watch not in gc.callbacks:
        gc.callbacks.append(_watch)


@fails_open("record")
def abandon(recording: Recording, error_type: str | None = None) -> None:
    """End a stream that the consumer closed, broke out of, or let go, wherever that happens.

    Args:
        recording: of the request.
        error_type: what to call it, if it did so before the end.
    """
    if _collector == 0 or _collector != _thread.get_ident():
        recording.abandoned(error_type=error_type)
        return
    if not recording.reading:
        # Let go some time ago, and only found now: what is known is when it was last read.
        last = recording.mark
        recording.clock = lambda: last
    recording.abandoned(defer=_elsewhere, error_type=error_type)


def defer() -> Defer | None:
    """Return what hands a row on elsewhere, if this is the garbage collector's doing."""
    return _elsewhere if _collector and _collector == _thread.get_ident() else None


class StreamFinalizer:
    """Lives where a stream does: when it goes, nobody will read on, and the row ends.

    In a reader's frame, however that goes: closed, garbage collected, never read from, or an async
    generator whose loop is gone. A row that has ended already stays as it is.
    """

    __slots__ = ("_recording",)

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        prepare()

    def __del__(self) -> None:
        if not self._recording.ended:
            abandon(self._recording)


def closed(recording: Recording, error_type: str | None = None) -> None:
    """Note that the answer's connection was closed: by the consumer, if nobody is reading.

    Args:
        recording: of the request.
        error_type: as of `abandon`.
    """
    if recording.open and not recording.reading:
        abandon(recording, error_type)


def _elsewhere(row: Row, emit: Callable[[Row], None]) -> None:
    _waiting.append((emit, row))
    if len(_waiting) == 1:
        try:
            _thread.start_new_thread(_hand_on, ())
        except RuntimeError:  # out of threads, or the interpreter is going down
            _waiting.clear()
            raise


def _hand_on() -> None:
    thread = _thread.get_ident()
    _handing.add(thread)  # before taking a row: it is always seen in one place or the other
    try:
        while _waiting:
            try:
                emit, row = _waiting.popleft()
            except IndexError:  # another thread was faster
                return
            emit(row)
    finally:
        _handing.discard(thread)


def settle(timeout_s: float) -> bool:
    """Hand on what still waits. Return whether all of it is handed on within so many seconds."""
    _hand_on()
    give_up = None
    while _handing - {_thread.get_ident()}:
        now = time.monotonic()
        give_up = now + timeout_s if give_up is None else give_up
        if now >= give_up:
            return False
        time.sleep(_SOON_S)
    return True
