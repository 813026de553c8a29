"""Print a comparison on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TextIO

from rich.table import Table
from rich.text import Text

from llmtrace.display.summary_tables import console_for, fill, plain_table, readable_width
from llmtrace.run_comparison import wording
from llmtrace.run_comparison.effects import QUANTILES
from llmtrace.run_comparison.runs import Comparison

_STYLES: Final = {"slower": "red", "faster": "green"}
_WIDE: Final = 120
_ALL: Final = 170


def print_comparison(file: TextIO, comparison: Comparison) -> None:
    """Print what moved, each duration, the totals, and what a reader must know."""
    out = console_for(file)
    out.print(f"{comparison.before} → {comparison.after}")
    for doubt in wording.doubts(comparison):
        out.print(Text(doubt, style="yellow"))
    out.print(Text(wording.headline(comparison), style="bold"))
    out.print()
    out.print(_durations(comparison, out.width))
    out.print()
    out.print(_pairs(wording.totals_rows(comparison)))
    out.print()
    if signals := wording.signal_rows(comparison):
        out.print(_pairs(signals))
        out.print(fill(wording.SIGNALS, readable_width(out)))
        out.print()
    for sentence in wording.sentences(comparison):
        out.print(fill(sentence, readable_width(out)))


def _durations(comparison: Comparison, width: int) -> Table:
    """Lay out the durations in milliseconds, and how much their quantiles changed.

    All quantiles where there is room, else p50 and p95, or p50 alone; changes of all of them in
    the widest, else that of the p50. What is left out is said below.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    shown = (
        QUANTILES if width >= _WIDE else QUANTILES[:2] if width >= _WIDE - 30 else QUANTILES[:1]
    )
    changes = QUANTILES if width >= _ALL else QUANTILES[:1]
    table.add_column("ms")
    for q in shown:
        table.add_column(wording.QUANTILE_NAMES[q], justify="right", no_wrap=True)
    for q in changes:
        table.add_column(f"{wording.QUANTILE_NAMES[q]} by [95 %]", justify="right")
    table.add_column("shown")
    for effect in comparison.effects:
        style = _STYLES.get(effect.direction or "", "")
        table.add_row(
            wording.label(effect),
            *(wording.quantile_cell(effect, q) for q in shown),
            *(wording.by_how_much(effect, q) for q in changes),
            Text(wording.verdict(effect), style),
        )
    if width < _ALL:
        names = [wording.QUANTILE_NAMES[q] for q in QUANTILES]
        lacks = ", ".join([*names[len(shown) :], f"changes of {' and '.join(names[1:])}"])
        table.caption = f"No room for {lacks}: a pipe, or {_ALL} columns, show them."
        table.caption_justify, table.caption_style = "left", ""
    return table


def _pairs(rows: Sequence[tuple[str, str, str]]) -> Table:
    table = plain_table("", ">before", ">after", wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
