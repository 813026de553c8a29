"""The frame of the collector's HTML pages: style, security policy, navigation and number formats.

No page has a script or loads anything: the policy allows its one style and nothing else. Bars are
SVG with classes for colours, as a policy without `unsafe-inline` forbids style attributes. All
text from outside goes through `text`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import Final

from starlette.responses import HTMLResponse, Response

from llmtrace.core.sanitize import printable
from llmtrace.core.stages import DRAWN_ORDER
from llmtrace.display import html_page
from llmtrace.display.colours import STAGE_COLOURS

UNKNOWN: Final = '<span class="none">not reported</span>'
_NS: Final = 1_000_000_000
_MS: Final = 1_000
_STYLE: Final = files(__package__).joinpath("page_frame.css").read_text(encoding="utf-8")


def _colours(stages: Mapping[str, str]) -> str:
    return " ".join(f".s-{stage} {{ fill: {colour}; }}" for stage, colour in stages.items())


STYLE: Final = f"{_STYLE}{_colours(STAGE_COLOURS)}\n"


def csp_hash(source: str) -> str:
    """Return the hash by which a Content-Security-Policy allows an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        f"default-src 'none'; style-src {csp_hash(html_page.STYLE + STYLE)}; img-src data:; "
        "form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def page_response(title: str, body: str, status: int = 200) -> Response:
    """Return a page; in the HTML of `body`, text from outside is escaped already."""
    return HTMLResponse(
        html_page.document(f"{printable(title)} · llmtrace", body, STYLE), status, HEADERS
    )


def navigation(up: str = "") -> str:
    """Return the links to the other pages; `up` is the relative path to their folder."""
    return (
        f'<nav aria-label="Pages"><a href="{up or "./"}">Now</a>'
        f'<a href="{up}requests">Requests</a></nav>'
    )


def text(value: object) -> str:
    """Return a text as HTML shows it, whatever is in it."""
    return escape(printable(str(value)))


def ms(seconds: float | None) -> str:
    """Write seconds as milliseconds, as HTML."""
    return UNKNOWN if seconds is None else f"{_number(seconds * _MS)} ms"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= _MS else f"{value:,.1f}"


def moment(ns: int) -> str:
    """Write unix nanoseconds as a time in UTC, to the millisecond, as HTML."""
    at = datetime.fromtimestamp(ns // _NS, UTC)
    millis = ns % _NS // 1_000_000
    return (
        f'<time datetime="{at:%Y-%m-%dT%H:%M:%S}.{millis:03d}Z">'
        f"{at:%Y-%m-%d %H:%M:%S}.{millis:03d} UTC</time>"
    )


def swatch(stage: str) -> str:
    """Draw the colour of a stage, beside its name."""
    return (
        f'<svg class="swatch" viewBox="0 0 1 1" aria-hidden="true">'
        f'<rect width="1" height="1" class="s-{stage}"/></svg>'
    )


def legend() -> str:
    """Return the colours of all stages."""
    items = "".join(f"<li>{swatch(stage)}{stage}</li>" for stage in DRAWN_ORDER)
    return f'<ul class="legend" aria-label="Colours of the stages">{items}</ul>'


def table(heads: Iterable[str], lines: str) -> str:
    """Return a table of HTML lines; a column whose head begins with `>` holds numbers."""
    columns = "".join(
        f'<th scope="col" class="n">{head[1:]}</th>'
        if head.startswith(">")
        else f'<th scope="col">{head}</th>'
        for head in heads
    )
    return (
        f'<div class="scroll"><table class="cards"><thead><tr>{columns}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def bar(pieces: Iterable[tuple[str, float, float]], whole: float, label: str) -> str:
    """Draw intervals on one scale.

    Args:
        pieces: class, start and length of each, in the unit of `whole`.
        whole: what the full width stands for.
        label: a description, for screen readers.
    """
    drawn = "".join(
        f'<rect class="{kind}" x="{1000 * begin / whole:.2f}" '
        f'width="{max(1000 * length / whole, 1.5):.2f}" height="10"/>'
        for kind, begin, length in pieces
        if whole > 0
    )
    return (
        '<svg class="bar" viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" '
        f'aria-label="{text(label)}">{drawn}</svg>'
    )


def stage_bar(stages: Mapping[str, float], whole: float) -> str:
    """Draw the known stages of a request end to end, in seconds, on a scale of `whole` seconds."""
    pieces, at, said = [], 0.0, []
    for name in DRAWN_ORDER:
        if seconds := stages.get(name):
            pieces.append((f"s-{name}", at, seconds))
            at += seconds
            said.append(f"{name} {_number(seconds * _MS)} ms")
    return bar(pieces, whole, ", ".join(said) or "no stage is known")
