"""Decide whether a client's call is a request of its own or joins its decorated function's row.

The first call inside a function under `llmtrace.trace` joins that function's row. If another one
follows, or begins at the same time, each has a row of its own with the function's labels, and the
function is a span that encloses them and is no request.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from llmtrace.core.error_outcomes import outcome_of
from llmtrace.core.failopen import fails_open
from llmtrace.core.recording import Recording
from llmtrace.instrumentation import langfuse_sdk
from llmtrace.instrumentation.streams import cancellation
from llmtrace.runtime.runtime import Runtime, current

# What a failed call filled in on its decorated function's recording: the next call writes over it.
_filled: weakref.WeakKeyDictionary[Recording, set[str]] = weakref.WeakKeyDictionary()


def enclosing_recording() -> Recording | None:
    """Return the decorated function's recording that a call made right now would join."""
    outer = current.get()
    if outer is None or outer.joined or outer.ended or outer.function is not None:
        return None
    return outer


def join(runtime: Runtime, info: Mapping[str, Any]) -> tuple[Recording, set[str]]:
    """Return the recording a call belongs to, and the fields that the call filled in on it."""
    outer = enclosing_recording()
    generation = langfuse_sdk.opened()
    enters(runtime, call=True)
    if outer is None or outer.function is not None:
        return runtime.start(info, generation=generation), set()
    if generation is not None:
        runtime.beside(outer, generation)
    outer.joined = True
    outer.failure = None  # an earlier call failed: the function retries
    outer.call_begins()
    # Values given to the decorator win over those of the call.
    ours = _filled.pop(outer, {"operation"})
    fields = {k: v for k, v in info.items() if outer.info.get(k) is None or k in ours}
    outer.info.update(fields)
    return outer, {"operation", *fields}


def enters(runtime: Runtime, *, call: bool) -> None:
    """Make the enclosing decorated function a span of its own, unless this is its first call.

    `call`: a call begins, and not another decorated function.
    """
    outer = current.get()
    if outer is None or outer.function is not None or outer.ended:
        return
    if not outer.in_decorated_function or outer.labels is None:
        return  # a call, and no function
    if outer.joined or outer.ttft is not None or not call:
        runtime.separate(outer)


@fails_open("record")
def failed(recording: Recording, filled: set[str], error: BaseException) -> None:
    """End with what the call raised, unless a decorated function may retry."""
    if recording.in_decorated_function:
        recording.joined = False
        recording.failure = outcome_of(error)
        _filled[recording] = filled
        recording.call_ended = recording.clock()
    else:
        cancellation.failed(recording, error)


@fails_open("record")
def rejected(recording: Recording, filled: set[str], code: str) -> None:
    """Note that a call's response was an error; a decorated function may retry."""
    recording.calling = False
    recording.failure = ("error", code)
    if recording.in_decorated_function:
        recording.joined = False
        _filled[recording] = filled
        recording.call_ended = recording.clock()
