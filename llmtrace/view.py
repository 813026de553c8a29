"""How does a summary of many requests look on a terminal?

Tables and sentences for `rich` to print. Every meaning is in words and symbols; colour repeats it.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from llmtrace.quantiles import Interval
from llmtrace.summary import Line, Summary

_NOT_REPORTED: Final = "not reported"
_VERDICTS: Final = {
    "within": ("✓ within", "green"),
    "over": ("✗ over", "red"),
    "unclear": ("? unclear", "yellow"),
}
_WIDE: Final = 100
_LEAST_CHANGE: Final = 0.02
_JOINED: Final = "\xa0"  # a space at which no line breaks


def ms(seconds: float | None) -> str:
    """Write seconds as milliseconds, with a decimal where it matters; `-` for the unknown.

    Example:
        >>> ms(0.00912), ms(1.2345), ms(0.00001), ms(None)
        ('9.1', '1,234', '<0.1', '-')
    """
    if seconds is None:
        return "-"
    value = seconds * 1000
    if 0 < value < 0.05:  # noqa: PLR2004
        return "<0.1"
    if value == 0 or value >= 99.95:  # noqa: PLR2004
        return f"{value:,.0f}"
    return f"{value:.1f}"


def shows_sources(width: int) -> bool:
    """Say whether `stage_table` has room for who measured what."""
    return width >= _WIDE


def stage_table(summary: Summary, width: int) -> Table:
    """Lay out every stage and metric, in milliseconds.

    Args:
        summary: what to show.
        width: of the terminal, in characters; the sources get a column where there is room.
    """
    high = f"p{100 * summary.objective:g}"
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("stage", no_wrap=True)
    for heading in ("p50", high, f"{high} lies in", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(f"{high} in budget?", no_wrap=True)
    table.add_column("known", justify="right", no_wrap=True)
    if shows_sources(width):
        table.add_column("measured by")
    shares = _shares(summary.stages)
    for line in summary.stages:
        table.add_row(*_cells(line, shares.get(line.name, ""), summary.succeeded, width))
    table.add_row()
    for line in summary.metrics:
        share = "" if line.share is None else "100.0%"
        table.add_row(*_cells(line, share, summary.succeeded, width))
    return table


def _cells(line: Line, share: str, rows: int, width: int) -> list[str | Text]:
    known = f"{line.known}/{rows}"
    verdict: str | Text
    if line.p50_s is None:
        verdict = _NOT_REPORTED
    elif line.verdict is None:
        verdict = "no limit set"
    else:
        words, style = _VERDICTS[line.verdict]
        verdict = Text(f"{words} {1000 * (line.limit_s or 0):,g}", style)
    cells: list[str | Text] = [
        line.name,
        ms(line.p50_s),
        ms(line.high_s),
        "-" if line.p50_s is None else _between(line.interval),
        share,
        verdict,
        known,
    ]
    return [*cells, ", ".join(line.sources)] if shows_sources(width) else cells


def _between(bounds: Interval) -> str:
    low = "?" if bounds.low is None else ms(bounds.low)
    high = "?" if bounds.high is None else ms(bounds.high)
    return f"{low} – {high}"  # noqa: RUF001


def _shares(lines: Sequence[Line]) -> Mapping[str, str]:
    """Round shares to tenths of a percent so that what is shown adds up to 100.0 % as they do."""
    exact = {line.name: line.share * 1000 for line in lines if line.share is not None}
    tenths = {name: math.floor(value) for name, value in exact.items()}
    missing = round(sum(exact.values())) - sum(tenths.values())
    for name in sorted(exact, key=lambda name: tenths[name] - exact[name])[:missing]:
        tenths[name] += 1
    return {name: f"{value / 10:.1f}%" for name, value in tenths.items()}


def sources_text(summary: Summary) -> str:
    """Say who measured each stage, those of one source together."""
    by_source: dict[str, list[str]] = {}
    for line in summary.stages:
        if line.sources:
            by_source.setdefault(" and ".join(line.sources), []).append(line.name)
    told = [f"{', '.join(names)} by {source}" for source, names in by_source.items()]
    return f"Measured: {'; '.join(told)}."


def outcomes_text(summary: Summary) -> str:
    """Say how the requests ended, and what failed."""
    ended = ", ".join(f"{count} {outcome}" for outcome, count in summary.outcomes.items())
    failed = ", ".join(f"{count} {error}" for error, count in summary.errors.items())
    return f"{summary.rows} requests: {ended}" + (f" ({failed})." if failed else ".")


def sum_text(summary: Summary) -> str:
    """Say whether the stages of every request add up to its e2e."""
    if summary.exact == summary.rows:
        return f"Σ stages = e2e, to the nanosecond: checked for each of the {summary.rows}."
    wrong = summary.rows - summary.exact
    return f"✗ Σ stages is not e2e in {wrong} of the {summary.rows}: a fault of llmtrace."


def changes_text(changes: Mapping[str, float]) -> str:
    """Say what each stage's mean gained or lost, the largest first, and what it comes to."""
    least_s = _LEAST_CHANGE * sum(map(abs, changes.values()))
    told = {name: by for name, by in changes.items() if abs(by) > least_s}
    parts = sorted(told.items(), key=lambda item: -abs(item[1]))
    total = sum(changes.values())
    others = total - sum(told.values())
    if len(told) < len(changes):
        parts.append(("others", others))
    return f"{_signed(total)}{_JOINED}ms = {', '.join(f'{name}{_JOINED}{_signed(by)}' for name, by in parts)}"


def _signed(seconds: float) -> str:
    sign = "−" if seconds < 0 else "+"  # noqa: RUF001
    return f"{sign}{ms(abs(seconds))}"


def fill(text: str, width: int) -> str:
    """Break a sentence into lines, never between a figure and its name or unit."""
    lines = textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
    return lines.replace(_JOINED, " ")
