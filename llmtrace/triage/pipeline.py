"""Find out why a p95 moved: the whole triage, step by step.

Rows and signals go in, a `Result` comes out. Nothing here reads a file, a clock or a random number
that is not seeded: the same case gives the same result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from llmtrace.dataset.case import Case, Window
from llmtrace.dataset.columns import concatenate
from llmtrace.errors import ConfigError
from llmtrace.stats.quantiles import least_values
from llmtrace.triage.attribution.attribute import bootstrap
from llmtrace.triage.attribution.cohorts import find_cohorts
from llmtrace.triage.attribution.components import METRICS, Values, first_content, values
from llmtrace.triage.attribution.divide_change import divide, usual_parts
from llmtrace.triage.attribution.exemplars import exemplars
from llmtrace.triage.attribution.for_result import anatomy_of, contributions_of, estimates_of
from llmtrace.triage.attribution.request_load import load_of
from llmtrace.triage.comparison.outcomes import compare_outcomes
from llmtrace.triage.comparison.p95_change import MIN_COUNT, compare
from llmtrace.triage.comparison.which_moved import all_moved, which_moved
from llmtrace.triage.mix_growth import growth_of
from llmtrace.triage.named_causes import lacks_what, named_causes, with_proof
from llmtrace.triage.quality import quality_of
from llmtrace.triage.result import Cohort, Metric, Result
from llmtrace.triage.rows_in_order import in_order, thinned
from llmtrace.triage.verdict import in_time, judge
from llmtrace.triage.windows.choose import FEW
from llmtrace.triage.windows.look import look_at
from llmtrace.triage.windows.unrecorded import unrecorded
from llmtrace.triage.with_time import NOTHING_FOUND, with_time

Q: Final = 0.95

# Chance of a false alarm, and the least share of the p95 that matters: where the user chose the
# windows, and where they were chosen among thousands.
_GIVEN: Final = (0.01, 0.1)
_FOUND: Final = (1e-6, 0.2)
_MAX_DRAWS: Final = 10_000


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
    bootstrap: int = 200
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
            overlap = min(self.before.end, self.after.end) - begin
            if overlap > 0:
                raise ConfigError(f"before and after overlap by {overlap:g} s")


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
    report = progress or _silent
    metric: Metric | None = settings.metric or case.metric  # type: ignore[assignment]
    report("sorting rows", 0.0)
    rows, duplicates = in_order(case.rows)
    report("looking for the spike", 0.1)
    look = look_at(
        first_content(rows),
        case.searched,
        before=settings.before or case.before,
        after=settings.after or case.after,
        at=settings.at,
        metric=metric,
        gaps=unrecorded(rows.start / 1e9, case.signals.t),
    )
    windows = (look.chosen.before, look.chosen.after)
    sides = (thinned(look.whole[0]), thinned(look.whole[1]))
    report("comparing", 0.2)
    certain, least = _FOUND if look.chosen.searched else _GIVEN
    wanted = METRICS if metric is None else (metric,)
    measured = {name: (values(sides[0], name), values(sides[1], name)) for name in METRICS}
    compared = {
        name: compare(
            sides, windows, measured[name], Q, certain=certain / len(wanted), least=least
        )
        for name in METRICS
    }
    outcomes = compare_outcomes(*sides)
    about = metric or which_moved(compared)
    report("dividing the change", 0.3)
    looked_into: set[Metric] = {about, "ttft", "tpot"}
    divided = {name: divide(sides, measured[name], Q) for name in looked_into}
    mine = divided[about]
    spread = None
    enough = min(len(measured[about][0]), len(measured[about][1])) >= MIN_COUNT
    if settings.bootstrap and enough and mine.found is not None:
        spread = bootstrap(
            mine.before,
            mine.after,
            Q,
            mine.found,
            times=settings.bootstrap,
            seed=settings.seed,
            progress=lambda share: report("resampling for intervals", 0.35 + 0.45 * share),
        )
    report("looking for cohorts", 0.8)
    change = compared[about].change
    load = {"before": load_of(sides[0], windows[0]), "after": load_of(sides[1], windows[1])}
    judged = in_time(
        judge(
            change,
            mine.found,
            spread,
            outcomes,
            load,
            unmatched=mine.cells.unmatched_share,
            fewest=least_values(Q),
            visible=compared[about].visible,
            thorough=look.chosen.searched and look.rows.n > FEW,
            usual=lambda: usual_parts(sides, about, Q, fewest=least_values(Q)),
        ),
        look.mine,
        load,
        after=look.chosen.after,
        span_s=look.span.seconds,
        alike_days=look.alike_days,
    )
    rose = change.significant and (change.delta_s or 0.0) > 0
    cohorts: tuple[Cohort, ...] = ()
    if rose:
        cohorts = find_cohorts(
            sides,
            measured[about],
            mine.cells,
            threshold=compared[about].threshold,
            q=Q,
            design=compared[about].design[0],
        )
    report("weighing causes", 0.9)
    few = not change.significant and min(change.before.n, change.after.n) < least_values(Q)
    named = named_causes(
        concatenate(sides),
        case,
        windows,
        about=about,
        divided=divided,
        lacks=lacks_what(judged.verdict, blind=look.blind),
        blind=look.blind and judged.verdict in NOTHING_FOUND,
        few=few,
    )
    judged = with_proof(judged, named, few=few)
    result = Result(
        verdict=judged.verdict,
        reason=judged.reason,
        metric=about if change.before.n or change.after.n else None,
        quantile=Q,
        before=change.before,
        after=change.after,
        delta_s=change.delta_s,
        significant=change.significant,
        contributions=contributions_of(change.delta_s, mine.found, spread, significant=enough),
        cohorts=cohorts,
        localised=bool(cohorts),
        causes=named,
        exemplars=exemplars(sides, measured[about], change.before.p95, change.after.p95),
        quality=quality_of(
            measured[about],
            compared[about],
            mine,
            looked_at=sum(map(len, sides)),
            there=sum(map(len, look.whole)),
            stands_for=float(sum(rows.weights.sum() for rows in look.whole)),
            duplicates=duplicates,
            warnings=(*([case.note] if case.note else []), *look.chosen.warnings, *case.warnings),
            intervals=spread is not None or not settings.bootstrap,
        ),
        changes=tuple(compared[name].change for name in METRICS if _any(measured[name])),
        moved=all_moved(compared, outcomes),
        outcomes=outcomes,
        load=load,
        anatomy=anatomy_of(mine, Q, change.before.p95, change.after.p95),
        estimates=estimates_of(sides, settings.seed),
        smallest_visible=compared[about].visible,
        settle=_settle(judged.verdict, measured[about]),
        grew=growth_of(sides, measured[about], max(compared[about].design)),
    )
    found = with_time(result, case, look, compared, about)
    report("done", 1.0)
    return found


def _any(both: tuple[Values, Values]) -> bool:
    return len(both[0]) + len(both[1]) > 0


def _settle(verdict: str, both: tuple[Values, Values]) -> tuple[str, ...]:
    if verdict == "not_enough_data":
        needed = least_values(Q)
        return tuple(
            f"{needed - len(one):,} more requests {when} that report {one.metric}"
            for when, one in zip(("before", "after"), both, strict=True)
            if len(one) < needed
        )
    if verdict == "new_workload":
        return ("a window before in which the same kinds of request were made",)
    return ()


def _silent(_what: str, _share: float) -> None:
    pass
