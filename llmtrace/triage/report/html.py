"""Render a triage as one HTML page, to send, print and keep.

The same words as on the terminal, with pictures: the metric over time, the change stage by stage,
the stages of a p95 request, the affected cohorts, the evidence for each cause. It has no script
and fetches nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final
from urllib.parse import quote

from llmtrace.dataset.case import Case, Window
from llmtrace.display.colours import NEAR, NEUTRAL, OVER, STAGE_COLOURS, WITHIN
from llmtrace.display.html_page import document
from llmtrace.display.summary_tables import ms, time_span
from llmtrace.errors import SourceError, explain_error
from llmtrace.triage.causes import RULES
from llmtrace.triage.report.runbooks import page as runbook
from llmtrace.triage.report.terminal import (
    METRIC_NAMES,
    PART_NAMES,
    between,
    facts,
    has_split,
    quality_text,
    signed,
    unit,
    verdict_words,
    when,
)
from llmtrace.triage.report.timeline import Timeline, timeline
from llmtrace.triage.result import (
    NAMED,
    Anatomy,
    Cohort,
    Contribution,
    Finding,
    Point,
    Result,
    Status,
)

_VERDICT_COLOURS: Final = {
    "no_change": WITHIN,
    "workload": STAGE_COLOURS["network"],
    "regression": OVER,
    "mixed": OVER,
    "improvement": WITHIN,
    "drift": OVER,
    "traffic": OVER,
    "new_workload": NEAR,
    "not_enough_data": NEAR,
}
_STATUS_COLOURS: Final[dict[Status, str]] = {
    "confirmed": OVER,
    "likely": "#FF8833",
    "possible": NEAR,
    "ruled_out": NEUTRAL,
    "unknown": NEUTRAL,
}
_STYLE: Final = """
h2 { margin-bottom: .6rem; }
h2 small { font-weight: 400; font-size: .85rem; color: var(--soft); }
svg { display: block; width: 100%; min-width: 40rem; height: auto; overflow: visible; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1.4rem; font-variant-numeric: tabular-nums; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif;
  font-variant-numeric: tabular-nums; }
svg .ink { fill: var(--ink); } svg .line { stroke: var(--line); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; margin: .4rem 0; }
dt { font-weight: 600; } dd { margin: 0; }
.cause { border-top: 1px solid var(--line); padding: .9rem 0; } .cause:first-of-type { border: 0; }
.cause h3 { margin: 0 0 .4rem; font-size: 1.02rem; }
.points td { white-space: normal; border: 0; padding: .12rem .7rem .12rem 0;
  vertical-align: top; overflow-wrap: anywhere; }
.points td:first-child { width: 3.2rem; text-align: right; font-weight: 600; }
.for { color: light-dark(#1a7a3a, #4cc07a); } .against { color: light-dark(#c02b36, #f27d85); }
pre.runbook { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .86rem; }
a { color: inherit; }
.action { border-left: 3px solid var(--ink); padding: .2rem 0 .2rem .8rem; margin: .6rem 0 .2rem; }
.split { display: flex; height: 1.9rem; margin: .3rem 0 .8rem; background: var(--track); }
.split span { overflow: hidden; border-right: 1.5px solid var(--card); color: #10141a;
  font-size: .74rem; line-height: 1.9rem; text-align: center; white-space: nowrap; }
.two { position: relative; height: .62rem; background: var(--track); border-radius: 3px;
  margin: .12rem 0; min-width: 12rem; }
.two i { display: block; height: 100%; border-radius: 3px; }
td.wide { width: 45%; } code { font-size: .86rem; word-break: break-all; white-space: normal; }
summary { cursor: pointer; color: var(--soft); overflow-wrap: anywhere; }
h1, dd, p { overflow-wrap: anywhere; } td.whose { white-space: normal; overflow-wrap: anywhere;
  min-width: 9rem; max-width: 24rem; }
@media (max-width: 40rem) { body { padding: 1.2rem .8rem 2rem; } section { padding: 1rem; }
  dl { grid-template-columns: 1fr; } dd { margin-bottom: .5rem; } }
@media print { svg { min-width: 0; } details > * { display: block; }
  details::details-content { content-visibility: visible; } }
"""
_WIDTH: Final = 960.0
_LEFT: Final = 64.0
_LATE: Final = 0.85
_MAX_MARK: Final = 24


def write_page(path: Path, result: Result, case: Case, traces: str | None = None) -> None:
    """Write the page to a file.

    Args:
        path: of the file.
        result: of a triage.
        case: that it is of.
        traces: the address that a trace's id is put after, as of a collector.

    Raises:
        SourceError: it cannot be written.
    """
    try:
        path.write_text(page(result, case, traces), encoding="utf-8")
    except OSError as error:
        raise SourceError(f"{path}: {explain_error(error)}") from error


def page(result: Result, case: Case, traces: str | None = None) -> str:
    """Return the page of a result and the case it is of; `traces` as of `write_page`."""
    seen = None if result.metric is None else timeline(case.rows, result.metric)
    parts = [
        _head(result),
        "" if seen is None else _timeline(result, seen, case),
        _change(result),
        _anatomy(result),
        _facts(result),
        _causes(result),
        _data(result, traces),
        _runbooks(result),
    ]
    return document(f"Triage: {_title(result)}", "\n".join(filter(None, parts)), _STYLE)


def _title(result: Result) -> str:
    metric = METRIC_NAMES.get(result.metric or "", "latency")
    return f"{metric}, p{100 * result.quantile:g}"


def _head(result: Result) -> str:
    words, _ = verdict_words(result)
    colour = _VERDICT_COLOURS[result.verdict]
    change = "not known"
    if result.before.p95 is not None and result.after.p95 is not None:
        change = f"{ms(result.before.p95)} → {ms(result.after.p95)} {unit(result)}"
    delta = (
        ""
        if result.delta_s is None
        else f" <small>{signed(result.delta_s)} {unit(result)}</small>"
    )
    lines = "".join(f'<p class="soft">{escape(line)}</p>' for line in when(result))
    return (
        f"<h1>{escape(_title(result))}</h1>"
        f'<p class="verdict">{change}{delta} '
        f'<span class="pill" style="--c:{colour}">{escape(words)}</span></p>'
        f"<p>{escape(result.reason)}</p>{lines}"
    )


# --- over time -----------------------------------------------------------------------------------


def _timeline(result: Result, seen: Timeline, case: Case) -> str:
    """Draw p50 and p95 bin by bin, the two windows as shades, the onset and events as lines."""
    height, top, bottom = 220.0, 16.0, 26.0
    start, end = float(seen.t[0]), float(seen.t[-1])
    finite = [value for value in seen.p95 if math.isfinite(value)]
    if not finite or end <= start:
        return ""
    most = nice(max(finite))

    def x(t: float) -> float:
        return _LEFT + (min(max(t, start), end) - start) / (end - start) * (_WIDTH - _LEFT)

    def y(seconds: float) -> float:
        return top + (1 - seconds / most) * (height - top - bottom)

    drawn = []
    for name, side in (("before", result.before), ("now", result.after)):
        if side.window is not None:
            drawn.append(_shade(name, side.window, x, top, height - bottom))
    for share in (0.0, 0.5, 1.0):
        at = y(share * most)
        drawn.append(
            f'<line class="line" x1="{_LEFT}" x2="{_WIDTH}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">'
            f"{ms(share * most)} ms</text>"
        )
    for name, line, colour in (("p50", seen.p50, NEUTRAL), ("p95", seen.p95, OVER)):
        steps = _steps([(x(t), y(v)) for t, v in zip(seen.t, line, strict=True)])
        drawn.append(
            f'<path d="{steps}" fill="none" stroke="{colour}" stroke-width="1.8" '
            f'stroke-linejoin="round"><title>{name}</title></path>'
        )
    marks = [] if result.onset is None else [(result.onset.best, "began", OVER)]
    marks += [(one.t, one.kind, NEUTRAL) for one in case.facts.events if start <= one.t <= end]
    for number, (t, text, colour) in enumerate(marks):
        late = x(t) > _LATE * _WIDTH  # no room to the right
        drawn.append(
            f'<line x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{top}" y2="{height - bottom}" '
            f'stroke="{colour}" stroke-dasharray="4 3"/><text class="ink" '
            f'x="{x(t) + (-4 if late else 4):.1f}" text-anchor="{"end" if late else "start"}" '
            f'y="{top + 10 + 13 * (number % 3)}">{escape(text[:_MAX_MARK])}</text>'
        )
    ticks = [start + share * (end - start) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    for place, (t, label) in enumerate(zip(ticks, _labels(ticks), strict=True)):
        anchor = "start" if place == 0 else ("end" if place == len(ticks) - 1 else "middle")
        drawn.append(
            f'<text x="{x(t):.1f}" y="{height - 6}" text-anchor="{anchor}">{label}</text>'
        )
    legend = " &nbsp; ".join(
        f'<i class="chip" style="background:{colour}"></i>{name}'
        for name, colour in (("p95", OVER), ("p50", NEUTRAL))
    )
    return (
        f"<section><h2>Over time <small>{legend}; {time_span(start, end, dated=True)}</small></h2>"
        f'<div class="scroll"><svg viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(_title(result))} over time">{"".join(drawn)}</svg></div></section>'
    )


def _labels(times: Sequence[float]) -> list[str]:
    """Write times so that no two are alike: with seconds, or the day, where it takes that."""
    labels: list[str] = []
    for form in ("%H:%M", "%H:%M:%S", "%m-%d %H:%M", "%Y-%m-%d %H:%M:%S"):
        labels = [time.strftime(form, time.localtime(t)) for t in times]
        if len(set(labels)) == len(labels):
            break
    return labels


def _shade(name: str, window: Window, x: Callable[[float], float], top: float, low: float) -> str:
    left, right = x(window.start), x(window.end)
    colour = OVER if name == "now" else NEUTRAL
    return (
        f'<rect x="{left:.1f}" y="{top}" width="{max(1.0, right - left):.1f}" '
        f'height="{low - top}" fill="{colour}" opacity="0.10"/>'
        f'<text x="{(left + right) / 2:.1f}" y="{top - 4}" text-anchor="middle">{name}</text>'
    )


def _steps(points: Sequence[tuple[float, float]]) -> str:
    """Write a line that is broken where nothing is known."""
    steps, drawing = [], False
    for x, y in points:
        known = math.isfinite(y)
        if known:
            steps.append(f"{'L' if drawing else 'M'}{x:.1f} {y:.1f}")
        drawing = known
    return "".join(steps)


def nice(value: float) -> float:
    """Return a round number that is not below a value, to end an axis with.

    Example:
        >>> nice(0.83), nice(1.7), nice(0.0)
        (1.0, 2.0, 1.0)
    """
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in _STEPS if step * power >= value)


_STEPS: Final = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


# --- where the change is -------------------------------------------------------------------------


def _change(result: Result) -> str:
    """Draw the change as a waterfall: each part begins where the one before ended."""
    before, after = result.before.p95, result.after.p95
    if before is None or after is None or not has_split(result):
        return ""
    shown = [one for one in result.contributions if one.seconds]
    reach = [before, after]
    at = before
    for one in shown:
        at += one.seconds
        reach.append(at)
    low, high = min(0.0, *reach), nice(max(reach))
    row, left, right = 26.0, 130.0, 220.0

    def x(seconds: float) -> float:
        return left + (seconds - low) / (high - low) * (_WIDTH - left - right)

    drawn = [_whole_bar("p95 before", before, 0, x, row)]
    at = before
    for number, one in enumerate(shown, 1):
        drawn.append(_step(one, at, number, x, row))
        at += one.seconds
    drawn.append(_whole_bar("p95 now", after, len(shown) + 1, x, row))
    height = (len(shown) + 2) * row
    still = [one.name for one in result.contributions if not one.seconds]
    note = f'<p class="soft">No part in it: {escape(", ".join(still))}.</p>' if still else ""
    return (
        "<section><h2>Where the change is <small>the parts add up to it exactly; "
        "faint = within noise</small></h2>"
        f'<div class="scroll"><svg viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{_aloud(shown)}">{"".join(drawn)}</svg></div>{note}</section>'
    )


def _whole_bar(
    name: str, seconds: float, number: int, x: Callable[[float], float], row: float
) -> str:
    y = number * row
    return (
        f'<text class="ink" x="120" y="{y + 17:.0f}" text-anchor="end">{name}</text>'
        f'<rect x="{x(0):.1f}" y="{y + 4:.0f}" width="{x(seconds) - x(0):.1f}" height="18" '
        f'rx="2" fill="{NEUTRAL}"/><text class="ink" x="{x(seconds) + 6:.1f}" '
        f'y="{y + 17:.0f}">{ms(seconds)} ms</text>'
    )


def _step(
    one: Contribution, at: float, number: int, x: Callable[[float], float], row: float
) -> str:
    y = number * row
    left, right = sorted((x(at), x(at + one.seconds)))
    colour = STAGE_COLOURS.get(one.name, "#4C8BB0")
    strength = "1" if one.significant else "0.35"
    interval = between(one.ci)
    figure = f"{signed(one.seconds)} ms" + (f"  ({interval})" if interval else "")
    return (
        f'<text class="ink" x="120" y="{y + 17:.0f}" text-anchor="end">'
        f"{escape(PART_NAMES.get(one.name, one.name))}</text>"
        f'<rect x="{left:.1f}" y="{y + 4:.0f}" width="{max(1.5, right - left):.1f}" height="18" '
        f'rx="2" fill="{colour}" opacity="{strength}"/>'
        f'<text x="{right + 6:.1f}" y="{y + 17:.0f}">{figure}</text>'
    )


def _aloud(shown: Sequence[Contribution]) -> str:
    return escape(", ".join(f"{one.name} {signed(one.seconds)} ms" for one in shown))


def _anatomy(result: Result) -> str:
    if result.anatomy is None:
        return ""
    both = (("before", result.anatomy.before), ("now", result.anatomy.after))
    scale = max(sum(parts.values()) for _, parts in both) or 1.0
    bars = []
    for name, parts in both:
        pieces = "".join(
            f'<span style="width:{100 * seconds / scale:.2f}%;'
            f'background:{STAGE_COLOURS.get(stage, NEUTRAL)}" title="{stage} {ms(seconds)} ms">'
            f"{stage + ' ' + ms(seconds) if seconds / scale > _ROOM else ''}</span>"
            for stage, seconds in parts.items()
            if seconds > 0
        )
        bars.append(f'<div class="soft">{name}</div><div class="split">{pieces}</div>')
    return (
        "<section><h2>What a request at the p95 is made of <small>milliseconds; adds up to the "
        f"p95</small></h2>{''.join(bars)}{_legend(result.anatomy)}</section>"
    )


def _legend(anatomy: Anatomy) -> str:
    """Return each stage's figures in words: no colour is needed to read them."""
    items = "".join(
        f'<span><i class="chip" style="background:{STAGE_COLOURS.get(stage, NEUTRAL)}"></i>'
        f"{escape(stage)} {ms(before)} → {ms(after)}</span>"
        for stage, before, after in (
            (stage, anatomy.before.get(stage, 0.0), anatomy.after.get(stage, 0.0))
            for stage in dict.fromkeys((*anatomy.before, *anatomy.after))
        )
        if before or after
    )
    return f'<div class="legend">{items}</div>'


_ROOM: Final = 0.1  # of the bar: below it no name fits


# --- who, and why --------------------------------------------------------------------------------


def _facts(result: Result) -> str:
    lines = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts(result)
    )
    return (
        "<section><h2>Who is hit, and by what work</h2>"
        f"<dl>{lines}</dl>{_cohorts(result)}</section>"
    )


def _cohorts(result: Result) -> str:
    if not result.cohorts:
        return ""
    rows = "".join(_cohort(one) for one in result.cohorts)
    return (
        '<div class="scroll"><table><tr><th>requests with</th><th></th>'
        '<th class="n">p95 of all others</th><th class="n">requests</th></tr>'
        f"{rows}</table></div>"
    )


def _cohort(one: Cohort) -> str:
    names = ", ".join(f"{name} = {value}" for name, value in one.attributes.items())
    bars = "".join(
        f'<div class="two"><i style="width:{100 * min(max(share, 0.0), 1.0):.1f}%;'
        f'background:{colour}"></i></div><div class="soft">{share:.0%} of {what}</div>'
        for share, what, colour in (
            (one.excess_share, "what is slow beyond expectation", OVER),
            (one.traffic_share, "traffic", NEUTRAL),
        )
    )
    return (
        f'<tr><td class="whose">{escape(names)}</td><td class="wide">{bars}</td>'
        f'<td class="n">{ms(one.p95_without)} ms</td><td class="n">{one.n:,}</td></tr>'
    )


def _causes(result: Result) -> str:
    if not result.causes:
        return ""
    named = [one for one in result.causes if one.status in NAMED]
    cards = "".join(_cause(one) for one in named)
    if not named:
        cards = "<p>None is supported by the evidence.</p>"
    return f"<section><h2>Causes</h2>{cards}{_others(result.causes)}</section>"


def _cause(one: Finding) -> str:
    lines = [
        f'<tr><td class="{kind}">{_points(point)}</td><td>{escape(point.text)}</td></tr>'
        for kind, points in (("for", one.evidence), ("against", one.against))
        for point in points
    ]
    lines += [f"<tr><td>?</td><td>would tell: {_marked(text)}</td></tr>" for text in one.missing]
    action = f'<p class="action">{_marked(one.action)}</p>' if one.action else ""
    runbook = (
        f'<p class="soft"><a href="#runbook-{escape(one.id)}">Runbook</a></p>'
        if one.id in RULES
        else ""
    )
    return (
        f'<div class="cause"><h3>{escape(one.id)} '
        f'<span class="pill" style="--c:{_STATUS_COLOURS[one.status]}">{one.status}</span> '
        f'<small class="soft">{one.score:+d} points</small></h3>'
        f'<table class="points">{"".join(lines)}</table>{action}{runbook}</div>'
    )


def _marked(text: str) -> str:
    """Return text of ours as HTML: what stands between backticks is to be typed."""
    parts = escape(text).split("`")
    return "".join(f"<code>{one}</code>" if n % 2 else one for n, one in enumerate(parts))


def _points(point: Point) -> str:
    return f"{point.points:+d}" if point.points else "·"


def _others(causes: Sequence[Finding]) -> str:
    return "".join(_group(status, words, causes) for status, words in _REST)


_REST: Final[tuple[tuple[Status, str], ...]] = (
    ("ruled_out", "Ruled out"),
    ("unknown", "Cannot tell"),
)


def _group(status: Status, words: str, causes: Sequence[Finding]) -> str:
    mine = [one for one in causes if one.status == status]
    if not mine:
        return ""
    lines = "".join(f"<dt>{escape(one.id)}</dt><dd>{escape(_why(one))}</dd>" for one in mine)
    names = escape(", ".join(one.id for one in mine))
    return f"<details><summary>{words}: {names}</summary><dl>{lines}</dl></details>"


def _why(one: Finding) -> str:
    return "; ".join([*(point.text for point in one.against), *one.missing]) or "nothing for it"


def _runbooks(result: Result) -> str:
    """Return the runbooks of the causes that are named, which the causes link to."""
    mine = [one.id for one in result.causes if one.status in NAMED and one.id in RULES]
    texts = "".join(
        f'<details id="runbook-{escape(cause)}" open><summary>{escape(cause)}</summary>'
        f'<pre class="runbook">{escape(runbook(cause))}</pre></details>'
        for cause in mine
    )
    return f"<section><h2>Runbooks</h2>{texts}</section>" if texts else ""


def _data(result: Result, traces: str | None) -> str:
    return f"<section><h2>The data</h2>{''.join(_data_lines(result, traces))}</section>"


def _data_lines(result: Result, traces: str | None) -> Iterator[str]:
    yield f"<p>{escape(quality_text(result))}</p>"
    for text in (*result.quality.warnings, *(f"would settle it: {one}" for one in result.settle)):
        yield f"<p>! {escape(text)}</p>"
    for name, ids in result.exemplars.items():
        if ids:
            listed = " ".join(_trace(one, traces) for one in ids)
            yield f'<p class="soft">traces nearest the p95, {escape(name)}: {listed}</p>'


def _trace(trace: str, traces: str | None) -> str:
    shown = f"<code>{escape(trace)}</code>"
    if traces is None:
        return shown
    return f'<a href="{escape(traces + quote(trace))}">{shown}</a>'
