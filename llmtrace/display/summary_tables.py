"""Show a summary of many requests on a terminal.

Tables and sentences for `rich` to print. Every meaning is in words and symbols; colour repeats it.
"""

from __future__ import annotations

import math
import os
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TextIO, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from llmtrace.dataset.summary import Line, Summary

ColumnName = Literal["name", "p50", "high", "interval", "share", "verdict", "known", "sources"]

_VERDICTS: Final = {"within": "✓ within", "over": "✗ over", "unclear": "? unclear"}
_STYLES: Final = {"✓": "green", "✗": "red", "?": "yellow"}
_LEFT_OUT_FIRST: Final[tuple[ColumnName, ...]] = ("sources", "interval", "known")
_GAP: Final = 2
READABLE: Final = 120  # columns of a terminal that text takes at most
_UNLIMITED: Final = 10_000  # characters a line
_MIN_CHANGE: Final = 0.02
JOINED: Final = "\xa0"  # a space at which no line breaks


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


def zone(at: float) -> str:
    """Return this machine's zone at a time in unix seconds, as `UTC` or `UTC+02:00`."""
    offset = time.localtime(at).tm_gmtoff
    if not offset:
        return "UTC"
    hours, minutes = divmod(abs(offset) // 60, 60)
    return f"UTC{'-' if offset < 0 else '+'}{hours:02}:{minutes:02}"


def date_and_zone(at: float) -> str:
    """Write a time in unix seconds with its day and zone, as `2026-01-31 14:30:00 UTC`."""
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))} {zone(at)}"


def time_span(start: float, end: float) -> str:
    """Write from when to when, in unix seconds.

    Both ends are dated where they are of different days. The zone is at the end, and at both ends
    where it changed between.
    """
    days = [time.strftime("%Y-%m-%d", time.localtime(at)) for at in (start, end)]
    clocks = [time.strftime("%H:%M:%S", time.localtime(at)) for at in (start, end)]
    zones = [zone(start), zone(end)]
    if days[0] != days[1]:
        clocks[1] = f"{days[1]} {clocks[1]}"
    if zones[0] != zones[1]:
        clocks[0] = f"{clocks[0]} {zones[0]}"
    return f"{days[0]} {clocks[0]} to {clocks[1]} {zones[1]}"


class _Trimmed:
    """A file that strips trailing spaces from the lines written to it."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._rest = ""

    def write(self, text: str) -> int:
        """Write the lines that are whole; keep the rest for later."""
        *lines, self._rest = (self._rest + text).split("\n")
        self._out.writelines(f"{line.rstrip()}\n" for line in lines)
        return len(text)

    def flush(self) -> None:
        """Write the rest, whose line has not ended."""
        self._out.write(self._rest.rstrip())
        self._rest = ""
        self._out.flush()


class _Console(Console):
    """A console that leaves it to the caller what a closed pipe means, instead of exiting."""

    def on_broken_pipe(self) -> None:
        """Raise it, for the caller to end as other programs do."""
        raise BrokenPipeError


def console_for(out: TextIO) -> Console:
    """Return a console that prints tables and sentences as they are, without markup in them.

    Where `out` is no terminal nothing is cut, wrapped or padded, unless `COLUMNS` is set: a
    program reads it, or a pager.
    """
    if out.isatty():
        return _Console(file=out, highlight=False, markup=False, emoji=False)
    file = cast("TextIO", _Trimmed(out))
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() else _UNLIMITED
    return _Console(
        file=file, width=width or _UNLIMITED, highlight=False, markup=False, emoji=False
    )


def plain_table(*headings: str, wrap: bool = False) -> Table:
    """Return a table without lines; the column of a heading that begins with `>` is of numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for heading in headings:
        side: Literal["left", "right"] = "right" if heading.startswith(">") else "left"
        table.add_column(heading.removeprefix(">"), justify=side, no_wrap=not wrap)
    return table


def readable_width(out: Console) -> int:
    """Return the columns for text: on a terminal as many as eyes follow, else all of a line."""
    return min(out.width, READABLE) if out.is_terminal else out.width


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the stage table: what it shows, its heading, and a cell a line."""

    what: ColumnName
    heading: str
    cells: Sequence[str]


def stage_columns(summary: Summary, width: int) -> tuple[Column, ...]:
    """Choose what to show of every stage and metric, in milliseconds, in `width` characters.

    On a narrow terminal the sources go first, then the intervals, then the coverage: a figure that
    is cut off would be worse than one left out.
    """
    high = f"p{100 * summary.objective:g}"
    lines = (*summary.stages, *summary.metrics)
    shares = _shares(summary.stages)
    columns: tuple[Column, ...] = (
        Column("name", "stage", [line.name for line in lines]),
        Column("p50", "p50", [ms(line.p50_s) for line in lines]),
        Column("high", f"stage {high}", [ms(line.high_s) for line in lines]),
        Column("interval", f"{high} 95% CI", [_between(line) for line in lines]),
        Column("share", "share", [shares.get(line.name, _whole(line)) for line in lines]),
        Column("verdict", "in budget?", [_verdict(line) for line in lines]),
        Column("known", "known", [f"{line.known}/{summary.succeeded}" for line in lines]),
        Column("sources", "measured by", [", ".join(line.sources) for line in lines]),
    )
    for name in _LEFT_OUT_FIRST:
        if _width(columns) <= width:
            break
        columns = tuple(column for column in columns if column.what != name)
    return columns


def _width(columns: Sequence[Column]) -> int:
    widths = [max(map(len, (column.heading, *column.cells))) for column in columns]
    return sum(widths) + _GAP * (len(widths) - 1)


def stage_table(columns: Sequence[Column], stages: int) -> Table:
    """Lay columns out as a table, with a gap between the stages and the metrics."""
    left = {"name", "verdict", "sources"}
    table = plain_table(
        *(f"{'' if column.what in left else '>'}{column.heading}" for column in columns)
    )
    for number, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        if number == stages:
            table.add_row()
        table.add_row(*(Text(cell, _STYLES.get(cell[:1], "")) for cell in cells))
    return table


def _verdict(line: Line) -> str:
    if line.p50_s is None:
        return "not reported"
    if line.verdict is None or line.limit_s is None:
        return "no limit set"
    return f"{_VERDICTS[line.verdict]} {1000 * line.limit_s:,g}"


def _whole(line: Line) -> str:
    return "" if line.share is None else f"{line.share:.1%}"


def _between(line: Line) -> str:
    if line.p50_s is None:
        return "-"
    low, high = (
        "?" if bound is None else ms(bound) for bound in (line.interval.low, line.interval.high)
    )
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
    """Return the source of each stage, those of one source together."""
    by_source: dict[str, list[str]] = {}
    for line in summary.stages:
        if line.sources:
            by_source.setdefault(" and ".join(line.sources), []).append(line.name)
    measured = [f"{', '.join(names)} by {source}" for source, names in by_source.items()]
    return f"Measured: {'; '.join(measured)}."


def outcomes_text(summary: Summary) -> str:
    """Return the outcomes of the requests, and the errors, as a sentence."""
    ended = ", ".join(f"{count} {outcome}" for outcome, count in summary.outcomes.items())
    failed = ", ".join(f"{count} {error}" for error, count in summary.errors.items())
    return f"{summary.rows} requests: {ended}" + (f" ({failed})." if failed else ".")


def sum_text(summary: Summary) -> str:
    """Return as a sentence whether all requests' stages add up to e2e."""
    if summary.exact == summary.rows:
        return f"Σ stages = e2e, to the nanosecond: checked for each of the {summary.rows}."
    wrong = summary.rows - summary.exact
    return f"✗ Σ stages is not e2e in {wrong} of the {summary.rows}: a fault of llmtrace."


def changes_text(changes: Mapping[str, float]) -> str:
    """Return the change of each stage's mean, the largest first, and their sum."""
    least_s = _MIN_CHANGE * sum(map(abs, changes.values()))
    shown = {name: by for name, by in changes.items() if abs(by) > least_s}
    parts = sorted(shown.items(), key=lambda item: -abs(item[1]))
    total = sum(changes.values())
    others = total - sum(shown.values())
    if len(shown) < len(changes):
        parts.append(("others", others))
    shown_parts = ", ".join(f"{name}{JOINED}{_signed(by)}" for name, by in parts)
    return f"{_signed(total)}{JOINED}ms = {shown_parts}"


def _signed(seconds: float) -> str:
    sign = "−" if seconds < 0 else "+"  # noqa: RUF001
    return f"{sign}{ms(abs(seconds))}"


def fill(text: str, width: int) -> str:
    """Break a sentence into lines, never between a figure and its name or unit."""
    lines = textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
    return lines.replace(JOINED, " ")
