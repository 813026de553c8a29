"""Print curves on a terminal: throughput and what users wait for, and each stage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Console
from rich.table import Table

from llmtrace.display.summary_tables import fill, ms, plain_table
from llmtrace.load_test.load_curve import Curve, Point
from llmtrace.run_comparison.effects import QUANTILES
from llmtrace.run_comparison.wording import LABELS, QUANTILE_NAMES

_WIDEST: Final = 100
_QUANTILES: Final = QUANTILES[:2]


def print_curve(out: Console, curve: Curve) -> None:
    """Print a line for each setting, then a line for each duration."""
    out.print(_rates(curve))
    out.print()
    for q in _QUANTILES:
        if (table := _durations(curve, q)).rows:
            out.print(table)
            out.print()
    for sentence in sentences(curve):
        out.print(fill(sentence, min(out.width, _WIDEST)))


def value_text(value: float) -> str:
    """Write a setting; `0.05` as it is, `4.0` as `4`."""
    return f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"  # noqa: PLR2004


def rate_cells(point: Point) -> list[str]:
    """Return a point's requests, and its rates a second."""
    totals = point.totals
    rates = (totals.requests_per_s, totals.tokens_per_s, totals.goodput)
    inside = None if totals.inside is None else totals.inside / max(totals.requests, 1)
    return [
        f"{totals.requests:,}",
        *("-" if rate is None else f"{rate:,.2f}" for rate in rates),
        "-" if inside is None else f"{inside:.1%}",
    ]


RATES: Final = ("requests", "requests/s", "output tokens/s", "goodput/s", "inside budget")


def sentences(curve: Curve) -> Iterator[str]:
    """Yield what a reader must know beside the curves, a sentence each."""
    for name, growth in curve.growth().items():
        yield (
            f"{LABELS.get(name, name)} grows as a constant plus the prompt's tokens to the power "
            f"of {growth.exponent:.2f} (95 % interval {growth.low:.2f} to {growth.high:.2f})."
        )
    for point in curve.points:
        if point.problem is not None:
            yield f"At {curve.what} {value_text(point.value)}: {point.problem}"
    yield "Goodput: requests inside the budget, a second."


def _rates(curve: Curve) -> Table:
    table = plain_table(curve.what, *(f">{heading}" for heading in RATES))
    for point in curve.points:
        table.add_row(value_text(point.value), *rate_cells(point))
    return table


def _durations(curve: Curve, q: float) -> Table:
    values = (f">{value_text(point.value)}" for point in curve.points)
    table = plain_table(f"{QUANTILE_NAMES[q]}, ms", *values)
    samples = [point.samples() for point in curve.points]
    for name in curve.names():
        cells = [ms(side[name].quantile(q)) if name in side else "-" for side in samples]
        if set(cells) == {"-"}:
            continue
        table.add_row(LABELS.get(name, name), *cells)
    return table
