"""Print the demo's report once the requests are over or were interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rich.text import Text

from llmtrace.budget import Budget
from llmtrace.core.row import Row
from llmtrace.dataset.summary import Summary, mean_changes, summarise
from llmtrace.demo.target import Target
from llmtrace.display import summary_tables as tables
from llmtrace.exporters.console.sink import waterfall
from llmtrace.stats.quantiles import least_values

if TYPE_CHECKING:
    from rich.console import Console

    from llmtrace.demo.options import Phase

_MIN_TO_COMPARE: Final = 10


def print_report(
    out: Console,
    rows: Sequence[Row],
    target: Target,
    budget: Budget,
    phases: Sequence[Phase],
    *,
    interrupted: bool = False,
) -> None:
    """Print the stage table, how the requests ended, the check of the sum, and the slowest one."""
    width = tables.readable_width(out)
    summary = summarise(rows, budget)
    done = [row for row in rows if row.outcome == "success"]
    if done:
        requests = "1 request" if len(done) == 1 else f"{len(done)} requests"
        out.print(_title(f"\nStages of {requests} to {_called(target)}, in ms\n"))
        columns = tables.stage_columns(summary, width)
        out.print(tables.stage_table(columns, len(summary.stages)))
        out.print()
        for note in _notes(summary, budget, {column.what for column in columns}):
            out.print(tables.fill(note, width))
        for note in _comparison(done, phases):
            out.print(f"\n{tables.fill(note, width)}")
    ended = tables.outcomes_text(summary)
    if "cancelled" in summary.outcomes and not interrupted:
        ended += " The cancelled ones are of clients that left early, as some of the demo do."
    out.print(f"\n{tables.fill(ended, width)}")
    out.print(tables.fill(tables.sum_text(summary), width))
    if done:
        slowest = max(done, key=lambda row: row.e2e_ns)
        which = "The request" if len(done) == 1 else f"The slowest of the {requests}"
        out.print(_title(f"\n{which} to {_called(target)}\n"))
        out.print(waterfall(slowest, min(width, tables.READABLE)), soft_wrap=True)


def print_next_steps(out: Console, target: Target) -> None:
    """Print three things to try next."""
    steps = (
        ("llmtrace demo --vllm", "the same on a real vLLM, started here"),
        ("llmtrace demo --endpoint URL --model NAME", "the same on a server of yours"),
        ("docs/start/first-trace.md", "three lines in your own application"),
    )
    if not target.simulated:
        steps = (
            ("llmtrace demo --budget FILE", "the same against your own budget"),
            ("llmtrace demo --rows-out rows.jsonl", "keep the rows, to look at any of them:"),
            ("llmtrace waterfall rows.jsonl", "the slowest; --request ID for another"),
        )
    out.print(_title("\nNext\n"))
    room = max(len(command) for command, _ in steps)
    for command, words in steps:
        out.print(f"{command:<{room}}  {words}", soft_wrap=True)


def _notes(summary: Summary, budget: Budget, shown: set[tables.ColumnName]) -> list[str]:
    high = f"p{100 * summary.objective:g}"
    enough = least_values(summary.objective)
    notes = [f'Limits: the budget "{budget.name}". The shares add up; {high}s do not.']
    if "interval" in shown:
        notes.append(
            f"{high} 95% CI: holds the true {high} with 95{tables.JOINED}% confidence, if "
            f"requests are independent; ?{tables.JOINED}unclear: the limit is within it."
        )
    else:
        notes.append(f"?{tables.JOINED}unclear: too close to tell from so few requests.")
    if summary.succeeded < enough:
        notes.append(f"The {high} has no upper bound yet: that takes {enough} requests.")
    if "sources" not in shown:
        notes.append(tables.sources_text(summary))
    if summary.inconsistent:
        notes.append(
            f"In {summary.inconsistent} requests a server's figure did not fit into the wait it "
            "belongs to, and was cut."
        )
    return notes


def _comparison(done: Sequence[Row], phases: Sequence[Phase]) -> list[str]:
    """Say what the last phase changed; nothing if there is too little to compare."""
    if len(phases) < 2:  # noqa: PLR2004
        return []
    calm, rush = phases[0], phases[-1]
    before, after = (
        [row for row in done if row.attributes.get("phase") == phase.name]
        for phase in (calm, rush)
    )
    if min(len(before), len(after)) < _MIN_TO_COMPARE:
        return []
    changes = tables.changes_text(mean_changes(before, after))
    if calm.users == rush.users:
        return [f"From {calm.name} to {rush.name} the mean e2e changed by {changes}."]
    return [f"From {calm.users} to {rush.users} users at once the mean e2e changed by {changes}."]


def _title(words: str) -> Text:
    return Text(words, "bold")


def _called(target: Target) -> str:
    return f"a {target.name}" if target.ours else target.name
