"""Name the outcome of a request from the exception or the status that it ended with."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any, Final

from llmtrace.core.error_codes import code_of
from llmtrace.core.row import Outcome

_OUT_OF_TIME: Final = re.compile("Timeout|TimeLimit")  # the latter is Celery's
_MAX_WRAPPED: Final = 8  # exceptions, each raised because of the next


def outcome_of(error: BaseException) -> tuple[Outcome, str | None]:
    """Name how a request ended from what was raised: the outcome and the error's type.

    That is the provider's own code for it, if the error or its cause carries one, else its class.
    """
    kinds = type(error).__mro__
    if isinstance(error, GeneratorExit):
        return "cancelled", None
    if _ran_out_of_time(error, kinds):
        return "timeout", type_name(error)
    if not isinstance(error, Exception):  # CancelledError, KeyboardInterrupt, SystemExit
        return "cancelled", type_name(error)
    names = {kind.__name__ for kind in kinds}
    if "RpcError" in names and (status := _grpc_status(error)) is not None:
        return outcome_of_status(status)
    if "FutureCancelledError" in names:  # gRPC's, of which it is an ordinary exception
        return "cancelled", type_name(error)
    if isinstance(error, TimeoutError) or any(_OUT_OF_TIME.search(name) for name in names):
        return "timeout", type_name(error)
    return "error", _code(error) or type_name(error)


def _code(error: BaseException) -> str | None:
    """Return the provider's code, also of an error that another was raised `from`.

    Not of one that was only being handled: a fallback to another provider fails by itself.
    """
    for _ in range(_MAX_WRAPPED):
        if (code := code_of(error)) is not None or error.__cause__ is None:
            return code
        error = error.__cause__
    return None


def _ran_out_of_time(error: BaseException, kinds: tuple[type, ...]) -> bool:
    """Say whether a bare exception is a deadline's: gevent's by class, trio's by its scope."""
    for kind in kinds:
        named = kind.__module__.partition(".")[0], kind.__name__
        if named == ("gevent", "Timeout"):
            return True
        if named == ("trio", "Cancelled"):
            source = getattr(error, "source", None)  # from trio 0.31 on
            return _trio_deadline_passed() if source is None else source == "deadline"
    return False


def _trio_deadline_passed() -> bool:
    """Say whether the deadline of a scope around trio's running task has passed."""
    trio: Any = sys.modules["trio"]
    try:
        now = trio.current_time()
        status = trio.lowlevel.current_task()._cancel_status  # noqa: SLF001
        while status is not None:
            if status._scope.deadline <= now:  # noqa: SLF001
                return True
            status = status._parent  # noqa: SLF001
    except (AttributeError, RuntimeError):  # another version's insides, or no task
        pass
    return False


def outcome_of_status(status: str) -> tuple[Outcome, str]:
    """Name how a gRPC call ended from the name of its status; a plain end is no error to name."""
    return _GRPC_OUTCOMES.get(status, "error"), status


_GRPC_OUTCOMES: Final[Mapping[str, Outcome]] = {
    "CANCELLED": "cancelled",
    "DEADLINE_EXCEEDED": "timeout",
}


def _grpc_status(error: Any) -> str | None:
    code = getattr(error, "code", None)  # of an RpcError that is a call, and not bare
    name = getattr(code() if callable(code) else None, "name", None)
    return name if isinstance(name, str) else None


def type_name(error: BaseException) -> str:
    """Name an exception's class as OpenTelemetry's `error.type` does."""
    kind = type(error)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"
