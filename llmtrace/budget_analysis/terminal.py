"""Show a budget and the measured requests on a terminal."""

from __future__ import annotations

import textwrap
from typing import Final

from rich.table import Table
from rich.text import Text

from llmtrace.budget_analysis.report import Comparison, Report
from llmtrace.display.summary_tables import ms, outcomes_text

_STATES: Final = {
    "within": "✓ within",
    "near": "! near",
    "over": "✗ over",
    "unclear": "? unclear",
    "no limit": "no limit set",
    "not reported": "not reported",
}
_STYLES: Final = {"✓": "green", "!": "yellow", "✗": "red", "?": "yellow"}
_BAR: Final = 20
_SHORT_BAR: Final = 10
_WIDE: Final = 90
_WIDEST: Final = 1000  # no terminal is as wide
_READABLE: Final = 100


def heading(report: Report) -> str:
    """Return the state of the whole in one line."""
    budget, whole = report.budget, report.metrics[0]
    high = f"p{100 * budget.objective:g}"
    if report.high_s is None:
        return f"{budget.name}: no request that it covers succeeded"
    limit = "no total is set" if budget.total_s is None else f"of {ms(budget.total_s)} ms allowed"
    state = _STATES[whole.state]
    return f"{budget.name}: {high} {ms(whole.line.high_s)} ms {limit}  {state}"


def table(report: Report, width: int) -> Table:
    """Lay the stages out: the allocation, the time of the request at the objective, its share."""
    bar = _BAR if width >= _WIDE else _SHORT_BAR
    high = f"p{100 * report.budget.objective:g}"
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name, left in (
        ("stage", True),
        ("allowed", False),
        (f"{high} request", False),
        ("used", True),
        (f"{high} request in budget?", True),
        (f"stage {high}", False),
        ("within", False),
    ):
        # Where there is little room a heading takes as many lines as it has words.
        heading_text = name if width >= _WIDE else name.replace(" ", "\n")
        shown.add_column(heading_text, justify="left" if left else "right", no_wrap=True)
    for one in report.stages:
        shown.add_row(*_cells(one, bar))
    if report.high_s is not None:
        allowed = sum(one.allowed_s or 0.0 for one in report.stages)
        shown.add_row("sum", ms(allowed), ms(report.high_s), "", "", "")
    shown.add_row()
    for one in report.metrics:
        shown.add_row(*_cells(one, bar))
    return shown


def _cells(one: Comparison, bar: int) -> list[Text | str]:
    state = _STATES[one.state]
    style = _STYLES.get(state[:1], "")
    share = "" if one.share is None else f"{one.share[0]:.1%}"
    return [
        one.name,
        ms(one.allowed_s),
        ms(one.spent_s),
        Text(_bar(one.used, bar), style),
        Text(state, style),
        ms(one.line.high_s),
        share,
    ]


def _bar(used: float | None, width: int) -> str:
    """Draw the share used; the end of the bar is the whole allocation."""
    if used is None:
        return ""
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
    """Return the remarks below the table: the stage over budget, certainty, outcomes."""
    high = f"p{100 * report.budget.objective:g}"
    lines = []
    if (words := eats(report)) is not None:
        lines.append(words)
    lines.append(
        f"{high} request: what a request at the {high} of e2e spends in each stage; it adds up. "
        f"Stage {high}: of that stage or metric alone; these never add up."
    )
    if report.high_s is not None and not report.enough:
        lines.append(f"Too few requests for an upper bound of the {high}: take it as a hint.")
    missing = [one.name for one in report.stages if not one.line.known]
    if missing and report.high_s is not None:
        lines.append(f"Not reported: {', '.join(missing)}; that time lies in the others.")
    lines.append(outcomes_text(report.summary))
    if width <= _WIDEST:
        lines = [textwrap.fill(one, min(width, _READABLE)) for one in lines]
    return "\n".join(lines)
