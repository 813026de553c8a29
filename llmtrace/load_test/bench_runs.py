"""Run what `llmtrace bench` was called for, write its folders, and print what came of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rich.console import Console

from llmtrace.budget import Budget
from llmtrace.core.errors import writes
from llmtrace.dataset.case import Case, no_signals
from llmtrace.dataset.columns import Columns, from_rows
from llmtrace.display.summary_tables import console_for
from llmtrace.load_test.bench_workload import Workload, at_setting
from llmtrace.load_test.curve_page import page
from llmtrace.load_test.curve_text import print_curve, value_text
from llmtrace.load_test.dataset_requests import number_of
from llmtrace.load_test.drive import Answered
from llmtrace.load_test.endpoint_apis import Sending
from llmtrace.load_test.interleave import AGAIN, run_interleaved
from llmtrace.load_test.load_curve import Curve, Point, as_dict, point
from llmtrace.load_test.measure import measure, measure_prepared, prepare
from llmtrace.load_test.measured_tables import print_summary
from llmtrace.load_test.rate_search import Found, find_rate
from llmtrace.load_test.result_folder import Server, plan_hash, write_folder
from llmtrace.load_test.send_plan import Done, Measured, Plan
from llmtrace.run_comparison.comparison_text import print_comparison
from llmtrace.run_comparison.runs import Run, compare

_AGAIN: Final = 30  # requests at least that show a drift
_REQUESTS: Final = 200  # at each rate of a search, unless given
_FIRST: Final = 40  # requests of a closed loop that show about how much an endpoint takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What all kinds of runs have in common.

    Attributes:
        workload: what is sent.
        budget: that requests are compared with.
        out: folder to write; `None` = none.
        html: page to write of a sweep or a search; `None` = none.
        server: returns what is known of the server so far.
    """

    workload: Workload
    budget: Budget
    out: Path | None
    html: Path | None
    server: Callable[[], Server]


def run_once(job: Job, sending: Sending) -> int:
    """Measure one endpoint once; return the exit status."""
    plan = job.workload.plan(sending)
    _announce(plan, job.workload)
    measured = measure(plan, job.budget, progress(number_of(plan.requests)))
    console = console_for(sys.stdout)
    _write(job, "", plan, measured)
    print_summary(console, measured, job.budget, simulated=sending.target.simulated)
    if job.out is not None:
        console.print(f"Written to {job.out}: llmtrace compare {job.out} OTHER", soft_wrap=True)
        theirs = job.out / "summary.json"
        console.print(f"The figures by other tools' definitions: {theirs}", soft_wrap=True)
    return _status([measured])


def run_sweep(job: Job, sending: Sending, what: str, values: Sequence[float]) -> int:
    """Measure one endpoint at several settings of one thing; return the exit status."""
    points, runs = [], []
    plans = [at_setting(job.workload, what, value).plan(sending) for value in values]
    for value, plan in zip(values, plans, strict=True):
        note(f"{what} {value_text(value)}:")
        runs.append(measure(plan, job.budget, progress(number_of(plan.requests))))
        _write(job, f"{what}-{value:g}", plan, runs[-1])
        if any(row.outcome == "success" for row in runs[-1].rows):
            points.append(point(value, runs[-1], job.budget))
        if runs[-1].interrupted:
            break
    if points:
        curve = Curve(what=what, points=points)
        _show(job, curve, sending, f"Stages over {what}")
    return _status(runs)


def run_search(job: Job, sending: Sending) -> int:
    """Search for the highest rate of one endpoint that holds the budget; return the status."""
    workload = job.workload
    first = replace(workload, rate=None, requests=min(_FIRST, workload.requests or _FIRST))
    plan = prepare(first.plan(sending), job.budget)
    note("a closed loop, to know where to begin:")
    begin = measure_prepared(plan, job.budget, progress(number_of(plan.requests)))
    _status([begin])  # raises if it was interrupted
    points: list[Point] = []

    def at(rate: float, count: int) -> Columns:
        seed = workload.seed + 1 + len(points)
        here = replace(workload, rate=rate, requests=count, seed=seed, warm_up=0)
        made = replace(here.plan(plan.sending), warm_up=())
        note(f"{value_text(rate)} requests/s:")
        measured = measure_prepared(made, job.budget, progress(number_of(made.requests)))
        _write(job, f"rate-{len(points) + 1:02}-{rate:.4g}", made, measured)
        if measured.interrupted:
            raise KeyboardInterrupt
        points.append(point(rate, measured, job.budget))
        return from_rows(measured.rows)

    def show(verdict: str) -> None:
        ordered = sorted(points, key=lambda one: one.value)
        _show(job, Curve(what="rate", points=ordered), sending, verdict)

    start = len(begin.rows) / begin.active_s
    try:
        found = find_rate(at, job.budget, start, workload.requests or _REQUESTS)
    except KeyboardInterrupt:
        if points:
            show("Interrupted: these are the rates that were measured until then.")
        raise
    show(found_text(found, job.budget))
    return 0 if found.rate is not None else 1


def run_sides(job: Job, sendings: Sequence[Sending], blocks: int) -> int:
    """Measure several endpoints in turn, and compare each with the first; return the status."""
    plans = [job.workload.plan(sending) for sending in sendings]
    _announce(plans[0], job.workload)
    again = job.workload.again(sendings[0], max(_AGAIN, len(plans[0].requests) // blocks))
    total = sum(number_of(plan.requests) for plan in (*plans, again))
    measured = run_interleaved([*plans, again], job.budget, blocks, progress(total))
    console = console_for(sys.stdout)
    runs = []
    names = [f"endpoint-{i}" for i in range(1, len(plans) + 1)] + [AGAIN]
    for name, plan, one in zip(names, [*plans, again], measured, strict=True):
        _write(job, name, plan, one)
        target = plan.sending.target
        title = f"{name}: {target.model} at {target.url}"
        if name != AGAIN:
            console.print(f"\n{title}", soft_wrap=True)
            print_summary(console, one, job.budget, simulated=target.simulated)
        runs.append(_run(name, plan, one))
    for other in runs[1:]:
        console.print()
        if any(not side.case.rows.n for side in (runs[0], other)):
            continue
        print_comparison(sys.stdout, compare(runs[0], other, budget=job.budget))
    return _status(measured)


def found_text(found: Found, budget: Budget) -> str:
    """Say what a search found, in a sentence."""
    if found.rate is None:
        return f"No rate holds the budget {budget.name!r} with 95 % certainty."
    if found.limit is None:
        return (
            f"{found.rate:.4g} requests/s hold the budget {budget.name!r}, and so may more: it "
            "was not broken at any rate."
        )
    broken = min(
        (trial for trial in found.trials if not trial.holds), key=lambda trial: trial.rate
    )
    why = f"its {broken.worst} is the first to break" if broken.keeps_up else "requests pile up"
    return (
        f"{found.rate:.4g} requests/s hold the budget {budget.name!r} with 95 % certainty; the "
        f"limit is about {found.limit:.4g}, where {why}."
    )


def note(text: str, end: str = "\n") -> None:
    """Write on stderr what is going on."""
    sys.stderr.write(f"{text}{end}")
    sys.stderr.flush()


def progress(count: int) -> Done:
    """Return what shows on stderr how many requests of so many are over."""
    over = failed = 0

    def done(answered: Answered) -> None:
        nonlocal over, failed
        over, failed = over + 1, failed + (answered.sha256 is None)
        if sys.stderr.isatty() or over == count:
            problems = f", {failed} failed" if failed else ""
            note(f"\r{over} of {count}{problems}", end="\n" if over == count else "")

    return done


def _announce(plan: Plan, workload: Workload) -> None:
    target, clients = plan.sending.target, plan.concurrency
    loop = "open loop" if clients is None else f"closed loop of {clients} clients"
    count = number_of(plan.requests)
    processes = f" from {workload.processes} processes" if workload.processes > 1 else ""
    words = f"{count} requests to {target.name} at {target.url}, {loop}{processes}"
    note(f"{words}; Ctrl-C ends it")


def _show(job: Job, curve: Curve, sending: Sending, verdict: str) -> None:
    """Print curves, and write them as JSON and as a page."""
    console: Console = console_for(sys.stdout)
    if sending.target.simulated:
        console.print("SIMULATED engine: what follows is not of a real one.")
    console.print(verdict, style="bold", soft_wrap=True)
    console.print()
    print_curve(console, curve)
    texts = {}
    if job.out is not None:
        texts[job.out / "curve.json"] = json.dumps(
            {**as_dict(curve), "verdict": verdict}, indent=2
        )
    if job.html is not None:
        texts[job.html] = page(curve, f"{sending.target.name}, {sending.target.model}", verdict)
    for path, text in texts.items():
        with writes(path):
            path.write_text(text, encoding="utf-8")


def _write(job: Job, name: str, plan: Plan, measured: Measured) -> None:
    if job.out is not None:
        write_folder(job.out / name, plan, measured, job.server())


def _run(name: str, plan: Plan, measured: Measured) -> Run:
    case = Case(rows=from_rows(measured.rows), signals=no_signals())
    return Run(
        name=name,
        case=case,
        workload=plan_hash(plan),
        answers={
            one.number: one.sha256
            for one in measured.answered
            if one.sha256 is not None and name != AGAIN  # its requests are others
        },
        active_s=measured.active_s or None,
        temperature=plan.sending.temperature,
    )


def _status(runs: Sequence[Measured]) -> int:
    if any(one.interrupted for one in runs):
        raise KeyboardInterrupt
    return 0 if all(any(row.outcome == "success" for row in one.rows) for one in runs) else 1
