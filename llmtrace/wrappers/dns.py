"""How long did name resolution take, which HTTP clients count into their connect?

While any client is instrumented, `socket.getaddrinfo` and asyncio's are timed for the request that
is connecting right now, and passed through untouched for everybody else.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import wraps
from typing import Any

from llmtrace.record import Attempt
from llmtrace.runtime import current


def _connecting() -> Attempt | None:
    recording = current.get()
    if recording is None or not recording.on_the_wire or not recording.attempts:
        return None
    return recording.attempts[-1]


def watching() -> bool:
    """Say whether a resolution made here would be seen: some event loops bring their own."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return True
    return isinstance(loop, asyncio.base_events.BaseEventLoop)


def install() -> Callable[[], None]:
    """Time name resolution from here on; return what undoes it."""
    plain = socket.getaddrinfo
    base = asyncio.base_events.BaseEventLoop
    plain_async = base.getaddrinfo

    @wraps(plain)
    def getaddrinfo(*args: Any, **kwargs: Any) -> Any:
        attempt = _connecting()
        if attempt is None:
            return plain(*args, **kwargs)
        clock = current.get().clock  # type: ignore[union-attr]  # _connecting has just seen it
        started = clock()
        try:
            return plain(*args, **kwargs)
        finally:
            attempt.dns = (attempt.dns or 0) + clock() - started

    @wraps(plain_async)
    async def getaddrinfo_async(*args: Any, **kwargs: Any) -> Any:
        attempt = _connecting()
        if attempt is None:
            return await plain_async(*args, **kwargs)
        clock = current.get().clock  # type: ignore[union-attr]  # _connecting has just seen it
        started = clock()
        try:
            return await plain_async(*args, **kwargs)
        finally:
            attempt.dns = (attempt.dns or 0) + clock() - started

    socket.getaddrinfo = getaddrinfo
    base.getaddrinfo = getaddrinfo_async  # type: ignore[method-assign]

    def undo() -> None:
        # Somebody may have patched over us since; then theirs stays, and calls ours, which then
        # finds nothing to time.
        if socket.getaddrinfo is getaddrinfo:
            socket.getaddrinfo = plain
        if base.getaddrinfo is getaddrinfo_async:
            base.getaddrinfo = plain_async  # type: ignore[method-assign]

    return undo
