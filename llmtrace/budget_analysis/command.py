"""The commands of `llmtrace budget`: check, report and suggest."""

from __future__ import annotations

import os
import sys
from json import dumps
from pathlib import Path
from typing import TextIO

from llmtrace.budget import DEFAULT, Budgets, read_budget, read_budgets
from llmtrace.budget_analysis.check import as_text
from llmtrace.budget_analysis.check import check as add_up
from llmtrace.core.errors import ConfigError, DataError, needs_extra, writes
from llmtrace.core.row import Row
from llmtrace.exporters.row_files.read_back import read_usable_rows


def check(file: Path, out: TextIO) -> None:
    """Print whether the budgets of a file add up.

    Raises:
        ConfigError: it is no budget file.
        DataError: one of them does not add up.
    """
    found = [add_up(budget) for budget in read_budgets(file)]
    print("\n\n".join(as_text(one) for one in found), file=out)
    wrong = [one.budget.name for one in found if one.problems]
    if wrong:
        raise DataError(f"{file}: does not add up: {', '.join(wrong)}")


def suggest(
    file: Path,
    out: TextIO,
    *,
    total: str | None = None,
    objective: str | None = None,
    buffer: str | None = None,
    name: str | None = None,
    model: str | None = None,
    route: str | None = None,
    write: Path | None = None,
) -> None:
    """Print a budget that adds up, from measured rows; `write` it, or print that too.

    Raises:
        ConfigError: an option is wrong.
        SourceError, DataError: the rows cannot be read, or are too few.
    """
    with needs_extra("llmtrace budget suggest", "triage"):
        from llmtrace.budget_analysis import suggest as suggestion
        from llmtrace.dataset.columns import from_rows
    from llmtrace.budget.file import as_plain, as_yaml

    # The options are read as the keys of a budget file are.
    wanted = read_budgets(
        {"total": total, "objective": objective, "model": model, "route": route, "name": name}
    ).all[0]
    rows, notes = _requests(file)
    covered = [row for row in rows if wanted.covers(row.model, row.route)]
    if rows and not covered:
        raise DataError(f"{file}: none of the {len(rows)} requests has this model and route")
    found = suggestion.suggest(
        from_rows(covered),
        total_s=wanted.total_s,
        objective=wanted.objective,
        buffer=_share(buffer),
        name=name or "suggested",
        model=wanted.model,
        route=wanted.route,
    )
    for problem in add_up(read_budget(as_plain(found.budget))).problems:
        raise DataError(f"no budget of these rows adds up: {problem.what}")
    print(suggestion.as_text(found), *notes, sep="\n", file=out)
    text = as_yaml(
        found.budget,
        (
            f"From {found.rows} requests of {file.name}: what a request at the objective spends",
            "in each stage, brought to the total (`llmtrace budget suggest`).",
        ),
    )
    if write is None:
        print(f"\n{text}", end="", file=out)
        return
    _replace(write, text)
    print(f"\nBudget written to {write}", file=out)


def report(file: Path, budget: Path | None, html: Path | None, *, json: bool = False) -> None:
    """Print how measured rows stand against budgets, and draw it.

    Raises:
        ConfigError: the budget file is wrong.
        SourceError, DataError: the rows cannot be read, or there are none.
    """
    with needs_extra("llmtrace budget report", "triage"):
        from llmtrace.budget_analysis import terminal
        from llmtrace.budget_analysis.html import page
        from llmtrace.budget_analysis.report import as_plain, reports
        from llmtrace.display.summary_tables import console_for
    budgets = Budgets((DEFAULT,)) if budget is None else read_budgets(budget)
    rows, notes = _requests(file)
    if not rows:
        raise DataError(f"{file}: no rows in it")
    found = reports(rows, budgets)
    if html is not None:
        _replace(html, page(found, file.name, notes))
    if json:
        plain = [as_plain(one) | {"notes": notes} for one in found]
        sys.stdout.write(f"{dumps(plain, indent=2)}\n")
        return
    console = console_for(sys.stdout)
    for number, one in enumerate(found):
        if number:
            console.print()
        console.print(terminal.heading(one), style="bold")
        if one.high_s is not None:
            console.print()
            console.print(terminal.table(one, console.width))
            console.print()
            console.print(terminal.remarks(one, console.width))
    for note in notes:
        console.print(note)
    if html is not None:
        console.print(f"\nPicture written to {html}", soft_wrap=True)


def _requests(file: Path) -> tuple[list[Row], list[str]]:
    """Read rows, each once and of even weight, and return notes of what they were otherwise."""
    from llmtrace.dataset.columns import from_rows
    from llmtrace.dataset.files import unlikely_units
    from llmtrace.dataset.rows_in_order import drawn_by_weight, repeated

    rows, notes = read_usable_rows(file)
    read = sorted(rows, key=lambda row: (row.start, row.e2e_s))
    columns = from_rows(read)
    again, drawn = repeated(columns), drawn_by_weight(columns.weights)
    notes += [f"Note: {doubt}" for doubt in unlikely_units(columns)]
    if again.any():
        notes.append(f"Note: {again.sum()} repeated rows count once.")
    if not drawn.all():
        kept = f"{(drawn & ~again).sum()} of {(~again).sum()}"
        notes.append(f"Note: {kept} rows are drawn, by their weight, so that all count alike.")
    return [row for row, kept in zip(read, drawn & ~again, strict=True) if kept], notes


def _share(given: str | None) -> float:
    """Read a share of the total, as in 10%."""
    if given is None:
        return 0.0
    text = given.strip().removesuffix("%").strip()
    try:
        share = float(text) / (100 if "%" in given else 1)
    except ValueError:
        share = -1.0
    if 0 <= share < 1:
        return share
    raise ConfigError(f"--buffer: {given!r} is not a share of the total; write 10%")


def _replace(path: Path, text: str) -> None:
    """Write a file whole, or leave what was there."""
    made = path.with_name(f".{path.name}-{os.getpid()}")
    with writes(path):
        try:
            made.write_text(text, encoding="utf-8")
            made.replace(path)
        finally:
            made.unlink(missing_ok=True)
