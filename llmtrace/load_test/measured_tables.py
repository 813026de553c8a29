"""Print what a load test measured, with what each figure means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from rich.console import Console
from rich.table import Table

from llmtrace.budget import Budget
from llmtrace.core.row import Row
from llmtrace.dataset.columns import from_rows
from llmtrace.dataset.summary import summarise
from llmtrace.display import summary_tables as tables
from llmtrace.load_test.send_plan import Measured, bottleneck
from llmtrace.run_comparison.durations import METRICS, durations
from llmtrace.run_comparison.effects import QUANTILES, Sample
from llmtrace.run_comparison.run_totals import Totals, succeeded, sum_up
from llmtrace.run_comparison.wording import LABELS, QUANTILE_NAMES

_WIDEST: Final = 100
DEFINITIONS: Final = (
    "TTFT: start to the first chunk with content. TPOT: (last - first content) / (output tokens "
    "- 1). ITL: the same over chunks. e2e: start to the end of the response. First content: TTFT, "
    "or e2e of a response that is not streamed. A quantile that would be the maximum is left out."
)


def print_summary(out: Console, measured: Measured, budget: Budget, *, simulated: bool) -> None:
    """Print the metrics, the stages, throughput, and what a reader must know."""
    rows = measured.rows
    summary = summarise(rows, budget)
    summary = replace(summary, metrics=tuple(one for one in summary.metrics if one.known))
    if simulated:
        out.print("SIMULATED engine: what follows is not of a real one.")
    out.print(_metrics(rows))
    out.print()
    columns = tables.stage_columns(summary, out.width)
    out.print(tables.stage_table(columns, len(summary.stages)))
    out.print()
    for sentence in _sentences(
        measured, sum_up(from_rows(rows), budget, measured.active_s or None)
    ):
        out.print(tables.fill(sentence, min(out.width, _WIDEST)))
    for text in (tables.outcomes_text(summary), tables.sum_text(summary), DEFINITIONS):
        out.print(tables.fill(text, min(out.width, _WIDEST)))


def _metrics(rows: Sequence[Row]) -> Table:
    """Lay out each metric in milliseconds; those that no request has are left out."""
    columns = from_rows(rows)
    columns = columns.take(succeeded(columns))
    quantiles = (f">{name}" for name in QUANTILE_NAMES.values())
    table = tables.plain_table("ms", ">mean", *quantiles, ">max", ">requests", wrap=True)
    named = durations(columns)
    if (columns.numbers["stream"] == 1).all():
        del named["first_content"]  # it is TTFT
    for name, values in named.items():
        sample = Sample.of_known(values)
        if name not in METRICS or not len(sample.values):
            continue
        table.add_row(
            LABELS.get(name, name),
            tables.ms(sample.mean),
            *(tables.ms(sample.quantile(q)) for q in QUANTILES),
            tables.ms(float(sample.values.max())),
            f"{len(sample.values):,}",
        )
    return table


def _sentences(measured: Measured, totals: Totals) -> Iterator[str]:
    rates = [
        f"{rate:,.2f} {what}"
        for rate, what in (
            (totals.requests_per_s, "requests/s"),
            (totals.tokens_per_s, "output tokens/s"),
            (totals.goodput, "requests/s inside the budget"),
        )
        if rate is not None
    ]
    yield f"In {totals.seconds:,.1f} s: {', '.join(rates)}."
    if late := measured.late_s:
        middle, most = tables.ms(late[len(late) // 2]), tables.ms(late[-1])
        yield f"Requests started {middle} ms late (median), {most} at most."
    if text := bottleneck(measured):
        yield text
    if measured.interrupted:
        yield "Interrupted: this is what was measured until then."
