"""Read the parameters of a request to the read API: which time, which requests, how many."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from llmtrace.core.errors import DataError

_NS: Final = 1_000_000_000
_AGO: Final = re.compile(r"-([0-9]+(?:\.[0-9]+)?)(s|m|h|d)")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MAX_S: Final = 400 * 86_400
_HOUR_NS: Final = 3600 * _NS
_MAX_TEXT: Final = 256
_MAX_ID: Final = 512  # as the store keeps them
_MAX_UNIX_S: Final = 9_000_000_000
_CURSOR: Final = re.compile(r"([0-9]{1,19}):([0-9a-f]{32}):([0-9a-f]{16})")
_TRACE: Final = re.compile(r"[0-9a-f]{32}")


class QueryParamError(DataError):
    """A parameter is wrong; the text says which, and what would do."""


@dataclass(frozen=True, slots=True)
class Between:
    """A stretch of time, in unix nanoseconds; `end_ns` is not in it."""

    start_ns: int
    end_ns: int


def known(given: Mapping[str, str], names: frozenset[str]) -> None:
    """Refuse parameters that mean nothing: a misspelt filter would answer too much.

    Raises:
        QueryParamError: there is one.
    """
    if unknown := sorted(set(given) - names):
        raise QueryParamError(
            f"no such parameter: {unknown[0]}; there are {', '.join(sorted(names))}"
        )


def between(given: Mapping[str, str], now_s: float | None = None) -> Between:
    """Read `start` and `end`; without them the last hour.

    Raises:
        QueryParamError: they are no times, or the wrong way round.
    """
    now = time.time() if now_s is None else now_s
    end = _moment(given["end"], "end", now) if "end" in given else round(now * _NS)
    start = _moment(given["start"], "start", now) if "start" in given else end - _HOUR_NS
    if start >= end:
        raise QueryParamError("start is not before end")
    if end - start > MAX_S * _NS:
        raise QueryParamError("more than 400 days between start and end")
    return Between(start, end)


def moment(text: str | None, name: str, now_s: float) -> int:
    """Read one time; without it now. Unix nanoseconds.

    Raises:
        QueryParamError: it is none.
    """
    return round(now_s * _NS) if text is None else _moment(text, name, now_s)


def cursor(text: str | None) -> tuple[int, str, str] | None:
    """Read where a page of rows ended: the start, trace id and span id of its last row.

    Raises:
        QueryParamError: it is no such place.
    """
    if text is None:
        return None
    if match := _CURSOR.fullmatch(text):
        return int(match[1]), match[2], match[3]
    raise QueryParamError("after: write start:trace_id:span_id of the last row there was")


def _moment(text: str, name: str, now_s: float) -> int:
    if match := _AGO.fullmatch(text):
        seconds = float(match[1]) * _UNITS[match[2]]
        if seconds < MAX_S:
            return round((now_s - seconds) * _NS)
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = datetime.fromisoformat(text).astimezone().timestamp()
        except (ValueError, OverflowError):
            seconds = -1.0
    if 0 <= seconds <= _MAX_UNIX_S:
        return round(seconds * _NS)
    raise QueryParamError(
        f"{name}: {text[:64]!r} is not a time: write unix seconds, 2026-11-21T14:00Z, or -15m"
    )


def number(given: Mapping[str, str], name: str, default: int, most: int) -> int:
    """Read a whole number from 1 on.

    Raises:
        QueryParamError: it is none, or above `most`.
    """
    text = given.get(name)
    if text is None:
        return default
    if text.isascii() and text.isdecimal() and 0 < int(text[:19]) <= most:
        return int(text)
    raise QueryParamError(f"{name}: {text[:64]!r} is not a whole number from 1 to {most}")


def texts(given: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    """Return the filters: a value for each name given.

    Raises:
        QueryParamError: one is longer than any value there is.
    """
    found = {name: value for name, value in given.items() if name in names}
    for name, value in found.items():
        if len(value) > _MAX_TEXT:
            raise QueryParamError(f"{name}: longer than {_MAX_TEXT} characters")
    return found


def some(given: Mapping[str, str], name: str, there_are: Sequence[str]) -> Sequence[str]:
    """Read names with commas between them; without any, all there are.

    Raises:
        QueryParamError: there is no such name.
    """
    if name not in given:
        return there_are
    listed = given[name].split(",")
    if unknown := [one for one in listed if one not in there_are]:
        raise QueryParamError(f"{name}: {unknown[0][:64]!r} is not one of {', '.join(there_are)}")
    return tuple(dict.fromkeys(listed))


def trace_id(text: str) -> str:
    """Read a trace id.

    Raises:
        QueryParamError: it is none.
    """
    if _TRACE.fullmatch(text.lower()) is None:
        raise QueryParamError("a trace id is 32 hexadecimal digits")
    return text.lower()


def identifier(text: str) -> str:
    """Read the id of a request, response or trace.

    Raises:
        QueryParamError: it is longer than any.
    """
    if len(text) > _MAX_ID:
        raise QueryParamError(f"an id has {_MAX_ID} characters at most")
    return text.lower() if _TRACE.fullmatch(text.lower()) else text
