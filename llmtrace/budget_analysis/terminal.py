"""Show a budget and the measured requests on a terminal."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Final, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from llmtrace.budget_analysis.report import Comparison, Report
from llmtrace.display.summary_tables import ms, outcomes_text

_STATES: Final = {
    "within": "✓ within",
    "over": "✗ over",
    "unclear": "? unclear",
    "no limit": "no limit",
    "not reported": "not reported",
}
_STYLES: Final = {"✓": "green", "✗": "red", "?": "yellow"}
_WIDEST: Final = 1000  # no terminal is as wide
_READABLE: Final = 100
_Cell = TypeVar("_Cell")


def heading(report: Report) -> str:
    """Return the state of the whole in one line."""
    budget, whole = report.budget, report.metrics[0]
    high = f"p{100 * budget.objective:g}"
    if report.high_s is None:
        return f"{budget.name}: {report.why_none}"
    limit = "no total is set" if budget.total_s is None else f"of {ms(budget.total_s)} ms allowed"
    state = _STATES[whole.state]
    return f"{budget.name}: {high} {ms(whole.line.high_s)} ms {limit}  {state}"


@dataclass(frozen=True, slots=True)
class _Layout:
    """What the table has room for: characters of a bar and between columns, and some columns."""

    bar: int = 0
    between: int = 1
    share: bool = True
    interval: bool = True
    used: bool = True


# The widest first: bars are left out before figures are.
_LAYOUTS: Final = (
    _Layout(20, 2), _Layout(10, 2), _Layout(), _Layout(share=False),
    _Layout(share=False, interval=False), _Layout(share=False, interval=False, used=False),
)  # fmt: skip


def table(report: Report, width: int) -> Table:
    """Lay the stages out: the allocation, the time of the request at the objective, its share."""
    console = Console(width=_WIDEST)
    for layout in _LAYOUTS:
        shown = _table(report, layout)
        if console.measure(shown).maximum <= width:
            break
    return shown


def _table(report: Report, layout: _Layout) -> Table:
    high = f"p{100 * report.budget.objective:g}"
    shown = Table(box=None, pad_edge=False, padding=(0, layout.between, 0, 0), header_style="bold")
    names = ["stage", "allowed", f"{high} request", "used", f"stage {high}", "95% CI",
             f"{high} in budget?", "within"]  # fmt: skip
    for name in _chosen(names, layout):
        left = name in {"stage", "used"} or name.endswith("?")
        # Where there is little room a heading takes as many lines as it has words.
        heading_text = name if layout == _LAYOUTS[0] else name.replace(" ", "\n")
        shown.add_column(heading_text, justify="left" if left else "right", no_wrap=True)
    for one in report.stages:
        shown.add_row(*_chosen(_cells(one, layout.bar), layout))
    if report.high_s is not None:
        allowed = sum(one.allowed_s or 0.0 for one in report.stages)
        shown.add_row("sum", ms(allowed), ms(report.high_s))
    shown.add_row()
    for one in report.metrics:
        shown.add_row(*_chosen(_cells(one, layout.bar), layout))
    return shown


def _chosen(cells: list[_Cell], layout: _Layout) -> list[_Cell]:
    there = (True, True, True, layout.used, layout.used, layout.interval, True, layout.share)
    return [cell for cell, shown in zip(cells, there, strict=True) if shown]


def _cells(one: Comparison, bar: int) -> list[Text | str]:
    state = _STATES[one.state]
    style = _STYLES.get(state[:1], "")
    share = "" if one.share is None else f"{one.share[0]:.1%}"
    return [
        one.name,
        ms(one.allowed_s),
        ms(one.spent_s),
        _bar(one.used, bar),
        ms(one.line.high_s),
        interval_text(one),
        Text(state, style),
        share,
    ]


def interval_text(one: Comparison) -> str:
    """Return between what a percentile lies with 95 % confidence; `?`: an end is not known."""
    if not one.line.known:
        return ""
    ends = (one.line.interval.low, one.line.interval.high)
    return " to ".join("?" if end is None else ms(end) for end in ends)


def _bar(used: float | None, width: int) -> str:
    """Draw the share used; the end of the bar is the whole allocation."""
    if used is None:
        return ""
    if not width:
        return f"{used:>4.0%}"
    full = min(round(used * width), width)
    return f"{'█' * full}{'░' * (width - full)} {used:>4.0%}"


def eats(report: Report) -> str | None:
    """Return which stage is furthest above its allocation, if one is."""
    stage = report.eats
    if stage is None:
        return None
    figures = f"{ms(stage.spent_s)} ms, and {ms(stage.allowed_s)} are allowed"
    if report.state == "over":
        return f"{stage.name} eats the budget: {figures}."
    return f"{stage.name} takes {figures}; the others leave room for it."


def remarks(report: Report, width: int) -> str:
    """Return the remarks below the table, as they fit on a terminal of this width."""
    lines = notes(report)
    if width <= _WIDEST:
        lines = [textwrap.fill(one, min(width, _READABLE)) for one in lines]
    return "\n".join(lines)


def notes(report: Report) -> list[str]:
    """Return the stage over budget, what the figures are, how certain they are, and outcomes."""
    high = f"p{100 * report.budget.objective:g}"
    lines = []
    if (words := eats(report)) is not None:
        lines.append(words)
    lines.append(
        f"{high} request: what a request at the {high} of e2e spends in each stage, an estimate "
        "from all requests by Harrell and Davis's weights, which adds up. Stage "
        f"{high} and its 95% CI: of that stage or metric alone, the time of one request by rank; "
        "these never add up, and the limit is compared with them."
    )
    whole = report.metrics[0].line.high_s
    if report.high_s is not None and whole is not None and ms(report.high_s) != ms(whole):
        lines.append(
            f"So the sum of {ms(report.high_s)} ms is the estimate, and the {high} of "
            f"{ms(whole)} ms that of one request."
        )
    if report.high_s is not None and not report.enough:
        lines.append(f"Too few requests for an upper bound of the {high}: take it as a hint.")
    missing = [one.name for one in report.stages if not one.line.known]
    if missing and report.high_s is not None:
        lines.append(f"Not reported: {', '.join(missing)}; that time lies in the others.")
    lines.append(outcomes_text(report.summary))
    return lines
