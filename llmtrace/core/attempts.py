"""The HTTP attempts of one request: start, duration, backoff and result.

A request that was rejected, or whose connection broke, may have been sent again. An `Attempt` is
one that is over; a row has them if there were several or one failed. `attempt_clock.py` records
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llmtrace.core.json_values import read_duration

# Of more attempts the first ones are kept, and the last; `Row.attempts` counts all of them.
MAX_ATTEMPTS: Final = 16
_MAX_NAME: Final = 256
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One HTTP attempt; times in nanoseconds of the client's clock.

    Attributes:
        start_ns: from the row's start.
        duration_ns: to its answer's headers or its error; of an attempt that was answered without
            an error, to the end of the row.
        backoff_ns: from there to the next attempt, or to the row's end if none followed: time that
            the server asked for, or the client chose.
        status: HTTP status; `None` = no answer.
        error_type: class of what was raised in its place.
        retry_after_ns: the wait that the response asked for (`Retry-After`).
    """

    start_ns: int
    duration_ns: int
    backoff_ns: int = 0
    status: int | None = None
    error_type: str | None = None
    retry_after_ns: int | None = None

    @property
    def end_ns(self) -> int:
        """From the row's start to its end, without the backoff."""
        return self.start_ns + self.duration_ns


def keep(kept: list[Attempt], one: Attempt) -> None:
    """Add one to those kept, within the bound."""
    del kept[MAX_ATTEMPTS - 1 :]
    kept.append(one)


def as_plain(kept: Iterable[Attempt]) -> list[dict[str, Any]]:
    """Flatten to JSON-ready dictionaries: durations in seconds, unknown ones left out."""
    return [_plain(one) for one in kept]


def _plain(one: Attempt) -> dict[str, Any]:
    flat: dict[str, Any] = {"start_s": one.start_ns / _NS, "duration_s": one.duration_ns / _NS}
    if one.backoff_ns:
        flat["backoff_s"] = one.backoff_ns / _NS
    if one.status is not None:
        flat["status"] = one.status
    if one.error_type is not None:
        flat["error_type"] = one.error_type
    if one.retry_after_ns is not None:
        flat["retry_after_s"] = one.retry_after_ns / _NS
    return flat


def from_plain(flat: Sequence[Mapping[str, Any]] | None) -> tuple[Attempt, ...]:
    """Rebuild what `as_plain` wrote; at most `MAX_ATTEMPTS` are read.

    Raises:
        TypeError: a value is of the wrong kind.
        ValueError: a duration cannot be one.
        KeyError: one is missing.
    """
    if flat is None:
        return ()
    if isinstance(flat, str | Mapping) or not isinstance(flat, Sequence):
        raise TypeError(f"attempt_log is {flat!r}, not a list")
    return tuple(_attempt(one) for one in flat[:MAX_ATTEMPTS])


def _attempt(flat: Any) -> Attempt:
    if not isinstance(flat, Mapping):
        raise TypeError(f"attempt_log holds {flat!r}, not an attempt")
    error_type = flat.get("error_type")
    return Attempt(
        start_ns=read_duration(flat, "start_s"),
        duration_ns=read_duration(flat, "duration_s"),
        backoff_ns=_if_there(flat, "backoff_s") or 0,
        status=_status(flat.get("status")),
        error_type=None if error_type is None else str(error_type)[:_MAX_NAME],
        retry_after_ns=_if_there(flat, "retry_after_s"),
    )


def _if_there(flat: Mapping[str, Any], key: str) -> int | None:
    return None if flat.get(key) is None else read_duration(flat, key)


def _status(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise TypeError(f"attempt_log holds {value!r}, not an HTTP status")
