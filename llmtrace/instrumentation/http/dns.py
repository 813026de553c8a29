"""Time name resolution, which HTTP clients count into their connect.

While any client is instrumented, `socket.getaddrinfo` and asyncio's are timed for the request that
is connecting right now, and passed through untouched for all others.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from llmtrace.core.attempt_clock import LiveAttempt
from llmtrace.core.failopen import fails_open, internal_error
from llmtrace.core.request_clock import Clock
from llmtrace.runtime.runtime import current


def _connecting() -> tuple[LiveAttempt, Clock, int] | None:
    """Return the attempt that is connecting right now, its clock, and the time."""
    recording = current.get()
    if recording is None or not recording.on_the_wire or not recording.attempts:
        return None
    try:
        return recording.attempts[-1], recording.clock, recording.clock()
    except Exception as error:  # noqa: BLE001 - names are resolved anyway
        internal_error("dns", error)
        return None


@fails_open("dns")
def _resolved(attempt: LiveAttempt, clock: Clock, started: int) -> None:
    attempt.dns = (attempt.dns or 0) + clock() - started


def standard_loop() -> bool:
    """Return whether asyncio's own event loop runs here, or none: only there names are timed.

    Others, such as uvloop, resolve names and connect by code of their own.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return True
    return isinstance(loop, asyncio.base_events.BaseEventLoop)


_lock = threading.Lock()
_users = 0
_undo: Callable[[], None] | None = None


def install() -> Callable[[], None]:
    """Time name resolution from here on; return the function that undoes it for the last user."""
    global _users, _undo
    with _lock:
        if _users == 0:
            _undo = _patch()
        _users += 1
    undone = False

    def undo() -> None:
        nonlocal undone
        global _users, _undo
        with _lock:
            if undone:
                return
            undone = True
            _users -= 1
            if _users == 0 and _undo is not None:
                _undo()
                _undo = None

    return undo


def _patch() -> Callable[[], None]:
    plain = socket.getaddrinfo
    base = asyncio.base_events.BaseEventLoop
    plain_async = base.getaddrinfo

    @wraps(plain)
    def getaddrinfo(*args: Any, **kwargs: Any) -> Any:
        connecting = _connecting()
        try:
            return plain(*args, **kwargs)
        finally:
            if connecting is not None:
                _resolved(*connecting)

    @wraps(plain_async)
    async def getaddrinfo_async(*args: Any, **kwargs: Any) -> Any:
        connecting = _connecting()
        try:
            return await plain_async(*args, **kwargs)
        finally:
            if connecting is not None:
                _resolved(*connecting)

    socket.getaddrinfo = getaddrinfo
    base.getaddrinfo = getaddrinfo_async  # type: ignore[method-assign]

    def undo() -> None:
        # Another library may have patched it since; then its function stays and calls ours,
        # which then has nothing to time.
        if socket.getaddrinfo is getaddrinfo:
            socket.getaddrinfo = plain
        if base.getaddrinfo is getaddrinfo_async:
            base.getaddrinfo = plain_async  # type: ignore[method-assign]

    return undo
