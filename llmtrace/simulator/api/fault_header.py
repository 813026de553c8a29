"""The faults that a request can have the simulated server inject, to test clients.

Faults come from the server's configuration or, for one request, from the header
`x-llmtrace-sim`, for example `x-llmtrace-sim: cut_after=5, keep_alive_s=0.02`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from llmtrace.core.errors import DataError

HEADER = "x-llmtrace-sim"


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong, or merely unusually. The `after` fields count output tokens."""

    reject_first: int = 0  # answer the first N requests with 429
    retry_after_s: float = 1.0  # and tell them to come back after this
    error_after: int | None = None  # an error event inside the 200 stream
    cut_after: int | None = None  # a clean end of the body, without finish reason
    drop_after: int | None = None  # a closed connection in the middle of the body
    keep_alive_s: float | None = None  # comment lines whenever nothing was sent for this long
    reasoning_tokens: int = 0  # the first N tokens are reasoning
    tool_calls: int = 0  # the answer is N tool calls


NO_FAULTS = Faults()
_SECONDS = frozenset({"retry_after_s", "keep_alive_s"})


class EngineFailedError(Exception):
    """The simulated engine fails in the middle of an answer."""


class StreamCutError(Exception):
    """The stream ends in the middle of a response, without a reason."""


class StreamDroppedError(Exception):
    """The connection goes away in the middle of an answer."""


def read_faults(header: str, default: Faults = NO_FAULTS) -> Faults:
    """Read the fault header of one request; what it does not name stays as in `default`.

    Raises:
        DataError: an unknown fault, or a value that is no number of 0 or more.

    >>> read_faults("cut_after=3, tool_calls=2").cut_after
    3
    """
    known = {field.name for field in fields(Faults)}
    changes: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in header.split(","))):
        name, _, value = part.partition("=")
        if name not in known:
            raise DataError(f"{HEADER}: no fault {name!r}; known: {', '.join(sorted(known))}")
        try:
            number = float(value) if name in _SECONDS else int(value)
        except ValueError as error:
            raise DataError(f"{HEADER}: {name} needs a number, not {value!r}") from error
        if not 0 <= number < float("inf"):
            raise DataError(f"{HEADER}: {name} must be a number of 0 or more, not {value!r}")
        changes[name] = number
    return replace(default, **changes)  # type: ignore[arg-type]


def strike(faults: Faults, number: int) -> None:
    """Raise the fault that comes instead of output token `number` (from 0), if one does."""
    for after, error in (
        (faults.error_after, EngineFailedError),
        (faults.cut_after, StreamCutError),
        (faults.drop_after, StreamDroppedError),
    ):
        if after is not None and number >= after:
            raise error(f"simulated fault after {after} output tokens")
