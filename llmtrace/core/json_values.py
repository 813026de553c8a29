"""Read single values of a row's JSON or of a span's attributes: they may be of any kind.

What cannot be read raises a `TypeError` or a `ValueError` that names the key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

from llmtrace.core.stages import SOURCES, Reported, Source

_NS: Final = 1_000_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# As a float, no time may round to more than 64 bits.
MAX_START_NS: Final = 2**63 - 1 - 1024
_NUMBER: Final = re.compile(r"[0-9]{1,19}(\.[0-9]*)?([eE]\+?[0-9]{1,2})?")
# Unix time from 2001 to 2286 shows its unit by its size: seconds, milliseconds, microseconds.
UNITS_NS: Final = {10**9: 10**9, 10**12: 10**6, 10**15: 1000}
_SLASHES: Final = re.compile(r"^(\d{4})/(\d\d)/(\d\d)\b")  # as Go and nginx write a date
# After an offset, Go repeats the zone by its name.
_ZONE: Final = re.compile(r" ?(?:([+-]\d\d:?\d\d)(?: [A-Z]{3,5})?|UTC|GMT)$")
START_FORMS: Final = (
    "an ISO 8601 date and time such as 2026-01-31T14:30:00Z, or Unix time in seconds, "
    "milliseconds, microseconds or nanoseconds"
)
# What claims to have taken longer than a year is garbage.
MAX_S: Final = 366 * 86_400


def bounded(name: str, seconds: float) -> float:
    """Return a duration as it is, if a request can have it."""
    if not -MAX_S < seconds < MAX_S:
        raise ValueError(f"{name} is {seconds!r}, longer than any request")
    return seconds


def start_ns(value: object) -> int | None:
    """Return when a row started, in Unix nanoseconds; `None` = the value is no time after 1970.

    Args:
        value: Unix time in seconds, milliseconds, microseconds or nanoseconds, as a number or as
            text; or a date and time, in ISO 8601 (in UTC where it has no zone) or as access logs
            or HTTP have it, read to the microsecond.

    Example:
        >>> start_ns("2026-01-31T15:30:00+01:00") == start_ns("2026-01-31 14:30")
        True
        >>> start_ns(1_769_869_800.25) == start_ns("1769869800250")
        True
    """
    if isinstance(value, str):
        text = value.strip()
        number = int if text.isdecimal() else float
        value = number(text) if _NUMBER.fullmatch(text) else _date_ns(text)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    unit = next((ns for least, ns in UNITS_NS.items() if least <= value < 10 * least), 1)
    found = value * unit if isinstance(value, int) else _scaled(value, unit)
    return found if 0 < found <= MAX_START_NS else None


def _scaled(value: float, unit: int) -> int:
    """Return a number of units in nanoseconds, to the microsecond: a float has no more."""
    if not 0 < value <= MAX_START_NS or (unit == 1 and not value.is_integer()):
        return 0
    return int(value) if unit == 1 else round(value * (unit / 1000)) * 1000


def _date_ns(text: str) -> int | None:
    text = _SLASHES.sub(r"\1-\2-\3", text.strip("[]"))
    text = _ZONE.sub(lambda zone: zone[1] or "Z", text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        # Of HTTP (RFC 1123), or of access logs.
        form = "%a, %d %b %Y %H:%M:%S%z" if "," in text else "%d/%b/%Y:%H:%M:%S%z"
        form = form.replace("%S", "%S.%f") if "." in text else form
        try:
            at = datetime.strptime(text, form)  # noqa: DTZ007 - both have a zone
        except ValueError:
            return None
    since = (at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH
    return (since.days * 86_400 + since.seconds) * _NS + since.microseconds * 1000


def read_ns(flat: Mapping[str, Any], key: str) -> int | None:
    """Return seconds as whole nanoseconds; `None` = the key is missing."""
    value = flat.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{key} is {value!r}, not a number of seconds")
    return round(bounded(key, value) * _NS)


def read_wait(flat: Mapping[str, Any], key: str) -> int | None:
    """Return seconds as whole nanoseconds; `None` = missing, or below 0, as logs write unknown."""
    value = read_ns(flat, key)
    return None if value is None or value < 0 else value


def read_duration(flat: Mapping[str, Any], key: str) -> int:
    """Return seconds that must be there, and not below 0, as whole nanoseconds.

    Raises:
        KeyError: the key is missing.
    """
    value = read_ns(flat, key)
    if value is None:
        raise KeyError(key)
    if value < 0:
        raise ValueError(f"{key} is {flat[key]!r}, and time does not run backwards")
    return value


def read_flag(flat: Mapping[str, Any], key: str, *, default: bool = False) -> bool:
    """Return true or false; the default if the key is missing."""
    value = flat.get(key)
    if value is not None and not isinstance(value, bool):
        raise TypeError(f"{key} is {value!r}, not true or false")
    return default if value is None else value


def read_source(flat: Mapping[str, Any], key: str) -> Source | None:
    """Return the source of a figure; `None` = the key is missing."""
    value = flat.get(key)
    if value is not None and value not in SOURCES:
        raise ValueError(f"{key} is {value!r}, not one of {', '.join(SOURCES)}")
    return cast("Source | None", value)


def read_reported(flat: Mapping[str, Any], key: str, source_key: str) -> Reported | None:
    """Return a figure with its source; `None` = one of the two keys is missing."""
    ns, source = read_ns(flat, key), read_source(flat, source_key)
    return None if ns is None or source is None else Reported(ns, source)
