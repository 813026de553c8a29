"""Decide whether a cancelled async request was cancelled or timed out.

`asyncio.timeout` cancels the task, and takes the cancellation back once it has turned it into a
`TimeoutError`; a plain `Task.cancel` is never taken back. So the row is held for a moment before
this is checked. anyio takes every cancellation back, but gives the reason in its message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from llmtrace.core.error_outcomes import outcome_of
from llmtrace.core.recording import Defer, Recording
from llmtrace.core.row import Outcome, Row

# How long the unwinding from our read to the application's `asyncio.timeout` may take.
_PATIENCE_S: Final = 1.0
# anyio's message, with the reason in it: from 4.11 on.
_BY_SCOPE: Final = "Cancelled via cancel scope "
_DEADLINE: Final = "reason: deadline exceeded"
_TIMEOUT: Final[tuple[Outcome, str]] = ("timeout", "TimeoutError")


@dataclass(frozen=True, slots=True)
class Cancellation:
    """A wait that was cancelled, as it looked at that moment.

    Attributes:
        outcome: what the row says unless the cancellation is taken back.
        task: the task that waited, where it counts its cancellations; `None` = nothing to look at.
        requests: how many of them were pending.
    """

    outcome: tuple[Outcome, str | None]
    task: asyncio.Task[object] | None = None
    requests: int = 0


def seen(error: asyncio.CancelledError) -> Cancellation:
    """Note what can be known of a cancellation while it is being raised."""
    said = next((text for text in error.args if isinstance(text, str)), "")
    if said.startswith(_BY_SCOPE):
        return Cancellation(_TIMEOUT if said.endswith(_DEADLINE) else outcome_of(error))
    try:
        task = asyncio.current_task()
    except RuntimeError:  # torn down without a loop
        task = None
    # A custom task class may not count its cancellations.
    requests = getattr(task, "cancelling", int)()
    return Cancellation(outcome_of(error), task if requests else None, requests)


def failed(recording: Recording, error: BaseException) -> None:
    """End a recording with what was raised: a cancellation may turn out to be a time-out."""
    if isinstance(error, asyncio.CancelledError):
        end(recording, seen(error))
    else:
        recording.failed(error)


def end(recording: Recording, cancellation: Cancellation) -> None:
    """End a recording by a cancellation, however long ago that was."""
    task = cancellation.task
    if task is None:
        recording.finish(*cancellation.outcome)
    elif task.cancelling() < cancellation.requests:
        recording.finish(*_TIMEOUT)
    elif task.done():
        recording.finish(*cancellation.outcome)
    else:
        recording.finish(*cancellation.outcome, defer=_settle(task, cancellation.requests))


def _settle(task: asyncio.Task[object], requests: int) -> Defer:
    def later(row: Row, emit: Callable[[Row], None]) -> None:
        loop = task.get_loop()
        pending = True

        def look(*_: object, last: bool = False) -> None:
            nonlocal pending
            taken_back = task.cancelling() < requests
            if pending and (taken_back or last or task.done()):
                pending = False
                outcome, error_type = _TIMEOUT
                emit(replace(row, outcome=outcome, error_type=error_type) if taken_back else row)

        # Right after this step of the task, where the unwinding usually ends; at the task's end,
        # so that no row is lost; and after a while in any case.
        loop.call_soon(look)
        task.add_done_callback(look)
        loop.call_later(_PATIENCE_S, partial(look, last=True))

    return later
