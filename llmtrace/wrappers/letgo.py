"""How does a stream that is let go end its row, even from inside the garbage collector?

The collector runs anywhere, also in a thread that holds a lock of an exporter or of the
application's tracer: who takes that lock again waits for ever. So the row is made at once, and
handed on by a thread of its own.
"""

from __future__ import annotations

import _thread
import gc
import os
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from llmtrace.record import Recording
from llmtrace.rows import Row

_waiting: deque[tuple[Callable[[Row], None], Row]] = deque()
# What waited in the parent is the parent's to hand on.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_waiting.clear)
_collector = 0  # the thread that collects garbage right now


def _watch(phase: str, _: Mapping[str, Any]) -> None:
    global _collector
    _collector = _thread.get_ident() if phase == "start" else 0


def prepare() -> None:
    """Watch the collector from here on, so that what it lets go is known from what code does."""
    if _watch not in gc.callbacks:
        gc.callbacks.append(_watch)


def abandon(recording: Recording) -> None:
    """End a stream that the consumer closed, broke out of, or let go, wherever that happens."""
    if _collector == 0 or _collector != _thread.get_ident():
        recording.abandoned()
        return
    recording.abandoned(later=_elsewhere)


def closed(recording: Recording) -> None:
    """Note that the answer's connection was closed: by the consumer, if nobody is reading."""
    if recording.open and not recording.reading:
        abandon(recording)


def _elsewhere(row: Row, emit: Callable[[Row], None]) -> None:
    _waiting.append((emit, row))
    if len(_waiting) == 1:
        try:
            _thread.start_new_thread(_hand_on, ())
        except RuntimeError:  # out of threads, or the interpreter is going down
            _waiting.clear()
            raise


def _hand_on() -> None:
    while _waiting:
        try:
            emit, row = _waiting.popleft()
        except IndexError:  # another thread was faster
            return
        emit(row)
