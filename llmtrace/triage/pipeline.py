"""Find out why a p95 moved: the whole triage, step by step.

Rows and signals go in, a `Result` comes out. Nothing here reads a file, a clock or a random number
that is not seeded: the same case gives the same result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from llmtrace.core.errors import ConfigError
from llmtrace.dataset.case import Case, Window
from llmtrace.dataset.columns import Columns, Doubt, concatenate
from llmtrace.display.summary_tables import date_and_zone, time_span
from llmtrace.stats.quantiles import least_values
from llmtrace.triage.attribution.attribute import Spread, bootstrap
from llmtrace.triage.attribution.cohorts import failing_cohorts, find_cohorts
from llmtrace.triage.attribution.components import METRICS, Values, first_content
from llmtrace.triage.attribution.divide_change import Divided, divide, usual_parts
from llmtrace.triage.attribution.exemplars import exemplars
from llmtrace.triage.attribution.request_load import load_of
from llmtrace.triage.attribution.result_parts import anatomy_of, contributions_of, estimates_of
from llmtrace.triage.attribution.workload_mix import lengths_unknown
from llmtrace.triage.causes.scoring import LIKELY
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
from llmtrace.triage.comparison.which_moved import all_moved, which_moved
from llmtrace.triage.comparison.within_groups import STAGED, Group, clearest_group
from llmtrace.triage.evidence.changes import HALF
from llmtrace.triage.mix_growth import growth_of
from llmtrace.triage.named_causes import (
    COUNTED,
    OF_SEVERAL,
    has_proof,
    named_causes,
    of_a_burst,
    of_several_windows,
    with_proof,
)
from llmtrace.triage.onset_and_impact import with_onset_and_impact
from llmtrace.triage.quality import quality_of
from llmtrace.triage.report.naming import duration, number_of, utc
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
    Quality,
    Result,
)
from llmtrace.triage.rows_in_order import in_order, thinned
from llmtrace.triage.verdict import (
    COUNTS,
    NEW_SHARE,
    Judged,
    beside_a_fault,
    in_time,
    judge,
    of_a_kind,
)
from llmtrace.triage.windows import highest_stretch
from llmtrace.triage.windows.candidates import TRAFFIC
from llmtrace.triage.windows.choose import FEW
from llmtrace.triage.windows.search_rows import (
    Look,
    in_full,
    look_at,
    look_between,
    look_elsewhere,
)
from llmtrace.triage.windows.spike import TRAFFIC_RATIO
from llmtrace.triage.windows.unrecorded import unrecorded

_MAX_DRAWS: Final = 10_000
_WAITS: Final[tuple[Metric, ...]] = (*STAGED, "e2e")
_SHOWN: Final = COUNTED | {"serial_tools"}  # by rows themselves, whatever a p95 does
_SMALL: Final = 0.1  # of the requests searched
_ENDS: Final = 0.05  # of the time searched, before its end
_NEAREST: Final = "Of several windows compared, these have the strongest evidence for a cause."
_EDGE: Final = 0.1  # of the shorter window, at most, which both may hold
_HEAD: Final = 0.1  # of a window without data
_BY_WORK: Final = ("regression", "improvement", "drift")
_NOT_WORSE: Final = NOTHING_FOUND | {"improvement"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to triage.

    Attributes:
        before, after: windows to compare, over what the case says; `None` = find them.
        at: a time inside the incident, unix seconds.
        metric: `ttft`, `tpot`, `e2e` or `render`; `None` = whichever moved.
        bootstrap: how often to resample for intervals; 0 = no intervals.
        seed: of the resampling.
    """

    before: Window | None = None
    after: Window | None = None
    at: float | None = None
    metric: Metric | None = None
    bootstrap: int = 100
    seed: int = 1

    def __post_init__(self) -> None:
        if self.metric is not None and self.metric not in METRICS:
            raise ConfigError(f"metric: {self.metric!r} is not one of {', '.join(METRICS)}")
        if not 0 <= self.bootstrap <= _MAX_DRAWS:
            raise ConfigError(f"bootstrap: {self.bootstrap!r} is not from 0 to {_MAX_DRAWS}")
        for name in ("before", "after"):
            window = getattr(self, name)
            if window is not None and not 0 < window.seconds < math.inf:
                raise ConfigError(f"{name}: {window} does not end after it starts")
        if self.before and self.after:
            begin = max(self.before.start, self.after.start)
            overlap = self.before.seconds_with(self.after)
            if overlap > _EDGE * min(self.before.seconds, self.after.seconds):
                raise ConfigError(
                    f"before and after overlap by {duration(overlap)}, from {date_and_zone(begin)}"
                )


@dataclass(frozen=True, slots=True)
class _Sides:
    """Both windows, before and after, and how they differ.

    Attributes:
        rows: those that are compared.
        measured: each metric before and after.
        compared: each metric's change.
        about: the metric to explain.
    """

    windows: tuple[Window, Window]
    rows: tuple[Columns, Columns]
    measured: Mapping[Metric, Both]
    compared: Mapping[Metric, Compared]
    outcomes: Outcomes
    load: Mapping[str, Load]
    about: Metric

    def values(self, metric: Metric) -> tuple[Values, Values]:
        """Return the values of a metric."""
        before, after = self.measured[metric]
        return before.values, after.values

    @property
    def of_metric(self) -> tuple[Values, Values]:
        """The values of the metric to explain."""
        return self.values(self.about)

    @property
    def change(self) -> Change:
        """The change of the metric to explain."""
        return self.compared[self.about].change

    @property
    def enough(self) -> bool:
        """Whether there are enough requests for a p95."""
        return min(map(len, self.of_metric)) >= MIN_COUNT


@dataclass(frozen=True, slots=True)
class _Weighed:
    """What both windows show: the parts of the change, the verdict, who is hit, and the causes."""

    look: Look
    sides: _Sides
    mine: Divided
    spread: Spread | None
    judged: Judged
    cohorts: tuple[Cohort, ...]
    causes: tuple[Finding, ...]
    moved: bool

    @property
    def explained(self) -> bool:
        """Whether something moved, and the evidence is for a cause of it."""
        sure = any(one.status in SURE for one in self.causes)
        return sure and not self.nothing

    @property
    def names_a_cause(self) -> bool:
        """Whether any cause is possible, at least."""
        return any(one.status in NAMED for one in self.causes)

    @property
    def is_over(self) -> bool:
        """Whether a search took a while that ended before the data do."""
        chosen, span = self.look.chosen, self.look.span
        return chosen.searched and chosen.after.end < span.end - _ENDS * span.seconds

    @property
    def is_blip(self) -> bool:
        """Whether it is over, and few of the requests searched are of it."""
        return self.is_over and self.look.whole[1].n < _SMALL * self.look.rows.n

    @property
    def nothing(self) -> bool:
        """Whether nothing is known to have moved."""
        return self.judged.verdict in NOTHING_FOUND

    @property
    def is_dated_possible(self) -> bool:
        """Whether a cause is possible at a sure date, at which nothing is known to have moved."""
        dated = self.look.chosen.dated and self.look.chosen.by not in ("", TRAFFIC)
        return dated and self.nothing and self.causes[0].status in NAMED

    @property
    def explained_elsewhere(self) -> bool:
        """Whether it is, though several windows were weighed: one has proof of something any day.

        So a metric must have moved as well, unless when that was is sure and the cause is counted
        or has proof; where there are many requests and that is not sure, a metric must have moved
        and the cause have proof. And traffic must be dated by itself: it varies all day.
        """
        chosen, many = self.look.chosen, self.look.rows.n > FEW

        def explains(cause: Finding) -> bool:
            if cause.id in OF_TRAFFIC:
                return chosen.dated and chosen.by in ("", TRAFFIC)
            if not chosen.dated:
                confirmed = cause.status == "confirmed"
                if not chosen.searched:
                    return confirmed
                return self.moved and (confirmed or not many)
            return self.moved or has_proof(cause, few=False) or cause.id in _SHOWN

        return not self.nothing and any(explains(one) for one in self.causes if one.status in SURE)


Progress = Callable[[str, float], None]


def triage(
    case: Case, settings: Settings | None = None, progress: Progress | None = None
) -> Result:
    """Find out why a p95 moved.

    Args:
        case: what happened.
        settings: what to look at; the case's own windows and metric where they leave them open.
        progress: notified of each step, and of the share that is done, 0 to 1.

    Returns:
        A result for whatever rows there are; with too few of them one that says so.
    """
    settings = settings or Settings()
    report = progress or (lambda _what, _share: None)
    report("sorting rows", 0.0)
    rows, duplicates = in_order(case.rows)
    found = _find(case, settings, rows, report)
    if not found.look.chosen.searched and not found.names_a_cause:
        found = _by_a_search(case, settings, rows, report, found)
    intervals = found.spread is not None or not settings.bootstrap
    quality = _quality(found, case, duplicates=duplicates, intervals=intervals)
    result = _result(found, quality=quality, seed=settings.seed)
    whole = with_onset_and_impact(
        result, case, found.look, found.sides.compared, found.sides.about
    )
    report("done", 1.0)
    return whole


def _find(case: Case, settings: Settings, rows: Columns, report: Progress) -> _Weighed:
    """Choose the windows and weigh what they show; where that says little, others as well."""
    metric: Metric | None = settings.metric or case.metric  # type: ignore[assignment]
    report("looking for the spike", 0.1)
    look = _look(case, settings, rows, metric)
    report("comparing", 0.2)
    found = _weigh(case, look, metric, settings, report)
    blip = found.is_blip and settings.at is None
    # What has proof in any window began at some time; and load that varies makes blips.
    if not found.explained or look.blind or blip:
        others = _others(case, found, metric, settings, report, widely=look.blind or blip)
        other = _explained((one for one in others if not (blip and one.is_blip)), found)
        if other is not None:
            same = other.look is look  # and another metric
            weighed = _weigh(case, look if same else in_full(other.look),
                             other.sides.about if same else metric, settings, report)  # fmt: skip
            sure = weighed.explained_elsewhere or weighed.is_dated_possible
            found = weighed if sure else _unsure(weighed, found)
    return _of_a_while(found) if settings.at is None else found


def _by_a_search(
    case: Case, settings: Settings, rows: Columns, report: Progress, found: _Weighed
) -> _Weighed:
    """Return what a search finds in the time of the window after, if windows given show nothing.

    It is possible at most: those windows were given for a reason.
    """
    free = replace(settings, before=None, after=None, at=None)
    other = _find(replace(case, before=None, after=None), free, thinned(rows), report)
    mine, theirs = found.look.chosen.after, other.look.chosen.after
    first = other.causes[0]
    shows = first.status in NAMED and first.score >= LIKELY and first.id != OF_SEVERAL
    shows = shows and (found.nothing or not other.nothing)
    if not shows or mine.seconds_with(theirs) < HALF * min(mine.seconds, theirs.seconds):
        return found
    said = (f"the windows given show nothing: a search took {time_span(theirs.start, theirs.end)} "
            "instead")  # fmt: skip
    chosen = replace(other.look.chosen, warnings=(said, *other.look.chosen.warnings))
    return _unsure(replace(other, look=replace(other.look, chosen=chosen)), found)


def _of_a_while(found: _Weighed) -> _Weighed:
    """Return what was found, where the search took a while that is over.

    If far more requests came in it, or it is a small part of all, load that varies makes such.
    """
    before, after = (found.sides.load[one].requests_per_s or 0.0 for one in ("before", "after"))
    if found.is_blip or (found.is_over and after >= TRAFFIC_RATIO * before):
        return replace(found, causes=of_a_burst(found.causes))
    return found


def _explained(others: Iterable[_Weighed], found: _Weighed) -> _Weighed | None:
    """Return the first of others that is explained, or else what comes nearest.

    Where nothing is known to have got worse, that is one of a sure date for which a cause is
    possible, and that does not say either that something got worse. Where no cause is named at
    all, it is the one with the strongest evidence, if that would do in windows that are given.
    """
    dated = nearest = None
    strongest = LIKELY - 1
    not_worse = found.judged.verdict in _NOT_WORSE
    for one in others:
        if one.explained_elsewhere:
            return one
        first = one.causes[0]
        if first.status not in NAMED:
            continue
        if dated is None and one.is_dated_possible:
            dated = one
        # That the data end is no silence, and one of several stands out on any day.
        shows = one.look.whole[1].n >= MIN_COUNT and first.id != OF_SEVERAL
        if shows and first.score > strongest and (not_worse or not one.nothing):
            nearest, strongest = one, first.score
    if dated is not None and not_worse:
        return dated
    return None if found.names_a_cause else nearest


def _unsure(one: _Weighed, found: _Weighed) -> _Weighed:
    """Return what comes nearest, of windows of which several were weighed: possible at most."""
    verdict = "not_enough_data" if found.nothing else one.judged.verdict
    judged = Judged(verdict, f"{one.judged.reason} {_NEAREST}")
    return replace(one, judged=judged, causes=of_several_windows(one.causes))


def _others(
    case: Case,
    found: _Weighed,
    metric: Metric | None,
    settings: Settings,
    report: Progress,
    *,
    widely: bool,
) -> Iterator[_Weighed]:
    """Yield what else may explain it: by another metric that rose, or at other times.

    What the user gave is taken as given, with the time in between. `widely` = what the search
    found says little.
    """
    quick = replace(settings, bootstrap=0)
    if metric is None:
        yield from (
            _weigh(case, found.look, name, quick, report)
            for name in STAGED
            if name != found.sides.about and found.sides.compared[name].change.rose
        )
    between = look_between(found.look)
    if between is not None:
        yield _weigh(case, between, metric, quick, report)
    given = (settings.before, settings.after, case.before, case.after)
    at = settings.at
    if all(one is None for one in given):
        yield from (_weigh(case, one, metric, quick, report)
                    for one in look_elsewhere(found.look, case, nothing=found.nothing or widely)
                    if at is None or widely or one.chosen.near(at))  # fmt: skip


def _weigh(
    case: Case, look: Look, metric: Metric | None, settings: Settings, report: Progress
) -> _Weighed:
    """Compare both windows, and say what moved and what causes the evidence is for."""
    sides = _compare(look, metric)
    report("dividing the change", 0.3)
    looked_into: set[Metric] = {sides.about, "ttft", "tpot"}
    divided = {name: divide(sides.rows, sides.values(name)) for name in looked_into}
    mine = divided[sides.about]
    spread = _resample(sides, mine, settings, report)
    report("looking for cohorts", 0.8)
    judged = _judge(look, sides, mine, spread)
    alone = _alone(look, sides, judged, unmatched=mine.cells.unmatched_share)
    if alone is not None:
        judged = of_a_kind(judged, alone.cohort, alone.compared.change)
    cohorts = _cohorts(sides, mine) if alone is None else (alone.cohort,)
    report("weighing causes", 0.9)
    change = sides.change
    few = not change.significant and min(change.before.n, change.after.n) < least_values(Q)
    # What is new and faster has nothing to be compared with, and nothing that got worse.
    faster_kinds = judged.verdict == "new_workload" and (change.delta_s or 0.0) < 0
    named = named_causes(
        concatenate(sides.rows), case, sides.windows, about=sides.about, divided=divided,
        risen=[name for name, one in sides.compared.items()
               if one.change.rose or (alone is not None and name == sides.about)],
        verdict="no_change" if faster_kinds else judged.verdict,
        searched=look.chosen.searched, dated=look.chosen.known,
        blind=look.blind, few=few,
    )  # fmt: skip
    beside = sides.outcomes.significant or mine.outside_engines >= COUNTS
    moved = judged.verdict not in NOTHING_FOUND
    judged = beside_a_fault(with_proof(judged, named, change, few=few, beside=beside), named)
    return _Weighed(look, sides, mine, spread, judged, cohorts, named, moved=moved)


def _look(case: Case, settings: Settings, rows: Columns, metric: Metric | None) -> Look:
    """Choose the windows, unless they are given."""
    given = replace(
        settings, before=settings.before or case.before, after=settings.after or case.after
    )  # checked again: one may be the command's and the other the case's
    windows, odd = _as_recorded((given.before, given.after), case)
    look = look_at(
        first_content(rows), case.searched, before=windows[0], after=windows[1], at=given.at,
        metric=metric, gaps=unrecorded(rows.start / 1e9, case.signals),
    )  # fmt: skip
    return replace(look, chosen=replace(look.chosen, warnings=(*odd, *look.chosen.warnings)))


def _as_recorded(
    windows: tuple[Window | None, Window | None], case: Case
) -> tuple[list[Window | None], list[str]]:
    """Return windows that are given without what is before all data, and what is odd of them.

    What little they share counts as after.
    """
    first = min((float(t.min()) for t in (case.rows.start / 1e9, case.signals.t) if len(t)),
                default=-math.inf)  # fmt: skip
    found: list[Window | None] = [*windows]
    odd: list[str] = []
    before, after = windows
    if before is None and after is not None and not (case.rows.start / 1e9 < after.start).any():
        said = "no request is older than the window after: all of the time was searched"
        return [None, None], [said]
    if before is not None and after is not None and before.start >= after.end:
        odd.append(Doubt("the window before is later than the other: are they swapped?"))
    if before is not None and after is not None and before.start < after.start < before.end:
        found[0] = replace(before, end=after.start)
        odd.append(f"the window before ends where the other begins, {date_and_zone(after.start)}")
    for i, (name, one) in enumerate(zip(("before", "after"), found, strict=True)):
        if one is not None and one.start + _HEAD * one.seconds < first < one.end:
            found[i] = replace(one, start=first)
            odd.append(f"the data begin {date_and_zone(first)}, and so does the window {name}")
    return found, odd


def _compare(look: Look, metric: Metric | None) -> _Sides:
    """Compare every metric of the windows; `metric` is the one to explain, if that is given.

    Faster is good news only where nothing else got worse, judged as in windows that were given.
    """
    sides = _compared(look, metric, look.alarm, look.alarm_of_outcomes)
    if sides.change.significant and sides.change.grew[0] < 0:
        strict = _compared(look, metric, (CERTAIN, LEAST), CERTAIN / 2)
        worst = max(_WAITS, key=lambda name: strict.compared[name].change.grew[0])
        if strict.outcomes.significant or strict.outcomes.gave_up:
            return replace(strict, about=metric or worst)
        return strict if strict.compared[strict.about].change.rose else sides
    return sides


def _compared(
    look: Look, metric: Metric | None, alarm: tuple[float, float], of_outcomes: float
) -> _Sides:
    windows = (look.chosen.before, look.chosen.after)
    rows = (thinned(look.whole[0]), thinned(look.whole[1]))
    certain, least = alarm
    both = {name: measured(rows, windows, name) for name in METRICS}
    compared = {
        name: compare(
            both[name],
            certain=certain / (1 if name == metric else len(METRICS)), least=least,
            shown=look.shows_rise(name), remembers=look.by_chance <= highest_stretch.SURE,
        )
        for name in METRICS
    }  # fmt: skip
    return _Sides(
        windows, rows, both, compared,
        outcomes=compare_outcomes(*rows, of_outcomes),
        load={"before": load_of(rows[0], windows[0]), "after": load_of(rows[1], windows[1])},
        about=_about(metric, compared),
    )  # fmt: skip


def _about(metric: Metric | None, compared: Mapping[Metric, Compared]) -> Metric:
    """Return the metric to explain: one that rose where the one given fell, or is little known."""
    moved = which_moved(compared)
    if metric is None:
        return moved
    one, other = compared[metric].change, compared[moved].change
    known = one.rose or (not one.significant and min(one.before.n, one.after.n) >= least_values(Q))
    return moved if not known and other.rose else metric


def _resample(sides: _Sides, mine: Divided, settings: Settings, report: Progress) -> Spread | None:
    """Return the intervals of the change's parts, if they were requested and can be had."""
    if not settings.bootstrap or not sides.enough or mine.found is None:
        return None
    return bootstrap(
        mine.before, mine.after, Q, mine.found, times=settings.bootstrap, seed=settings.seed,
        progress=lambda share: report("resampling for intervals", 0.35 + 0.45 * share),
        cut=mine.cut,
    )  # fmt: skip


def _judge(look: Look, sides: _Sides, mine: Divided, spread: Spread | None) -> Judged:
    return in_time(
        judge(
            sides.compared[sides.about],
            mine,
            spread,
            sides.outcomes,
            thorough=look.chosen.searched and look.rows.n > FEW,
            sized=not lengths_unknown(sides.rows, sides.about),
            usual=lambda: usual_parts(sides.rows, sides.about),
        ),
        look.mine,
        sides.load,
        after=look.chosen.after,
        span_s=look.span.seconds,
        alike_days=look.alike_days,
        metric=sides.about,
    )


def _alone(look: Look, sides: _Sides, judged: Judged, *, unmatched: float) -> Group | None:
    """Return the kind of request that moved though all together did not; windows are given.

    Where many are of kinds never seen before (`unmatched`), a tenant's are no kind of their own.
    """
    if look.chosen.searched or judged.verdict not in NOTHING_FOUND or unmatched > NEW_SHARE:
        return None
    return clearest_group(sides.rows, sides.windows)


def _cohorts(sides: _Sides, mine: Divided) -> tuple[Cohort, ...]:
    """Return who is affected by a rise: of failures first."""
    change, compared = sides.change, sides.compared[sides.about]
    failing: tuple[Cohort, ...] = ()
    if sides.outcomes.significant:
        failing = failing_cohorts(sides.rows, (sides.rows[0].failed, sides.rows[1].failed))
    if not change.significant or (change.delta_s or 0.0) <= 0:
        return failing
    return failing + find_cohorts(
        sides.rows,
        sides.of_metric,
        mine.cells,
        threshold=compared.threshold,
        q=Q,
        design=compared.design[0],
    )


def _quality(found: _Weighed, case: Case, *, duplicates: int, intervals: bool) -> Quality:
    look, sides, mine = found.look, found.sides, found.mine
    return quality_of(
        sides.of_metric, sides.compared[sides.about], mine, rows=sides.rows,
        there=sum(map(len, look.whole)),
        stands_for=float(sum(rows.weights.sum() for rows in look.whole)), duplicates=duplicates,
        warnings=(*([case.note] if case.note else []), *look.chosen.warnings, *_without_rows(look),
                  *case.warnings),
        intervals=intervals,
    )  # fmt: skip


def _without_rows(look: Look) -> Iterator[str]:
    """Yield where the rows are, for a window in which none starts."""
    windows = zip(("before", "after"), (look.chosen.before, look.chosen.after), strict=True)
    for (name, window), rows in zip(windows, look.whole, strict=True):
        if not len(rows) and len(look.rows):
            first, last = (date_and_zone(look.rows.start[i] / 1e9) for i in (0, -1))
            span = time_span(window.start, window.end)
            yield f"no request starts {name}, {span}: they start from {first} to {last}"


def _result(found: _Weighed, *, quality: Quality, seed: int) -> Result:
    """Put together what was found of the windows; `onset_and_impact` adds the course."""
    sides, mine, judged, cohorts = found.sides, found.mine, found.judged, found.cohorts
    change, both, compared = sides.change, sides.of_metric, sides.compared[sides.about]
    p95s = (change.before.p95, change.after.p95)
    return Result(
        verdict=judged.verdict,
        reason=judged.reason,
        metric=sides.about if change.before.n or change.after.n else None,
        quantile=Q,
        before=change.before,
        after=change.after,
        delta_s=change.delta_s,
        significant=change.significant,
        contributions=contributions_of(
            change.delta_s, mine.found, found.spread, significant=sides.enough
        ),
        cohorts=cohorts,
        localised=bool(cohorts),
        causes=found.causes,
        exemplars=exemplars(sides.rows, both, *p95s),
        quality=quality,
        changes=tuple(
            sides.compared[name].change for name in METRICS if any(map(len, sides.values(name)))
        ),
        moved=all_moved(sides.compared, sides.outcomes),
        outcomes=sides.outcomes,
        load=sides.load,
        anatomy=anatomy_of(mine, *p95s),
        estimates=estimates_of(sides.rows, seed),
        smallest_visible=compared.visible,
        smallest_visible_share=compared.visible_share,
        settle=_settle(
            judged.verdict,
            both,
            sides.windows,
            sized="mix" not in quality.unreported,
            first=found.look.span.start,
        ),
        grew=growth_of(sides.rows, both, max(compared.design)),
    )


def _settle(
    verdict: str,
    both: tuple[Values, Values],
    windows: tuple[Window, Window],
    *,
    sized: bool,
    first: float,
) -> tuple[str, ...]:
    if verdict == "not_enough_data":
        needed = least_values(Q)
        return tuple(
            f"{number_of(needed - len(one), 'more request')} {when} that report {one.metric}{how}"
            for when, one, how in zip(
                ("before", "after"),
                both,
                (_earlier(both[0], windows, needed, first), ""),
                strict=True,
            )
            if len(one) < needed
        )
    if verdict in _BY_WORK and not sized:
        return ("token counts of requests, to distinguish more work from slower work",)
    if verdict == "new_workload":
        return ("a window before in which the same kinds of request were made",)
    return ()


def _earlier(one: Values, windows: tuple[Window, Window], needed: int, first: float) -> str:
    """Return how to compare with a window before that has enough requests, at the rate it had."""
    before, after = windows
    if not len(one):
        return ": give a time with requests by `--before START/END`"
    start = before.end - 1.1 * before.seconds * needed / len(one)
    if start < first:
        return ": no earlier data were read"
    longer = replace(before, start=start)
    named = (f"{utc(window.start)}/{utc(window.end)}" for window in (longer, after))
    return ": `--before {} --after {}`".format(*named)
