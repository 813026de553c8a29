"""Was an async request cancelled, or did its time run out?

`asyncio.timeout` cancels the task and takes the cancellation back once it has turned it into a
`TimeoutError`; a plain `Task.cancel` is never taken back. So the row waits a moment, and looks.
anyio takes every cancellation back, but says in its message why it was made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from llmtrace.record import Later, Recording, outcome_of
from llmtrace.rows import Row

# How long the unwinding from our read to the caller's `asyncio.timeout` may take.
_PATIENCE_S: Final = 1.0
# anyio's message, with the reason in it: from 4.11 on.
_BY_SCOPE: Final = "Cancelled via cancel scope "
_DEADLINE: Final = "reason: deadline exceeded"


def cancelled(recording: Recording, error: asyncio.CancelledError) -> None:
    """End a recording whose wait was cancelled: now as to time, in a moment as to outcome."""
    said = next((text for text in error.args if isinstance(text, str)), "")
    if said.startswith(_BY_SCOPE) and said.endswith(_DEADLINE):
        recording.finish("timeout", "TimeoutError")
        return
    try:
        task = None if said.startswith(_BY_SCOPE) else asyncio.current_task()
    except RuntimeError:  # torn down without a loop
        task = None
    # A task class of somebody's own may not count its cancellations.
    requests = getattr(task, "cancelling", int)()
    if task is None or requests == 0:
        recording.failed(error)
    else:
        recording.finish(*outcome_of(error), later=_settle(task, requests))


def _settle(task: asyncio.Task[object], requests: int) -> Later:
    def later(row: Row, emit: Callable[[Row], None]) -> None:
        loop = task.get_loop()
        pending = True

        def look(*_: object, last: bool = False) -> None:
            nonlocal pending
            taken_back = task.cancelling() < requests
            if pending and (taken_back or last or task.done()):
                pending = False
                emit(replace(row, outcome="timeout", error_type="TimeoutError")
                     if taken_back else row)  # fmt: skip

        # Right after this step of the task, where the unwinding usually ends; at the task's end,
        # so that no row is lost; and after a while in any case.
        loop.call_soon(look)
        task.add_done_callback(look)
        loop.call_later(_PATIENCE_S, partial(look, last=True))

    return later
