"""Compare two runs as a whole: durations, outcomes, answers, throughput and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from llmtrace.budget import Budget
from llmtrace.core.row import TURN
from llmtrace.dataset.case import Case
from llmtrace.dataset.columns import Columns
from llmtrace.errors import DataError
from llmtrace.run_comparison.durations import DURATIONS, durations
from llmtrace.run_comparison.effects import ALPHA, Effect, Sample, effects
from llmtrace.run_comparison.equal_workload import Workload, matched, unweighted
from llmtrace.run_comparison.run_totals import Totals, costs, succeeded, sum_up
from llmtrace.stats.arrays import Floats
from llmtrace.stats.significance import clustered, more_than, share_bounds

_NS: Final = 1_000_000_000
# What says nothing where it is the other: everything streams; each chunk is one token.
_TWINS: Final = {"first_content": "ttft", "itl": "tpot"}


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
    """

    name: str
    case: Case
    workload: str | None = None
    answers: Mapping[int, str] = field(default_factory=dict)
    gpus: int | None = None
    active_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs compared.

    Attributes:
        before, after: their names.
        workload: whether both had the same work to do.
        effects: of each duration that both report.
        totals: of the run before and after.
        failures_p: chance that as many more fail (or fewer) if nothing differs.
        answers: share of identical answers, with how many were compared; `None` = not recorded.
        costs: of each run, by what it is a price of; empty without a price.
        signals: mean of each gauge of the engines, before and after.
        warnings: what a reader must know before believing it.
        gpus: number of GPUs that served each run; `None` = not known.
    """

    before: str
    after: str
    workload: Workload
    effects: Sequence[Effect]
    totals: tuple[Totals, Totals]
    failures_p: float
    answers: tuple[float, int] | None
    costs: Mapping[str, tuple[float | None, float | None]]
    signals: Mapping[str, tuple[float, float]]
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
        DataError: a run has no request that succeeded, or the workloads have too little in common.
    """
    rows = [_requests(run) for run in (before, after)]
    done = [side.take(succeeded(side)) for side in rows]
    for run, side in zip((before, after), done, strict=True):
        if not side.n:
            raise DataError(f"{run.name}: no request succeeded in it")
    same = before.workload is not None and before.workload == after.workload
    workload, weights = (Workload(same=True), unweighted(done)) if same else matched(done)
    if workload.reweighted and not reweight:
        raise DataError(
            f"the runs had different work to do ({', '.join(workload.matched_on) or 'lengths'}); "
            "run the same workload twice, or allow weights"
        )
    totals = (sum_up(rows[0], budget, before.active_s), sum_up(rows[1], budget, after.active_s))
    return Comparison(
        before=before.name,
        after=after.name,
        workload=workload,
        effects=effects(_samples(done, weights)),
        totals=totals,
        failures_p=_failures(rows),
        answers=_answers(before, after),
        costs={} if price_per_hour is None else costs(totals, price_per_hour),
        signals=_signals(before.case, after.case),
        warnings=_warnings(before, after, workload),
        gpus=(before.gpus, after.gpus),
    )


def _requests(run: Run) -> Columns:
    rows = run.case.rows
    rows = rows.take(np.argsort(rows.start, kind="stable"))
    return rows.take(~rows.words["operation"].where(TURN) & (rows.numbers["nested"] != 1))


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
    for name, twin in _TWINS.items():
        if name in samples and twin in samples and all(map(_alike, samples[name], samples[twin])):
            del samples[name]
    return {name: pair for name, pair in samples.items() if any(map(_varies, pair))}


def _alike(one: Sample, other: Sample) -> bool:
    return len(one.values) == len(other.values) and np.allclose(one.values, other.values, 1e-3)


def _varies(sample: Sample) -> bool:
    return bool(sample.values.any())


def _failures(rows: Sequence[Columns]) -> float:
    """Return the two-sided p-value of a difference in the share of requests that fail."""
    failed = [
        ~side.words["outcome"].where("success", "cancelled") & (side.words["outcome"].codes >= 0)
        for side in rows
    ]
    counts = []
    for side, mask in zip(rows, failed, strict=True):
        design = clustered(side.start / _NS, mask)
        counts.append((float(mask.sum()) / design, side.n / design))
    (k1, n1), (k2, n2) = counts
    return min(1.0, 2 * min(more_than(k1, n1, k2, n2), more_than(k2, n2, k1, n1)))


def _answers(before: Run, after: Run) -> tuple[float, int] | None:
    both = before.answers.keys() & after.answers.keys()
    if not both:
        return None
    return sum(before.answers[i] == after.answers[i] for i in both) / len(both), len(both)


def _signals(before: Case, after: Case) -> dict[str, tuple[float, float]]:
    """Return the mean of each gauge that both runs have; cumulative counters are no gauges."""
    found = []
    for case in (before, after):
        signals = case.signals
        gauges = {}
        for code, name in enumerate(signals.signal.names):
            if name.endswith("_total"):
                continue
            values = signals.value[signals.signal.codes == code]
            if len(values):
                gauges[name] = float(values.mean())
        found.append(gauges)
    return {name: (found[0][name], found[1][name]) for name in found[0] if name in found[1]}


def _warnings(before: Run, after: Run, workload: Workload) -> list[str]:
    warnings = [*before.case.warnings, *after.case.warnings]
    if not workload.same:
        warnings.append("the runs do not both state a workload, or not the same one")
    notes = {run.case.note for run in (before, after) if run.case.note}
    return [*warnings, *sorted(notes)]


def share_interval(answers: tuple[float, int]) -> tuple[float, float]:
    """Return the exact 95 % interval of the share of identical answers."""
    share, count = answers
    return share_bounds(round(share * count), count)
