"""How a browser experienced one response: its wait, consumer time and painting.

`Browser` is what a page's beacon reports, unchanged. The row that it was joined to keeps it, so
that nothing is lost of what either side measured. The same figures have three names: in a beacon,
in a row's JSON and on the wire; `flatten` and `unflatten` write and read them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from math import isfinite
from typing import Any, Final, NamedTuple

_DAY_NS: Final = 86_400 * 1_000_000_000
_MAX: Final = 1 << 53


def _figure(meaning: str, default: Any = None) -> Any:
    """Declare a figure, with its meaning for docs/reference/semconv.md."""
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True, slots=True, kw_only=True)
class Browser:
    """What a page measured of one response, by its own clock. `None` = it could not know.

    Consumer time is the page's where it has not requested the next piece of the stream, or where
    a long task kept it from taking one.
    """

    kind: str = _figure(
        "`fetch` or `eventsource`; `whole` if the page read the response at once", "fetch"
    )
    outcome: str | None = _figure("the outcome as the page saw it; absent if not known")
    error_type: str | None = _figure("name of the exception, or `HTTP503`")
    http_status: int | None = _figure("HTTP status of the response that the page got")
    protocol: str | None = _figure("protocol to the server: `http/1.1`, `h2`, `h3`")
    e2e_ns: int = _figure(
        "start to the end of the stream, or to the paint of its last content", MISSING
    )
    ttft_ns: int | None = _figure("start to the first content that the page read")
    held_before_ns: int = _figure("consumer time of the page before the first content", 0)
    held_after_ns: int = _figure("consumer time of the page after the first content", 0)
    blocked_ns: int | None = _figure(
        "long tasks while the page waited for data; a part of both consumer times"
    )
    first_byte_ns: int | None = _figure("start to the first data of the response body")
    last_content_ns: int | None = _figure("start to the last content")
    max_gap_ns: int | None = _figure("longest wait for data after the first content")
    client_wait_ns: int | None = _figure(
        "time before the request was sent, without DNS, TCP and TLS"
    )
    dns_ns: int | None = _figure("DNS lookup; 0 on an open connection")
    connect_ns: int | None = _figure("TCP or QUIC handshake")
    tls_ns: int | None = _figure("TLS handshake")
    gateway_ns: int | None = _figure(
        "self time of gateways, as `Server-Timing` reported to the page"
    )
    chunks: int = _figure("chunks with content", 0)
    renders: int | None = _figure("times the page changed the document, from the first content on")
    paints: int | None = _figure("frames that showed such a change")
    first_paint_ns: int | None = _figure("start to the first such frame")
    paint_lag_ns: int | None = _figure("content read to content painted, mean")
    max_paint_lag_ns: int | None = _figure("content read to content painted, longest")
    long_frames: int | None = _figure("frames longer than 50 ms")
    long_frames_total_ns: int | None = _figure("duration of all frames longer than 50 ms")
    hidden_ns: int | None = _figure("time in which the page was not visible")
    app_e2e_ns: int | None = _figure("the e2e latency that the application's server measured")
    app_ttft_ns: int | None = _figure("the TTFT that the application's server measured")
    app_held_ns: int | None = _figure("the consumer time that the application's server measured")
    inconsistent: str | None = _figure(
        "figures that contradict others; `server`: the server's wait is longer"
    )


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
    for figure, kind in _KINDS.items():
        name = name_of(figure, names)
        value = flat.get(name)
        if value is None:
            continue
        if kind == "str":
            read[figure] = _text(name, value)
        elif figure.endswith("_ns"):
            most = names.longest_ns / names.unit_ns
            read[figure] = round(_number(name, value, most) * names.unit_ns)
        else:
            read[figure] = _whole(name, value)
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
