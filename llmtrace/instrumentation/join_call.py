"""Is a client's call a request of its own, or the one its decorated function is recorded as?

The first call inside a function under `llmtrace.trace` joins that function's row. If another one
follows, or begins at the same time, each has a row of its own with the function's labels, and the
function is a span around them that is no request.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping
from typing import Any

from llmtrace.core.failopen import fails_open
from llmtrace.core.recording import Recording, outcome_of
from llmtrace.instrumentation import langfuse_sdk
from llmtrace.instrumentation.streams.cancellation import cancelled
from llmtrace.runtime.runtime import Runtime, current

# What a failed call filled in on its decorated function's recording: the next call writes over it.
_filled: weakref.WeakKeyDictionary[Recording, set[str]] = weakref.WeakKeyDictionary()


def enclosing_recording() -> Recording | None:
    """Return the decorated function's recording that a call made right now would join."""
    around = current.get()
    if around is None or around.joined or around.ended or around.function is not None:
        return None
    return around


def join(runtime: Runtime, info: Mapping[str, Any]) -> tuple[Recording, set[str]]:
    """Return the recording a call belongs to, and the fields that the call filled in on it."""
    around = enclosing_recording()
    generation = langfuse_sdk.opened()
    enters(runtime, call=True)
    if around is None or around.function is not None:
        return runtime.start(info, generation=generation), set()
    if generation is not None:
        runtime.beside(around, generation)
    around.joined = True
    around.failure = None  # a call before this one failed: the function tries again
    around.call_begins()
    # What the decorator was told wins over what the call says.
    ours = _filled.pop(around, {"operation"})
    told = {k: v for k, v in info.items() if around.info.get(k) is None or k in ours}
    around.info.update(told)
    return around, {"operation", *told}


def enters(runtime: Runtime, *, call: bool) -> None:
    """Make the decorated function around a span of its own, unless this is its first call.

    Args:
        runtime: what is set up.
        call: whether a call begins, and not another decorated function.
    """
    around = current.get()
    if around is None or around.function is not None or around.ended:
        return
    if not around.in_decorated_function or around.labels is None:
        return  # a call, and no function
    if around.joined or around.ttft is not None or not call:
        runtime.separate(around)


@fails_open("record")
def failed(recording: Recording, filled: set[str], error: BaseException) -> None:
    """End with what the call raised, unless a decorated function may try again."""
    if recording.in_decorated_function:
        recording.joined = False
        recording.failure = outcome_of(error)
        _filled[recording] = filled
        recording.call_ended = recording.clock()
    elif isinstance(error, asyncio.CancelledError):
        cancelled(recording, error)
    else:
        recording.failed(error)


@fails_open("record")
def refused(recording: Recording, filled: set[str], code: str) -> None:
    """Note that a call was answered by an error; a decorated function may try again."""
    recording.calling = False
    recording.failure = ("error", code)
    if recording.in_decorated_function:
        recording.joined = False
        _filled[recording] = filled
        recording.call_ended = recording.clock()
