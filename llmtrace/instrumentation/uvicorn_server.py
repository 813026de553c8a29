"""End the recording with a uvicorn server: it lets the signal that ended it kill its process.

Python's `atexit` functions do not run then, and the rows of the last second would be lost.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any, Final

from llmtrace.core.failopen import internal_error

_UNWINDING_S: Final = 1.0  # for responses that were cancelled


def ends(module: ModuleType, end: Callable[[], object]) -> Callable[[], None]:
    """Call `end` once a server of this module has shut down after SIGTERM; return the undoing."""
    plain = module.Server.shutdown

    @wraps(plain)
    async def shutdown(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return await plain(self, *args, **kwargs)
        finally:
            if signal.SIGTERM in getattr(self, "_captured_signals", ()):
                try:
                    if cancelled := set(self.server_state.tasks):
                        await asyncio.wait(cancelled, timeout=_UNWINDING_S)
                    await asyncio.to_thread(end)
                except Exception as error:  # noqa: BLE001 - the server ends as it would
                    internal_error("shutdown", error)

    def undo() -> None:
        if module.Server.shutdown is shutdown:
            module.Server.shutdown = plain

    module.Server.shutdown = shutdown
    return undo
