"""Analyse one pair of windows: what moved, by how much, who is affected, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from llmtrace.dataset.case import Case, Window
from llmtrace.dataset.columns import Columns, concatenate
from llmtrace.dataset.rows_in_order import thinned
from llmtrace.stats.arrays import finite
from llmtrace.stats.quantiles import least_values
from llmtrace.triage.attribution.attribute import Spread, bootstrap
from llmtrace.triage.attribution.cohorts import failing_cohorts, find_cohorts
from llmtrace.triage.attribution.components import METRICS, Values
from llmtrace.triage.attribution.divide_change import Divided, divide, usual_parts
from llmtrace.triage.attribution.request_load import load_of
from llmtrace.triage.attribution.workload_mix import lengths_unknown
from llmtrace.triage.comparison.outcomes import compare_outcomes
from llmtrace.triage.comparison.p95_change import (
    CERTAIN,
    LEAST,
    MIN_COUNT,
    Both,
    Compared,
    compare,
    measured,
)
from llmtrace.triage.comparison.which_moved import which_moved
from llmtrace.triage.comparison.within_groups import STAGED, Group, clearest_group
from llmtrace.triage.named_causes import COUNTED, has_proof, named_causes, with_proof
from llmtrace.triage.result import (
    NAMED,
    NOTHING_FOUND,
    OF_TRAFFIC,
    SURE,
    Change,
    Cohort,
    Finding,
    Load,
    Metric,
    Outcomes,
    Q,
)
from llmtrace.triage.verdict import (
    COUNTS,
    NEW_SHARE,
    Judged,
    beside_a_fault,
    in_time,
    judge,
    of_a_kind,
)
from llmtrace.triage.windows.candidates import TRAFFIC
from llmtrace.triage.windows.choose import TRUSTED_SEARCH
from llmtrace.triage.windows.search_rows import Search

_WAITS: Final[tuple[Metric, ...]] = (*STAGED, "e2e")
# These causes show in the rows by themselves, whether or not a p95 moves.
_COUNTED_IN_ROWS: Final = COUNTED | {"serial_tools"}
_SEVERAL_TIMES: Final = 2.0  # relative growth, from which what may be chance hides good news
_DOUBTFUL: Final = 0.05  # chance up to which it does
_BLIP: Final = 0.1  # of the requests searched
_HEAVY: Final = 2.0  # times the usual mean of e2e
_AT_THE_END: Final = 0.05  # of the time searched

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the rows of both windows differ.

    Attributes:
        windows: before and after.
        rows: that are compared, before and after; of very many rows a part.
        measured: each metric before and after.
        compared: the change of each metric.
        outcomes: how requests ended.
        load: of the windows `before` and `after`.
        metric: the one to explain.
    """

    windows: tuple[Window, Window]
    rows: tuple[Columns, Columns]
    measured: Mapping[Metric, Both]
    compared: Mapping[Metric, Compared]
    outcomes: Outcomes
    load: Mapping[str, Load]
    metric: Metric

    def values(self, metric: Metric) -> tuple[Values, Values]:
        """Return the values of a metric, before and after."""
        before, after = self.measured[metric]
        return before.values, after.values

    @property
    def of_metric(self) -> Compared:
        """The comparison of the metric to explain."""
        return self.compared[self.metric]

    @property
    def change(self) -> Change:
        """The change of the metric to explain."""
        return self.of_metric.change

    @property
    def has_p95(self) -> bool:
        """Whether there are enough requests for a p95 of the metric to explain."""
        return min(map(len, self.values(self.metric))) >= MIN_COUNT


@dataclass(frozen=True, slots=True)
class Analysis:
    """What a pair of windows shows.

    Attributes:
        divided: the change of the metric to explain, by parts.
        spread: intervals of these parts; `None` = not computed.
        cohorts: who is affected.
        causes: a finding for each cause, the best supported first.
        moved: whether something moved, before causes with proof change the verdict.
    """

    search: Search
    comparison: Comparison
    divided: Divided
    spread: Spread | None
    judged: Judged
    cohorts: tuple[Cohort, ...]
    causes: tuple[Finding, ...]
    moved: bool

    @property
    def nothing_moved(self) -> bool:
        """Whether nothing is known to have moved."""
        return self.judged.verdict in NOTHING_FOUND

    @property
    def explains(self) -> bool:
        """Whether something moved, and a cause of it is likely or confirmed."""
        return not self.nothing_moved and any(one.status in SURE for one in self.causes)

    @property
    def names_a_cause(self) -> bool:
        """Whether any cause is at least possible."""
        return any(one.status in NAMED for one in self.causes)

    @property
    def is_over(self) -> bool:
        """Whether a search found a window after that ends before the data end."""
        chosen, span = self.search.chosen, self.search.span
        return chosen.searched and chosen.after.end < span.end - _AT_THE_END * span.seconds

    @property
    def came_again(self) -> bool:
        """Whether requests stopped, or were not recorded, and came again."""
        return self.is_over and self.causes[0].id == "traffic_lost"

    @property
    def is_blip(self) -> bool:
        """Whether it is over, and only few of the requests searched are in it."""
        return self.is_over and self.search.window_rows[1].n < _BLIP * self.search.rows.n

    def outweighs(self, other: Analysis) -> bool:
        """Return whether its requests take far longer, and more time is lost in all than there."""
        (took, usual), (took_there, usual_there) = self._took_s(), other._took_s()
        return took >= _HEAVY * usual and took - usual > took_there - usual_there

    def _took_s(self) -> tuple[float, float]:
        """Return how long all requests after took, and as many would have before, seconds."""
        before, after = (finite(one.numbers["e2e_s"]) for one in self.search.window_rows)
        took = float(after.sum())
        return took, float(before.mean()) * len(after) if len(before) else took

    @property
    def is_possible_when_dated(self) -> bool:
        """Whether a cause is possible at a sure date, of traffic only if it is lost until now."""
        chosen, first = self.search.chosen, self.causes[0]
        lost = first.id == "traffic_lost" and self.judged.verdict == "traffic" and not (
            self.is_over or self.search.window_rows[1].n < MIN_COUNT)  # fmt: skip
        surely_dated = chosen.dated and (chosen.dated_by not in ("", TRAFFIC) or lost)
        return surely_dated and first.status in NAMED

    @property
    def explains_as_one_of_several(self) -> bool:
        """Whether a cause is likely enough, though several pairs of windows were compared.

        On any day, one of several pairs seems to prove something. So what a likely cause needs
        beyond that depends on how sure the date is:

        * sure or given: a metric moved, or the cause is counted in the rows or has proof;
        * from a search: a metric moved, and with many requests the cause is confirmed;
        * a fixed split of the time: the cause is confirmed.

        A change of traffic must be dated surely by itself, since traffic varies all day. Requests
        that come again are compared with those before.
        """
        chosen, many = self.search.chosen, self.search.rows.n > TRUSTED_SEARCH

        def is_enough(cause: Finding) -> bool:
            if cause.id in OF_TRAFFIC:
                return chosen.dated and chosen.dated_by in ("", TRAFFIC) and not self.came_again
            if chosen.dated:
                proven = has_proof(cause, few=False) or cause.id in _COUNTED_IN_ROWS
                return self.moved or proven
            confirmed = cause.status == "confirmed"
            if chosen.searched:
                return self.moved and (confirmed or not many)
            return confirmed

        return not self.nothing_moved and any(
            is_enough(one) for one in self.causes if one.status in SURE
        )


def analyse(
    case: Case,
    search: Search,
    metric: Metric | None,
    draws: int,
    *,
    seed: int,
    report: Progress,
) -> Analysis:
    """Compare both windows of a search, and judge what moved and which causes are likely.

    `metric` is the one to explain; `None` = whichever moved. The change is resampled `draws` times
    for intervals; 0 = no intervals.
    """
    comparison = _compare(search, metric)
    report("dividing the change", 0.3)
    divided = {name: divide(comparison.rows, comparison.values(name))
               for name in {comparison.metric, "ttft", "tpot"}}  # fmt: skip
    parts = divided[comparison.metric]
    spread = _resample(comparison, parts, draws, seed, report)
    report("looking for cohorts", 0.8)
    judged = _judge(search, comparison, parts, spread)
    group = _group_that_moved(search, comparison, judged, new_share=parts.cells.unmatched_share)
    if group is not None:
        judged = of_a_kind(judged, group.cohort, group.compared.change)
        comparison = replace(comparison, metric=group.compared.change.metric)
        parts = divided[comparison.metric]
        spread = _resample(comparison, parts, draws, seed, report)
    cohorts = _cohorts(comparison, parts) if group is None else (group.cohort,)
    report("weighing causes", 0.9)
    change = comparison.change
    few = not change.significant and min(change.before.n, change.after.n) < least_values(Q)
    # New kinds of request that are faster cannot be compared, and nothing got worse.
    faster_kinds = judged.verdict == "new_workload" and (change.delta_s or 0.0) < 0
    causes = named_causes(
        concatenate(comparison.rows), case, comparison.windows,
        about=comparison.metric, divided=divided,
        risen=[name for name, one in comparison.compared.items()
               if one.change.rose or (group is not None and name == comparison.metric)],
        verdict="no_change" if faster_kinds else judged.verdict,
        searched=search.chosen.searched, dated=search.chosen.given_or_surely_dated,
        blind=search.found_nothing, few=few,
    )  # fmt: skip
    beside = comparison.outcomes.significant or parts.outside_engines >= COUNTS
    moved = judged.verdict not in NOTHING_FOUND
    judged = beside_a_fault(with_proof(judged, causes, change, few=few, beside=beside), causes)
    return Analysis(search, comparison, parts, spread, judged, cohorts, causes, moved)


def _compare(search: Search, metric: Metric | None) -> Comparison:
    """Compare the windows; `metric` is the one to explain, or `None`.

    An improvement is good news only if nothing else got worse. That is judged by the limits for
    given windows, which allow more alarms. What is several times slower is explained though it may
    be chance, because a metric that is faster is no news beside it.
    """
    found = _compare_at(search, metric, search.alarm, search.alarm_of_outcomes)
    if not found.change.fell:
        return found
    strict = _compare_at(search, metric, (CERTAIN, LEAST), CERTAIN / 2)
    known = (one for name in _WAITS if (one := strict.compared[name].change).p_value is not None)
    worst = max(known, key=lambda one: one.grew[0], default=found.change)
    several_times = worst.grew[0] >= _SEVERAL_TIMES and (worst.p_value or 0.0) < _DOUBTFUL
    if several_times or strict.outcomes.significant or strict.outcomes.gave_up:
        return replace(strict, metric=metric or worst.metric)
    return strict if strict.change.rose else found


def _compare_at(
    search: Search, metric: Metric | None, alarm: tuple[float, float], alarm_of_outcomes: float
) -> Comparison:
    """Compare the windows, with the allowed chance of a false alarm and the least change."""
    windows = (search.chosen.before, search.chosen.after)
    rows = (thinned(search.window_rows[0]), thinned(search.window_rows[1]))
    certain, least = alarm
    both = {name: measured(rows, windows, name) for name in METRICS}
    compared = {
        name: compare(
            both[name],
            certain=certain / (1 if name == metric else len(METRICS)), least=least,
            shown=search.shows_rise(name), remembers=search.is_sure,
        )
        for name in METRICS
    }  # fmt: skip
    return Comparison(
        windows, rows, both, compared,
        outcomes=compare_outcomes(*rows, alarm_of_outcomes),
        load={"before": load_of(rows[0], windows[0]), "after": load_of(rows[1], windows[1])},
        metric=_metric_to_explain(metric, compared),
    )  # fmt: skip


def _metric_to_explain(metric: Metric | None, compared: Mapping[Metric, Compared]) -> Metric:
    """Return the given metric, or the one that moved.

    Another metric that rose goes before a given one that fell, or that few requests report.
    """
    moved = which_moved(compared)
    if metric is None:
        return moved
    given, other = compared[metric].change, compared[moved].change
    enough = min(given.before.n, given.after.n) >= least_values(Q)
    known = given.rose or (not given.significant and enough)
    return moved if not known and other.rose else metric


def _resample(
    comparison: Comparison, parts: Divided, draws: int, seed: int, report: Progress
) -> Spread | None:
    """Return intervals of the change's parts; `None` = not requested, or too few requests."""
    if not draws or not comparison.has_p95 or parts.found is None:
        return None
    return bootstrap(
        parts.before, parts.after, Q, parts.found, times=draws, seed=seed,
        progress=lambda share: report("resampling for intervals", 0.35 + 0.45 * share),
        cut=parts.cut,
    )  # fmt: skip


def _judge(
    search: Search, comparison: Comparison, parts: Divided, spread: Spread | None
) -> Judged:
    """Give the verdict on both windows, adjusted to the course over time."""
    judged = judge(
        comparison.of_metric,
        parts,
        spread,
        comparison.outcomes,
        thorough=search.chosen.searched and search.rows.n > TRUSTED_SEARCH,
        sized=not lengths_unknown(comparison.rows, comparison.metric),
        usual=lambda: usual_parts(comparison.rows, comparison.metric),
    )
    return in_time(
        judged,
        search.incidents_after,
        comparison.load,
        after=search.chosen.after,
        span_s=search.span.seconds,
        alike_days=search.alike_days,
        rose=comparison.metric if comparison.change.rose else None,
    )


def _group_that_moved(
    search: Search, comparison: Comparison, judged: Judged, *, new_share: float
) -> Group | None:
    """Return the kind of request that got slower, if all together did not; only in given windows.

    If many requests are of kinds never seen before (`new_share`), a group is not comparable.
    """
    worse = judged.verdict not in NOTHING_FOUND and not comparison.change.fell
    if search.chosen.searched or worse or new_share > NEW_SHARE:
        return None
    return clearest_group(comparison.rows, comparison.windows)


def _cohorts(comparison: Comparison, parts: Divided) -> tuple[Cohort, ...]:
    """Return who is affected: kinds of request that fail, then kinds that are slow."""
    change, before, after = comparison.change, *comparison.rows
    failing: tuple[Cohort, ...] = ()
    if comparison.outcomes.significant:
        failing = failing_cohorts(comparison.rows, (before.failed, after.failed))
    if not change.significant or (change.delta_s or 0.0) <= 0:
        return failing
    return failing + find_cohorts(
        comparison.rows,
        comparison.values(comparison.metric),
        parts.cells,
        threshold=comparison.of_metric.threshold,
        q=Q,
        design=comparison.of_metric.design[0],
    )
