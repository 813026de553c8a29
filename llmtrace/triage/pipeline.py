"""Find out why a p95 moved: the whole triage, step by step.

Rows and signals go in, a `Result` comes out. Nothing here reads a file, a clock or a random number
that is not seeded: the same case gives the same result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.dataset.case import Case, Window
from llmtrace.dataset.columns import Columns, concatenate
from llmtrace.errors import ConfigError
from llmtrace.stats.quantiles import least_values
from llmtrace.triage.attribution.anatomy import anatomy
from llmtrace.triage.attribution.attribute import NAMES, Attribution, Spread, bootstrap
from llmtrace.triage.attribution.cohorts import find_cohorts
from llmtrace.triage.attribution.components import METRICS, PARTS, Values, first_content, values
from llmtrace.triage.attribution.divide_change import Divided, divide, usual_parts
from llmtrace.triage.attribution.exemplars import exemplars
from llmtrace.triage.attribution.prefill_estimate import estimate_prefill, wants_estimate
from llmtrace.triage.attribution.request_load import load_of
from llmtrace.triage.causes import causes
from llmtrace.triage.comparison.outcomes import compare_outcomes
from llmtrace.triage.comparison.p95_change import FLOOR_S, MIN_COUNT, Compared, compare
from llmtrace.triage.evidence.evidence import gather
from llmtrace.triage.quality import quality_of
from llmtrace.triage.result import (
    NAMED,
    NO_BOUNDS,
    OF_THE_WORK,
    Anatomy,
    Cohort,
    Contribution,
    Estimates,
    Finding,
    Metric,
    Outcomes,
    Result,
    Verdict,
)
from llmtrace.triage.verdict import Judged, judge
from llmtrace.triage.windows.choose import FEW, choose, onset

Q: Final = 0.95

_MAX_ROWS: Final = 200_000  # a window, looked at: beyond, every second, third, ... row
# Chance of a false alarm, and the least share of the p95 that matters: where the user chose the
# windows, and where they were chosen among thousands.
_GIVEN: Final = (0.01, 0.1)
_FOUND: Final = (1e-6, 0.2)
_MAX_DRAWS: Final = 10_000
_LONGER_ANSWERS: Final = 2.0  # times the relative change of its parts


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
    rows, duplicates = _in_order(case.rows)
    rows = first_content(rows)
    kept: dict[Metric, Values] = {}

    def of(name: Metric) -> Values:
        if name not in kept:
            kept[name] = values(rows, name)
        return kept[name]

    report("looking for the spike", 0.1)
    chosen = choose(
        rows,
        of,
        before=settings.before or case.before,
        after=settings.after or case.after,
        at=settings.at,
        metric=metric,
    )
    windows = (chosen.before, chosen.after)
    whole = (rows.within(windows[0].start, windows[0].end),
             rows.within(windows[1].start, windows[1].end))  # fmt: skip
    sides = (_thinned(whole[0]), _thinned(whole[1]))
    report("comparing", 0.2)
    certain, least = _FOUND if chosen.searched else _GIVEN
    wanted = METRICS if metric is None else (metric,)
    measured = {name: (values(sides[0], name), values(sides[1], name)) for name in METRICS}
    compared = {
        name: compare(
            sides, windows, measured[name], Q, certain=certain / len(wanted), least=least
        )
        for name in METRICS
    }
    outcomes = compare_outcomes(*sides)
    about = metric or _which_moved(compared)
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
    judged = judge(
        change,
        mine.found,
        spread,
        outcomes,
        load,
        unmatched=mine.cells.unmatched_share,
        fewest=least_values(Q),
        visible=compared[about].visible,
        thorough=chosen.searched and rows.n > FEW,
        usual=lambda: usual_parts(sides, about, Q, fewest=least_values(Q)),
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
    found_causes = _causes(
        concatenate(sides), case, windows, about=about, divided=divided, verdict=judged.verdict
    )
    judged = _with_proof(judged, found_causes)
    contributions = _contributions(change.delta_s, mine.found, spread, significant=enough)
    result = Result(
        verdict=judged.verdict,
        reason=judged.reason,
        metric=about if change.before.n or change.after.n else None,
        quantile=Q,
        before=change.before,
        after=change.after,
        delta_s=change.delta_s,
        significant=change.significant,
        contributions=contributions,
        cohorts=cohorts,
        localised=bool(cohorts),
        causes=found_causes,
        exemplars=exemplars(sides, measured[about], change.before.p95, change.after.p95),
        quality=quality_of(
            measured[about],
            compared[about],
            mine,
            looked_at=sum(map(len, sides)),
            there=sum(map(len, whole)),
            stands_for=float(sum(rows.weights.sum() for rows in whole)),
            duplicates=duplicates,
            warnings=(*([case.note] if case.note else []), *chosen.warnings, *case.warnings),
            intervals=spread is not None or not settings.bootstrap,
        ),
        changes=tuple(compared[name].change for name in METRICS if _any(measured[name])),
        moved=_moved(compared, outcomes),
        outcomes=outcomes,
        onset=onset(of(about), windows, compared[about].threshold, chosen)
        if change.significant or chosen.found
        else None,
        load=load,
        anatomy=_anatomy(mine, change.before.p95, change.after.p95),
        estimates=_estimates(sides, settings.seed),
        smallest_visible=compared[about].visible,
        settle=_settle(judged.verdict, measured[about]),
    )
    report("done", 1.0)
    return result


def _in_order(rows: Columns) -> tuple[Columns, int]:
    """Return the rows by start, each once, and how many were there twice."""
    start = rows.start
    if len(start) > 1 and (np.diff(start) < 0).any():
        e2e = np.nan_to_num(rows.numbers["e2e_s"], nan=-1.0)
        ttft = np.nan_to_num(rows.numbers["ttft_s"], nan=-1.0)
        rows = rows.take(np.lexsort((ttft, e2e, start)))
    again = _repeated(rows)
    return (rows.take(~again), int(again.sum())) if again.any() else (rows, 0)


def _repeated(rows: Columns) -> NDArray[np.bool_]:
    """Return which rows are there already: of one start and one id."""
    again = np.zeros(len(rows), bool)
    near = np.flatnonzero(np.diff(rows.start) == 0)
    seen: set[tuple[int, bytes, bytes]] = set()
    for i in sorted({*near.tolist(), *(near + 1).tolist()}):
        key = (int(rows.start[i]), bytes(rows.ids["request_id"][i]), bytes(rows.ids["span_id"][i]))
        again[i] = key in seen and bool(key[1] or key[2])
        seen.add(key)
    return again


def _thinned(rows: Columns) -> Columns:
    """Return every second, third, ... row of a window of very many, standing for the others."""
    step = -(-len(rows) // _MAX_ROWS)
    if step <= 1:
        return rows
    kept = rows.take(slice(None, None, step))
    return replace(kept, numbers={**kept.numbers, "weight": kept.weights * step})


def _which_moved(compared: dict[Metric, Compared]) -> Metric:
    """Choose the metric the triage is about.

    The first token and the pace after it say where time went; `e2e` is mostly how long a response
    is, and only used when neither moved, or both by far less.
    """

    def relative(name: Metric) -> float:
        change = compared[name].change
        if not change.significant or not change.delta_s:
            return 0.0
        return change.delta_s / max(change.before.p95 or 0.0, FLOOR_S[name])

    ttft, tpot, e2e = relative("ttft"), relative("tpot"), relative("e2e")
    if max(ttft, tpot) > 0:
        if e2e > _LONGER_ANSWERS * max(ttft, tpot):
            return "e2e"
        return "tpot" if tpot > 2 * max(ttft, 0.0) else "ttft"
    if e2e > 0:
        return "e2e"
    if relative("render") > 0:
        return "render"
    if min(ttft, tpot) < 0:
        return "ttft" if ttft <= tpot else "tpot"
    if e2e < 0:
        return "e2e"
    fewest = {name: min(c.change.before.n, c.change.after.n) for name, c in compared.items()}
    return next(
        (name for name in METRICS if fewest[name] >= least_values(Q)),
        max(METRICS, key=lambda name: fewest[name]),
    )


def _moved(compared: dict[Metric, Compared], outcomes: Outcomes) -> tuple[str, ...]:
    moved: list[str] = [name for name in METRICS if compared[name].change.significant]
    if outcomes.significant:
        moved.append("errors")
    if outcomes.gave_up:
        moved.append("cancelled")
    return tuple(moved)


def _contributions(
    delta: float | None, found: Attribution | None, spread: Spread | None, *, significant: bool
) -> tuple[Contribution, ...]:
    """Return the parts in whole nanoseconds, so that their sum is exact as written."""
    if delta is None:
        return ()
    whole = round(delta * 1e9)
    if found is None:
        return (Contribution(name="mix", seconds=whole / 1e9),)
    parts = [round(float(seconds) * 1e9) for seconds in found.seconds]
    parts[-1] += whole - sum(parts)
    listed = []
    for i, name in enumerate(NAMES):
        bounds = NO_BOUNDS
        sure = False
        if spread is not None:
            low, high = float(spread.low[i]), float(spread.high[i])
            bounds = (round(low, 9), round(high, 9))
            # A stage's stir of a few milliseconds is no part of an incident, however certain.
            sure = significant and (low > 0 or high < 0)
            sure = sure and abs(parts[i]) >= 0.02 * max(abs(whole), 1)
        listed.append(Contribution(name=name, seconds=parts[i] / 1e9, ci=bounds, significant=sure))
    return tuple(listed)


def _causes(
    rows: Columns,
    case: Case,
    windows: tuple[Window, Window],
    *,
    about: Metric,
    divided: dict[Metric, Divided],
    verdict: Verdict,
) -> tuple[Finding, ...]:
    """Apply the rules; they see the first token's stages and the pace's, each of its own metric.

    Where too little is known for a verdict, or nothing moved, no cause is named.
    """
    seconds: dict[str, float] = {}
    for one, stages in ((divided["ttft"], PARTS[:5]), (divided["tpot"], PARTS[5:7])):
        if one.found is not None:
            for stage in stages:
                seconds[stage] = float(one.found.seconds[NAMES.index(stage)])
    evidence = gather(
        rows, case.signals, case.facts, *windows, metric=about, contributions=seconds
    )
    named = causes(evidence)
    lacks = {"not_enough_data": "more requests", "no_change": "a metric that moved"}.get(verdict)
    if lacks is None:
        return tuple(named)
    return tuple(
        replace(one, status="unknown", missing=(*one.missing, lacks))
        if one.status in NAMED and one.status != "confirmed"
        else one
        for one in named
    )


def _with_proof(judged: Judged, found: Sequence[Finding]) -> Judged:
    """Return a verdict that goes with a cause that has proof: then something did happen."""
    if judged.verdict not in ("no_change", "not_enough_data"):
        return judged
    cause = next((one for one in found if one.status == "confirmed"), None)
    if cause is None:
        return judged
    proof = max(cause.evidence, key=lambda point: point.points).text
    verdict: Verdict = "workload" if cause.id in OF_THE_WORK else "regression"
    return Judged(verdict, f"{judged.reason} But {cause.id} has proof: {proof}.")


def _any(both: tuple[Values, Values]) -> bool:
    return len(both[0]) + len(both[1]) > 0


def _anatomy(
    divided: Divided, p95_before: float | None, p95_after: float | None
) -> Anatomy | None:
    if p95_before is None or p95_after is None:
        return None
    return Anatomy(
        before=anatomy(
            divided.before.value, divided.before.staged.parts, Q, p95_before, divided.before.weight
        ),
        after=anatomy(
            divided.after.value, divided.after.staged.parts, Q, p95_after, divided.after.weight
        ),
    )


def _estimates(sides: tuple[Columns, Columns], seed: int) -> Estimates | None:
    if not wants_estimate(sides[1]):
        return None
    found = [estimate_prefill(rows, seed) for rows in sides]
    return Estimates(before=found[0], after=found[1]) if any(found) else None


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
