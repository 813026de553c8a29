"""How a browser experienced one response: its wait, consumer time and painting.

`Browser` is what a page's beacon reports, unchanged. It rides on the row it was joined to, so that
nothing is lost of what either side measured. The same figures go by three names: in a beacon, in
a row's JSON and on the wire; `flatten` and `unflatten` write and read them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, Final, NamedTuple

_DAY_NS: Final = 86_400 * 1_000_000_000
_MAX: Final = 1 << 53


@dataclass(frozen=True, slots=True, kw_only=True)
class Browser:
    """What a page measured of one answer, by its own clock. `None` = it could not know.

    Every field is explained in docs/reference/semconv.md, under its name on the wire. The page
    *holds* the stream when it has not requested the next piece, or a long task kept it from
    taking one.

    Attributes:
        kind: `fetch` or `eventsource`; `whole` if the page read the answer in one go.
        e2e_ns: the call to the end of the stream, or to the paint of the last content after it.
        app_e2e_ns: what the application's server had measured, before this was joined; so are
            `app_ttft_ns` and `app_held_ns`, its own time with the stream.
        inconsistent: names of figures that contradict others, in one word each.
    """

    kind: str = "fetch"
    outcome: str | None = None
    error_type: str | None = None
    http_status: int | None = None
    protocol: str | None = None
    e2e_ns: int
    ttft_ns: int | None = None
    held_before_ns: int = 0
    held_after_ns: int = 0
    blocked_ns: int | None = None
    first_byte_ns: int | None = None
    last_content_ns: int | None = None
    max_gap_ns: int | None = None
    client_wait_ns: int | None = None
    dns_ns: int | None = None
    connect_ns: int | None = None
    tls_ns: int | None = None
    gateway_ns: int | None = None
    chunks: int = 0
    renders: int | None = None
    paints: int | None = None
    first_paint_ns: int | None = None
    paint_lag_ns: int | None = None
    max_paint_lag_ns: int | None = None
    long_frames: int | None = None
    long_frames_total_ns: int | None = None
    hidden_ns: int | None = None
    app_e2e_ns: int | None = None
    app_ttft_ns: int | None = None
    app_held_ns: int | None = None
    inconsistent: str | None = None


class Names(NamedTuple):
    """How the figures are named somewhere: around a field's name, and in which unit."""

    before: str
    after: str  # of a duration only
    unit_ns: int
    longest_ns: int


# No page waits longer than a day for an answer; a row of ours may say anything a row can.
IN_BEACON: Final = Names("", "_ms", 1_000_000, _DAY_NS)
IN_JSON: Final = Names("browser_", "_s", 1_000_000_000, 1000 * _DAY_NS)
ON_WIRE: Final = Names("llmtrace.browser.", "", 1_000_000_000, 1000 * _DAY_NS)

_KINDS: Final = {f.name: str(f.type).removesuffix(" | None") for f in fields(Browser)}


def name_of(field: str, names: Names) -> str:
    """Return the name a field goes by."""
    if field.endswith("_ns"):
        return f"{names.before}{field.removesuffix('_ns')}{names.after}"
    return f"{names.before}{field}"


def browser_kinds(names: Names) -> dict[str, type]:
    """Return the type of each name that `flatten` may write."""
    plain = {"str": str, "int": int, "float": float, "bool": bool}
    return {
        name_of(field, names): float if field.endswith("_ns") else plain[kind]
        for field, kind in _KINDS.items()
    }


def flatten(browser: Browser, names: Names) -> dict[str, str | int | float]:
    """Return all that is known, by name."""
    return {
        name_of(field, names): value / names.unit_ns if field.endswith("_ns") else value
        for field in _KINDS
        if (value := getattr(browser, field)) is not None
    }


def unflatten(flat: Mapping[str, Any], names: Names) -> Browser | None:
    """Read what `flatten` wrote; `None` if there is nothing of it. Other names are ignored.

    Raises:
        TypeError: a value is of the wrong kind; the message names it.
        ValueError: a number is out of range.
    """
    if flat.get(name_of("e2e_ns", names)) is None:
        return None
    read: dict[str, Any] = {}
    for field, kind in _KINDS.items():
        name = name_of(field, names)
        value = flat.get(name)
        if value is None:
            continue
        if kind == "str":
            read[field] = _text(name, value)
        elif field.endswith("_ns"):
            most = names.longest_ns / names.unit_ns
            read[field] = round(_number(name, value, most) * names.unit_ns)
        else:
            read[field] = _whole(name, value)
    return Browser(**read)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {type(value).__name__}, not text")
    return value


def _number(name: str, value: Any, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {type(value).__name__}, not a number")
    if not (isfinite(value) and 0 <= value <= most):
        raise ValueError(f"{name} is not a number from 0 to {most:g}")
    return value


def _whole(name: str, value: Any) -> int:
    number = _number(name, value, _MAX)
    if number != int(number):
        raise ValueError(f"{name} is not a whole number")
    return int(number)
