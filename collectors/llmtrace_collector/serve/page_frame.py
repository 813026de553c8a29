"""The frame of the pages that are made here: their style, policy, links to each other and numbers.

No page has a script, and none loads anything: the policy allows its one style and nothing else.
Bars are SVG, whose colours are classes, since a policy without `unsafe-inline` forbids style
attributes. All text from outside goes through `text`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from html import escape
from typing import Final

from starlette.responses import HTMLResponse, Response

from llmtrace.core.sanitize import printable
from llmtrace.display.colours import STAGE_COLOURS
from llmtrace.display.html_page import document
from llmtrace.semconv.attributes import ORDER

UNKNOWN: Final = '<span class="none">not reported</span>'
_NS: Final = 1_000_000_000
_MS: Final = 1_000
_STYLE: Final = """
body { max-width: 96rem; padding: 1rem 1.25rem 3rem; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; margin-bottom: 1rem;
  font-size: .92rem; }
a { color: var(--link); } a:focus-visible, button:focus-visible, input:focus-visible,
select:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
:root { --link: #0b5cad; --bad: #b3261e; --good: #17743b; --field: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --link: #7db8ff; --bad: #ff8a80; --good: #5fd38d;
  --field: #0d1013; } }
h1 { overflow-wrap: anywhere; } h2 { margin-bottom: .6rem; }
section { padding: 1rem 1.1rem; margin: 1rem 0; }
.none { color: var(--soft); font-style: italic; } .bad { color: var(--bad); }
.verdict { font-size: 1.25rem; font-weight: 600; margin: .4rem 0; }
code, .id { font: .86em ui-monospace, monospace; overflow-wrap: anywhere; }
form { display: flex; flex-wrap: wrap; gap: .6rem .9rem; align-items: end; }
label { display: flex; flex-direction: column; font-size: .8rem; color: var(--soft); gap: .15rem; }
input, select, button { font: inherit; font-size: .9rem; color: var(--ink);
  background: var(--field); border: 1px solid var(--soft); border-radius: 6px;
  padding: .3rem .5rem; max-width: 100%; }
form input { width: 9.5rem; } form input[name=id] { width: 19rem; }
button { font-weight: 600; padding: .32rem 1rem; cursor: pointer; }
svg.bar { display: block; width: 100%; height: .85rem; background: var(--track);
  border-radius: 3px; }
svg.gaps { display: block; width: 100%; height: 6rem; background: var(--track); }
.ends { display: flex; justify-content: space-between; font-size: .85rem; margin: .1rem 0 .6rem; }
h3 { font-size: 1rem; margin: .9rem 0 .2rem; }
svg.swatch { width: .75rem; height: .75rem; margin-right: .4rem; vertical-align: -.05rem; }
.mark { fill: var(--ink); } .fine { fill: var(--soft); } .failed { fill: var(--bad); }
ul.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; list-style: none; padding: 0;
  margin: .5rem 0; font-size: .85rem; }
td.wide { width: 36%; min-width: 12rem; }
td.name { max-width: 10rem; overflow: hidden; text-overflow: ellipsis; }
dl { display: grid; grid-template-columns: minmax(8rem, max-content) 1fr; gap: .2rem 1rem;
  margin: 0; } dt { color: var(--soft); overflow-wrap: anywhere; }
dd { margin: 0; overflow-wrap: anywhere; }
.pages { display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; margin: .7rem 0; }
@media (max-width: 44rem) {
  body { padding: .7rem .7rem 2rem; } section { padding: .8rem; }
  form input, form input[name=id], form select { width: 100%; } form label { flex: 1 1 8.5rem; }
  dl { grid-template-columns: 1fr; } dd { margin-bottom: .3rem; }
  table.cards, table.cards tbody { display: block; } table.cards thead { display: none; }
  table.cards tr { display: flex; flex-wrap: wrap; gap: .1rem .9rem; padding: .5rem 0;
    border-bottom: 1px solid var(--line); }
  table.cards td { border: 0; padding: 0; white-space: normal; max-width: 100%; }
  table.cards td[data-of]:not(:empty)::before { content: attr(data-of) " "; color: var(--soft);
    font-size: .8rem; }
  table.cards td.wide { width: 100%; }
}
"""


def _colours(stages: Mapping[str, str]) -> str:
    return " ".join(f".s-{stage} {{ fill: {colour}; }}" for stage, colour in stages.items())


STYLE: Final = f"{_STYLE}{_colours(STAGE_COLOURS)}\n"


def _digest() -> str:
    found = re.search(r"<style>(.*?)</style>", document("", "", STYLE), re.DOTALL)
    assert found is not None  # noqa: S101 - the frame has one
    return base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()


HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_digest()}'; img-src data:; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def page_response(title: str, body: str, status: int = 200) -> Response:
    """Return a page; `body` is HTML in which all from outside is escaped."""
    return HTMLResponse(document(f"{printable(title)} · llmtrace", body, STYLE), status, HEADERS)


def navigation(up: str = "") -> str:
    """Return the links to the other pages; `up` leads to the folder that all are in."""
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
    items = "".join(f"<li>{swatch(stage)}{stage}</li>" for stage in ORDER)
    return f'<ul class="legend" aria-label="Colours of the stages">{items}</ul>'


def bar(pieces: Iterable[tuple[str, float, float]], whole: float, label: str) -> str:
    """Draw intervals on one scale.

    Args:
        pieces: class of each, where it begins and how long it is; in the unit of `whole`.
        whole: what the width stands for.
        label: what it shows, for those who do not see it.
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
    for name in ORDER:
        if seconds := stages.get(name):
            pieces.append((f"s-{name}", at, seconds))
            at += seconds
            said.append(f"{name} {_number(seconds * _MS)} ms")
    return bar(pieces, whole, ", ".join(said) or "no stage is known")
