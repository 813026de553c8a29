"""Find the generation by which Langfuse's own SDK records the current call already.

`langfuse.openai` opens one right before it calls the client, and does not make it the current
span. So llmtrace patches the method by which the SDK opens them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from types import ModuleType
from typing import Any

from llmtrace.core.failopen import internal_error

# The generation opened last in this context, until a client's call takes it.
_last: ContextVar[weakref.ref[Any] | None] = ContextVar("llmtrace_langfuse", default=None)


def listen(module: ModuleType) -> Callable[[], None]:
    """Note the generations that `langfuse`'s clients open; return the function that undoes it."""
    kind: Any = module.Langfuse
    plain = kind.start_observation

    @wraps(plain)
    def start_observation(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = plain(self, *args, **kwargs)
        try:
            if kwargs.get("as_type") == "generation":
                _last.set(weakref.ref(made))
        except Exception as error:  # noqa: BLE001 - then a call is recorded twice, but recorded
            internal_error("langfuse", error)
        return made

    kind.start_observation = start_observation

    def undo() -> None:
        if kind.start_observation is start_observation:
            kind.start_observation = plain

    return undo


def opened() -> Any:
    """Return the span of the generation opened for the call being made, once; else `None`."""
    reference = _last.get()
    if reference is None:
        return None
    _last.set(None)
    # The span is not part of its public face. Without it the call is recorded as any other.
    span = getattr(reference(), "_otel_span", None)
    return span if span is not None and span.is_recording() else None
