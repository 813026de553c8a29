"""Read the parameters of a request to the read API: time range, filters and limit."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from llmtrace.core.errors import DataError

_NS: Final = 1_000_000_000
_AGO: Final = re.compile(r"-([0-9]+(?:\.[0-9]+)?)(s|m|h|d)")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MAX_S: Final = 400 * 86_400
_HOUR_NS: Final = 3600 * _NS
_MAX_TEXT: Final = 256
_MAX_ID: Final = 512  # as the store keeps them
_MAX_UNIX_S: Final = 9_000_000_000
_MAX_DIGITS: Final = 19
_CURSOR: Final = re.compile(r"([0-9]{1,19}):([0-9a-f]{32}):([0-9a-f]{16})")
_TRACE: Final = re.compile(r"[0-9a-f]{32}")


class QueryParamError(DataError):
    """A parameter is wrong; the text says which, and what is valid."""


class Between(NamedTuple):
    """A time range in unix nanoseconds, without its end."""

    start_ns: int
    end_ns: int


def known(given: Mapping[str, str], names: Collection[str]) -> None:
    """Reject unknown parameters: a misspelt filter would return too much.

    Raises:
        QueryParamError: there is an unknown one.
    """
    if unknown := sorted(set(given) - set(names)):
        raise QueryParamError(
            f"no such parameter: {unknown[0]}; there are {', '.join(sorted(names))}"
        )


def between(given: Mapping[str, str], now_s: float) -> Between:
    """Read `start` and `end`; by default the last hour.

    Raises:
        QueryParamError: they are not times, or the wrong way round.
    """
    end = moment(given.get("end"), "end", now_s)
    start = moment(given["start"], "start", now_s) if "start" in given else end - _HOUR_NS
    if start >= end:
        raise QueryParamError("start is not before end")
    if end - start > MAX_S * _NS:
        raise QueryParamError("more than 400 days between start and end")
    return Between(start, end)


def moment(text: str | None, name: str, now_s: float) -> int:
    """Read one time as unix nanoseconds; the default is now.

    Raises:
        QueryParamError: it is not a time.
    """
    if text is None:
        return round(now_s * _NS)
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


def cursor(text: str | None) -> tuple[int, str, str] | None:
    """Read where a page of rows ended: the start, trace id and span id of its last row.

    Raises:
        QueryParamError: it is not written like that.
    """
    if text is None:
        return None
    if match := _CURSOR.fullmatch(text):
        return int(match[1]), match[2], match[3]
    raise QueryParamError("after: write start:trace_id:span_id of the last row there was")


def number(given: Mapping[str, str], name: str, default: int, most: int) -> int:
    """Read a whole number from 1 on.

    Raises:
        QueryParamError: it is not one, or above `most`.
    """
    text = given.get(name)
    if text is None:
        return default
    if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS and 0 < int(text) <= most:
        return int(text)
    raise QueryParamError(f"{name}: {text[:64]!r} is not a whole number from 1 to {most}")


def texts(given: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """Return the filters that are given, by name.

    Raises:
        QueryParamError: one is longer than any stored value.
    """
    found = {name: value for name, value in given.items() if name in names}
    for name, value in found.items():
        if len(value) > _MAX_TEXT:
            raise QueryParamError(f"{name}: longer than {_MAX_TEXT} characters")
    return found


def one_of(given: Mapping[str, str], name: str, allowed: Sequence[str]) -> str:
    """Read one of the allowed words; the default is the first.

    Raises:
        QueryParamError: it is not one of them.
    """
    value = given.get(name, allowed[0])
    if value not in allowed:
        raise QueryParamError(f"{name}: {value[:64]!r} is not one of {', '.join(allowed)}")
    return value


def some(given: Mapping[str, str], name: str, allowed: Sequence[str]) -> Sequence[str]:
    """Read a comma-separated list of allowed words; the default is all of them.

    Raises:
        QueryParamError: one is not allowed.
    """
    if name not in given:
        return allowed
    listed = dict.fromkeys(given[name].split(","))
    return tuple(one_of({name: one}, name, allowed) for one in listed)


def trace_id(text: str) -> str:
    """Read a trace id.

    Raises:
        QueryParamError: it is not one.
    """
    if _TRACE.fullmatch(text.lower()) is None:
        raise QueryParamError("a trace id is 32 hexadecimal digits")
    return text.lower()


def identifier(text: str) -> str:
    """Read the id of a request, response or trace.

    Raises:
        QueryParamError: it is longer than any stored id.
    """
    if len(text) > _MAX_ID:
        raise QueryParamError(f"an id has {_MAX_ID} characters at most")
    return text.lower() if _TRACE.fullmatch(text.lower()) else text
