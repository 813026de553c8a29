"""Compare two runs as a whole: durations, outcomes, answers, throughput and cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from llmtrace.budget import Budget
from llmtrace.core.errors import DataError
from llmtrace.core.row import TURN
from llmtrace.dataset.case import Case
from llmtrace.dataset.columns import Columns
from llmtrace.dataset.rows_in_order import in_order
from llmtrace.run_comparison.durations import DURATIONS, METRICS, durations, perceived
from llmtrace.run_comparison.effects import ALPHA, Effect, Sample, effects
from llmtrace.run_comparison.engine_signals import signal_figures
from llmtrace.run_comparison.equal_workload import Workload, matched, unweighted
from llmtrace.run_comparison.run_outcomes import (
    identical_answers,
    other_answers,
    share_change,
    shares_p,
)
from llmtrace.run_comparison.run_totals import Totals, costs, succeeded, sum_up
from llmtrace.stats.arrays import Floats, Mask
from llmtrace.stats.significance import share_bounds

# What says nothing where it is the other: everything streams; each chunk is one token.
TWINS: Final = {"first_content": "ttft", "itl": "tpot"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run, as read.

    Attributes:
        name: what people call it.
        case: its rows, signals and facts.
        workload: hash of the requests that it sent; `None` = not known.
        answers: hash of the text answered to each request, by the request's number in the
            workload; empty = not recorded.
        gpus: number of GPUs that served it; `None` = not known.
        active_s: seconds in which requests were sent; `None` = from the first to the last.
        temperature: of the sampling; `None` = not known.
        about: how it was measured, by name: what differs between two runs is shown.
    """

    name: str
    case: Case
    workload: str | None = None
    answers: Mapping[int, str] = field(default_factory=dict)
    gpus: int | None = None
    active_s: float | None = None
    temperature: float | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs compared.

    Attributes:
        before, after: their names.
        workload: whether both had the same work to do.
        effects: of each duration that both report.
        zero: durations that both report, and that are 0 in both.
        totals: of the run before and after.
        failures_p: chance that as many more fail (or fewer) if nothing differs.
        failures_by: 95 % interval of the change of the share that fails.
        answers: share of identical answers, with how many were compared; `None` = not recorded,
            of other requests, or drawn at a temperature above 0.
        other_answers: how the answers differ, in words; empty = by nothing that is known.
        costs: of each run, by what it is a price of; empty without a price.
        signals: what engines and GPUs reported, before and after, as `signal_figures` has it;
            `None` = not reported.
        changed: what is not the same in how the runs were measured: name, before, after.
        warnings: what a reader must know before believing it.
        gpus: number of GPUs that served each run; `None` = not known.
    """

    before: str
    after: str
    workload: Workload
    effects: Sequence[Effect]
    zero: frozenset[str]
    totals: tuple[Totals, Totals]
    failures_p: float
    failures_by: tuple[float, float]
    answers: tuple[float, int] | None
    other_answers: Sequence[str]
    costs: Mapping[str, tuple[float | None, float | None]]
    signals: Mapping[str, tuple[float | None, float | None]]
    changed: Sequence[tuple[str, Any, Any]]
    warnings: Sequence[str]
    gpus: tuple[int | None, int | None] = (None, None)

    @property
    def moved(self) -> list[Effect]:
        """The durations whose difference is shown."""
        return [effect for effect in self.effects if effect.direction is not None]

    @property
    def failures_differ(self) -> bool:
        """Whether the share of requests that fail differs by more than chance."""
        return self.failures_p < ALPHA


def compare(
    before: Run,
    after: Run,
    *,
    budget: Budget | None = None,
    price_per_hour: float | None = None,
    reweight: bool = True,
) -> Comparison:
    """Compare two runs.

    Args:
        before: the baseline.
        after: the run with one thing changed.
        budget: what a request may take, for goodput.
        price_per_hour: of what served each run, in any currency.
        reweight: hold the workload equal by weights where it is not the same; else refuse.

    Raises:
        DataError: a run has no request that succeeded, the workloads have too little in common, or
            none of `METRICS` is reported in both.
    """
    rows, repeated = zip(*map(_requests, (before, after)), strict=True)
    done = [side.take(succeeded(side)) for side in rows]
    for run, side, every in zip((before, after), done, rows, strict=True):
        if not side.n:
            raise DataError(f"{run.name}: {_why_none(run, every)}")
    same = before.workload is not None and before.workload == after.workload
    workload, weights = (Workload(same=True), unweighted(done)) if same else matched(done)
    if workload.reweighted and not reweight:
        raise DataError(
            f"the runs had different work to do ({', '.join(workload.matched_on) or 'lengths'}); "
            "run the same workload twice, or allow weights"
        )
    failed, answers = [side.failed for side in rows], None
    alike = same or None in {before.workload, after.workload}  # or each number is another request
    if alike and not (before.temperature or after.temperature):
        answers = identical_answers(before.answers, after.answers)
    totals = (sum_up(rows[0], budget, before.active_s), sum_up(rows[1], budget, after.active_s))
    warnings = _warnings((before, after), repeated, done)
    samples = _samples(done, weights)
    _expect_a_metric(samples, warnings)
    varied = {name: pair for name, pair in samples.items()
              if any(one.values.any() for one in pair)}  # fmt: skip
    return Comparison(
        before=before.name,
        after=after.name,
        workload=workload,
        effects=effects(varied),
        zero=frozenset(samples.keys() - varied.keys()),
        totals=totals,
        failures_p=_failures_p(rows, failed),
        failures_by=share_change(rows, failed),
        answers=answers,
        other_answers=tuple(other_answers(done, weights, answers)),
        costs={} if price_per_hour is None else costs(totals, price_per_hour),
        signals=_signals(before.case, after.case),
        changed=_changed(before.about, after.about),
        warnings=warnings,
        gpus=(before.gpus, after.gpus),
    )


def _requests(run: Run) -> tuple[Columns, int]:
    """Return the requests that no other one encloses (or all), each once, and how many repeat."""
    rows, repeated = in_order(run.case.rows)
    requests = rows.take(~rows.words["operation"].where(TURN))
    whole = requests.numbers["nested"] != 1
    return requests.take(whole) if whole.any() else requests, repeated


def _failures_p(rows: Sequence[Columns], failed: Sequence[Mask]) -> float:
    """Return the p-value of a difference in failures; 1 if a run reports no outcome."""
    known = all((side.words["outcome"].codes >= 0).any() for side in rows)
    return shares_p(rows, failed) if known else 1.0


def _why_none(run: Run, rows: Columns) -> str:
    """Say why none of a run's requests can be compared."""
    if not rows.n:
        return f"no request in it ({run.case.rows.n} turns of agents)"
    ended = ", ".join(f"{n} {name}" for name, n in sum_up(rows, None, None).outcomes.items())
    return f"no request succeeded in it ({ended})"


def _expect_a_metric(samples: Mapping[str, object], warnings: Sequence[str]) -> None:
    if not samples.keys() & {*METRICS}:
        lacks = f"the runs do not both report any of {', '.join(METRICS)}"
        raise DataError("; ".join((f"nothing can be compared: {lacks}", *warnings)))


def _warnings(
    runs: Sequence[Run], repeated: Sequence[int], done: Sequence[Columns]
) -> tuple[str, ...]:
    """Return what is odd in the runs, and notes of what they are."""
    notes = {run.case.note for run in runs if run.case.note}
    odd = [warning for run in runs for warning in run.case.warnings]
    odd += [f"{count:,} repeated rows count once (in {run.name})"
            for run, count in zip(runs, repeated, strict=True) if count]  # fmt: skip
    return (*odd, *_without_first_content(done), *sorted(notes))


def _without_first_content(done: Sequence[Columns]) -> Iterator[str]:
    """Say how many requests that succeeded have no first content to compare."""
    lacking = [int(np.isnan(perceived(side)).sum()) for side in done]
    if any(lacking):
        yield (
            f"left out of first content, as they report no ttft: {lacking[0]:,} of {done[0].n:,} "
            f"before, {lacking[1]:,} of {done[1].n:,} after; `stream: false` says of a request "
            "that it was not streamed"
        )


def _samples(
    sides: Sequence[Columns], weights: Sequence[Floats]
) -> dict[str, tuple[Sample, Sample]]:
    values = [durations(side) for side in sides]
    samples = {}
    for name in DURATIONS:
        pair = []
        for side, weight in zip(values, weights, strict=True):
            used = ~np.isnan(side[name]) & (weight > 0)
            pair.append(Sample(side[name][used], weight[used]))
        if all(len(sample.values) for sample in pair):
            samples[name] = (pair[0], pair[1])
    for name, twin in TWINS.items():
        if name in samples and twin in samples and all(map(_alike, samples[name], samples[twin])):
            del samples[name]
    return samples


def _alike(one: Sample, other: Sample) -> bool:
    return len(one.values) == len(other.values) and np.allclose(one.values, other.values, 1e-3)


def _signals(before: Case, after: Case) -> dict[str, tuple[float | None, float | None]]:
    """Return each signal's figure in both runs, without those that are 0 in both."""
    first, second = signal_figures(before.signals), signal_figures(after.signals)
    found = {name: (first.get(name), second.get(name)) for name in {**first, **second}}
    return {name: pair for name, pair in found.items() if any(pair)}


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return what both runs state, and state differently."""
    both = [name for name in before if name in after]
    return [(name, before[name], after[name]) for name in both if before[name] != after[name]]


def share_interval(answers: tuple[float, int]) -> tuple[float, float]:
    """Return the exact 95 % interval of the share of identical answers."""
    share, count = answers
    return share_bounds(round(share * count), count)
