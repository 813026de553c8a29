"""Show a budget and the measured requests as an HTML page.

One file that loads nothing from elsewhere: light or dark as the system is, readable in black and
white and without a mouse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib.resources import files
from typing import Final

from llmtrace.budget_analysis.report import Comparison, Report
from llmtrace.budget_analysis.terminal import interval_text, notes
from llmtrace.display.colours import NEAR, NEUTRAL, OVER, STAGE_COLOURS, WITHIN
from llmtrace.display.html_page import document
from llmtrace.display.summary_tables import ms

_STATES: Final = {
    "within": ("✓", "within", WITHIN),
    "over": ("✗", "over", OVER),
    "unclear": ("?", "unclear", NEAR),
    "no limit": ("", "no limit set", NEUTRAL),
    "not reported": ("", "not reported", NEUTRAL),
}
_STYLE: Final = files(__package__).joinpath("html.css").read_text(encoding="utf-8")
_NARROW: Final = 0.055  # of the bar: below it no name fits


def page(reports: Sequence[Report], source: str, about: Sequence[str] = ()) -> str:
    """Return the page of reports, with the source of requests as a heading, and notes on them."""
    sections = "\n".join(_section(one) for one in reports)
    read = "".join(f'<p class="soft">{escape(note)}</p>\n' for note in about)
    body = (
        "<h1>Latency budget</h1>\n"
        f'<p class="soft">Requests from {escape(source)}. Durations in milliseconds.</p>\n'
        f"{read}{sections}"
    )
    return document("Latency budget", body, _STYLE)


def _section(report: Report) -> str:
    budget = report.budget
    high = f"p{100 * budget.objective:g}"
    head = f"<h2>{escape(budget.name)}</h2>"
    if report.scope:
        head += f'<p class="soft">{escape(report.scope)}</p>'
    if report.high_s is None:
        return f"<section>{head}<p>{escape(report.why_none)}</p></section>"
    whole = report.metrics[0]
    limit = "no total is set" if budget.total_s is None else f"of {ms(budget.total_s)} ms allowed"
    remarks = "".join(f'<p class="soft">{escape(one)}</p>' for one in notes(report))
    return (
        f"<section>{head}"
        f'<p class="verdict">{high} {ms(whole.line.high_s)} ms <small>{limit}</small> '
        f"{_pill(whole)}</p>"
        f"{_bars(report, high)}{_table(report, high)}{remarks}</section>"
    )


def _pill(one: Comparison) -> str:
    sign, words, colour = _STATES[one.state]
    return f'<span class="pill" style="--c:{colour}">{sign} {words}</span>'


def _bars(report: Report, high: str) -> str:
    """Draw what is allowed and what is spent as two bars of one scale, the total as a line."""
    spent = [(one.name, one.spent_s or 0.0) for one in report.stages]
    allowed = [(one.name, one.allowed_s or 0.0) for one in report.stages]
    buffer_s, total = report.budget.buffer_s, report.budget.total_s
    allowed_s = sum(seconds for _, seconds in allowed) + buffer_s
    scale = max(sum(seconds for _, seconds in spent), allowed_s, total or 0.0) or 1.0
    # Only the last bar has the total's label.
    drawn = ""
    if allowed_s:
        drawn += _bar("allowed", _pieces(allowed, scale, buffer_s), _mark(total, scale))
    label = "" if total is None else f"<b>total {ms(total)}</b>"
    drawn += _bar(f"{high} request", _pieces(spent, scale), _mark(total, scale, label))
    return f'<div class="whole" role="img" aria-label="{_aloud(report, high)}">{drawn}</div>'


def _bar(name: str, pieces: Iterable[str], mark: str) -> str:
    track = f'<div class="track">{"".join(pieces)}{mark}</div>'
    return f'<div class="bar"><div class="name">{name}</div>{track}</div>'


def _mark(total: float | None, scale: float, label: str = "") -> str:
    if total is None:
        return ""
    at = 100 * total / scale
    late = " late" if at > 80 else ""  # noqa: PLR2004 - percent: no room to the right
    return f'<div class="mark{late}" style="left:{at:.2f}%">{label}</div>'


def _pieces(
    parts: Sequence[tuple[str, float]], scale: float, buffer_s: float = 0.0
) -> Iterator[str]:
    for name, seconds in parts:
        if seconds > 0:
            share = seconds / scale
            text = name if share > _NARROW * (1 + len(name) / 12) else ""
            yield (
                f'<span style="width:{100 * share:.3f}%;background:{STAGE_COLOURS[name]}" '
                f'title="{name} {ms(seconds)} ms">{text}</span>'
            )
    if buffer_s:
        text = "buffer" if buffer_s / scale > _NARROW else ""
        yield (
            f'<span class="free" style="width:{100 * buffer_s / scale:.3f}%" '
            f'title="buffer {ms(buffer_s)} ms">{text}</span>'
        )


def _aloud(report: Report, high: str) -> str:
    spent = ", ".join(
        f"{one.name} {ms(one.spent_s)} of {ms(one.allowed_s)} ms"
        for one in report.stages
        if one.spent_s is not None
    )
    return escape(f"A request at the {high} spends: {spent}")


def _table(report: Report, high: str) -> str:
    head = (
        '<tr><th>stage</th><th class="n">allowed</th>'
        f'<th class="n">{high} request</th><th>used</th>'
        f'<th class="n">stage {high}, 95% CI</th><th>{high} in budget?</th>'
        '<th class="n">requests within</th></tr>'
    )
    allowed = sum(one.allowed_s or 0.0 for one in report.stages)
    total = (
        f'<tr class="sum"><td>sum</td><td class="n">{ms(allowed) if allowed else "-"}</td>'
        f'<td class="n">{ms(report.high_s)}</td><td></td>'
        '<td class="n lies">do not add</td><td></td><td></td></tr><tr class="gap"><td></td></tr>'
    )
    rows = "".join(_row(one) for one in report.stages)
    metrics = "".join(_row(one) for one in report.metrics)
    return f'<div class="scroll"><table>{head}{rows}{total}{metrics}</table></div>'


def _row(one: Comparison) -> str:
    colour = STAGE_COLOURS.get(one.name)
    chip = f'<span class="chip" style="background:{colour}"></span>' if colour else ""
    used = ""
    if one.used is not None:
        fill = _STATES[one.state][2]
        used = (
            f'<span class="used"><i style="width:{100 * min(one.used, 1):.1f}%;'
            f'background:{fill}"></i></span>{one.used:.0%}'
        )
    share = ""
    if one.share is not None:
        good, least, most = one.share
        share = f'{good:.1%} <span class="lies">{least:.0%} to {most:.0%}</span>'
    lies = f' <span class="lies">{interval_text(one)}</span>' if one.line.known else ""
    return (
        f'<tr><td>{chip}{one.name}</td><td class="n">{ms(one.allowed_s)}</td>'
        f'<td class="n">{ms(one.spent_s)}</td><td>{used}</td>'
        f'<td class="n">{ms(one.line.high_s)}{lies}</td><td>{_pill(one)}</td>'
        f'<td class="n">{share}</td></tr>'
    )
