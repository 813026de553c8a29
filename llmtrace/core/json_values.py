"""Read single values of a row's JSON or of a span's attributes: they may be of any kind.

What cannot be read raises a `TypeError` or a `ValueError` that names the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from llmtrace.core.stages import SOURCES, Reported, Source

_NS: Final = 1_000_000_000
# What claims to have taken longer than a year is garbage.
MAX_S: Final = 366 * 86_400


def bounded(name: str, seconds: float) -> float:
    """Return a duration as it is, if a request can have it."""
    if not -MAX_S < seconds < MAX_S:
        raise ValueError(f"{name} is {seconds!r}, longer than any request")
    return seconds


def read_ns(flat: Mapping[str, Any], key: str) -> int | None:
    """Return seconds as whole nanoseconds; `None` = the key is missing."""
    value = flat.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{key} is {value!r}, not a number of seconds")
    return round(bounded(key, value) * _NS)


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
