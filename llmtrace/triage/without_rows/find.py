"""Find what moved, and why, from engines' signals alone.

Means of stages are sums over counts: exact for all requests of a window, and they add up.
Percentiles are known as precisely as the engine's buckets. For the causes' rules, means between
scrapes replace requests; causes that need requests are listed as not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from llmtrace.core.errors import DataError
from llmtrace.dataset.case import Case, Signals, Window
from llmtrace.dataset.columns import Columns, Doubt
from llmtrace.dataset.rows_in_order import in_order
from llmtrace.display.summary_tables import date_and_zone
from llmtrace.triage.causes import causes
from llmtrace.triage.evidence.changes import MIN_COUNT, Shift
from llmtrace.triage.evidence.evidence import Evidence, gather
from llmtrace.triage.evidence.signals import gauges
from llmtrace.triage.pipeline import Settings
from llmtrace.triage.result import CAUSES, NAMED, Finding, Metric
from llmtrace.triage.without_rows.halts import Halt, halts
from llmtrace.triage.without_rows.intervals import DURATIONS, ended, gaps, interval_rows
from llmtrace.triage.without_rows.stretch import find_stretch

Verdict = Literal["stopped", "moved", "no_change", "not_enough_data"]
# Cumulative counts of requests by upper bound, of a duration in a window; empty = not reported.
Buckets = Callable[[str, Window], Sequence[tuple[float, float]]]

# Causes whose rules need nothing that only single requests show.
WITHOUT_ROWS: Final = frozenset(
    {
        "queue_saturation", "kv_exhaustion", "prefix_cache_collapse", "low_spec_acceptance",
        "gpu_throttle", "batch_size", "long_prompts", "longer_outputs",
        "kv_transfer", "grammar_compilation", "replica_imbalance", "engine_paused",
    }
)  # fmt: skip
_METRICS: Final[tuple[Metric, ...]] = ("ttft", "tpot", "e2e")
_PARTS: Final = ("queue", "prefill", "decode")
_QUANTILES: Final = (0.5, 0.95)
_SEVERAL: Final = 3  # intervals between scrapes
_RISE: Final = 0.2  # relative rise of a mean beyond that of any day


@dataclass(frozen=True, slots=True)
class Mean:
    """A duration's mean over all requests of a window, in seconds; `None` = not reported.

    `name` is a duration that engines count, or `rest`: the whole request without queue, prefill
    and decode.
    """

    name: str
    before: float | None
    after: float | None


@dataclass(frozen=True, slots=True)
class Bounded:
    """A percentile as known from buckets: over the first bound, and at most the second.

    `None` = not reported, or nothing counted; infinity = above the last bound.
    """

    name: str
    quantile: float
    before: tuple[float, float] | None
    after: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class OneEngine:
    """What one engine counted: requests with the metric, and its mean, before and after.

    The mean is in seconds; `None` = there were none.
    """

    instance: str
    requests: tuple[float, float]
    mean: tuple[float | None, float | None]

    @property
    def added_s(self) -> float:
        """Return by how much longer its requests took, all together."""
        before, after = self.mean
        return 0.0 if before is None or after is None else (after - before) * self.requests[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTriage:
    """What moved, by engines' own counts.

    Attributes:
        metric: which the causes are about.
        requests: that ended before and after.
        means: `queue`, `prefill`, `decode` and `rest` add up to `e2e`.
        causes: the best supported first, of those whose rules need no rows.
        needs_rows: causes that cannot be known without rows.
        engines: each engine, those whose requests added most first.
        searched: whether the windows were searched for, not given.
        recovered_at: when what a search found was over; `None` = it was not, or none was found.
        halts: engines that ended no request for long, or are not scraped any more.
    """

    verdict: Verdict
    reason: str
    metric: Metric
    before: Window
    after: Window
    searched: bool
    recovered_at: float | None
    engines: tuple[OneEngine, ...]
    requests: tuple[float, float]
    means: tuple[Mean, ...]
    percentiles: tuple[Bounded, ...]
    causes: tuple[Finding, ...]
    needs_rows: tuple[str, ...]
    halts: tuple[Halt, ...]
    warnings: tuple[str, ...]


def triage_engines(case: Case, settings: Settings, buckets: Buckets) -> EngineTriage:
    """Find what moved in the signals of a case; its rows are not used.

    Buckets count requests; windows and metric may be in the settings.

    Raises:
        DataError: no engine counted a request in that time.
    """
    rows, _ = in_order(interval_rows(case.signals))
    ends = case.signals.t.max(initial=0.0) if case.searched is None else case.searched.end
    stopped = halts(case.signals, float(ends))
    if not rows.n:
        raise _nothing_counted(case.signals)
    missing = gaps(case.signals)
    for gap in missing:
        t = rows.start / 1e9
        rows = rows.take((t <= gap.start) | (t > gap.end))
    since = _since(stopped, case.signals)
    given = settings.before or settings.after
    if since is not None and not given and (settings.at is None or settings.at >= since):
        before, after = Window(float(rows.start[0]) / 1e9, since), Window(since, float(ends))
        searched = found_one = True
    else:
        before, after, searched, found_one = _windows(rows, settings, missing)

    found = gather(rows, case.signals, case.facts, before, after)
    found = replace(found, of_means=True, unrecorded=tuple(missing))
    shifts = {name: found.row(f"{name}_s") for name in _METRICS}
    moved = [name for name in _METRICS if _rose(shifts[name])]
    metric: Metric = settings.metric or (_longer(moved, found) if moved else _most(shifts))
    found = replace(found, metric=f"{metric}_s")
    verdict, reason = _verdict(metric, shifts[metric], blind=searched and not found_one)
    if verdict == "no_change" and (doubts := [w for w in case.warnings if isinstance(w, Doubt)]):
        verdict, reason = "not_enough_data", f"Nothing moved in what was answered. {doubts[0]}"
    if since is not None and after.end > since:
        verdict, reason = "stopped", "Requests that do not end are in no mean below."
    return EngineTriage(
        verdict=verdict,
        reason=reason,
        metric=metric,
        before=before,
        after=after,
        searched=searched,
        recovered_at=after.end if found_one and searched and _is_over(after, rows) else None,
        engines=_engines(found, metric),
        requests=found.ended or (0.0, 0.0),
        means=tuple(_means(found)),
        percentiles=tuple(_percentiles(metric, (before, after), buckets)),
        causes=tuple(one for one in causes(found, WITHOUT_ROWS) if one.id in WITHOUT_ROWS)
        if verdict in {"moved", "stopped"}
        else (),
        needs_rows=tuple(name for name in CAUSES if name not in WITHOUT_ROWS),
        halts=stopped,
        warnings=(*case.warnings, *(f"no engine was scraped {_from_to(gap)}" for gap in missing)),
    )


def _is_over(after: Window, rows: Columns) -> bool:
    """Return whether engines ended requests after a window, in several intervals each."""
    engines = len(np.unique(rows.words["replica"].codes))
    return int(np.count_nonzero(rows.start / 1e9 >= after.end)) >= _SEVERAL * engines


def _engines(evidence: Evidence, metric: Metric) -> tuple[OneEngine, ...]:
    sums, counts = (evidence.counted_by(f"{metric}_{part}") for part in ("sum", "count"))
    found = [OneEngine(name, n, _ratios(sums[name], n)) for name, n in counts.items()
             if name in sums]  # fmt: skip
    return tuple(sorted(found, key=lambda one: -one.added_s))


def _ratios(
    sums: tuple[float, float], counts: tuple[float, float]
) -> tuple[float | None, float | None]:
    before, after = (
        total / count if count > 0 else None for total, count in zip(sums, counts, strict=True)
    )
    return before, after


def _nothing_counted(signals: Signals) -> DataError:
    busy = {name: gauges(signals, name).values() for name in ("running", "waiting")}
    had = ", ".join(f"{sum(one.value.max(initial=0.0) for one in of):,.0f} {name}"
                    for name, of in busy.items() if of)  # fmt: skip
    return DataError(
        f"no engine counted a request in that time (at most {had or 'none known'}): sums and "
        "counts of requests' durations are what this reads. Read a time in which requests "
        "ended, too, with --last; llmtrace doctor URL says what an engine reports"
    )


def _since(stopped: Sequence[Halt], signals: Signals) -> float | None:
    """Return since when engines do not end what they have, or none is left; `None` = they do."""
    stuck = [one.since for one in stopped if one.until is None and one.scraped]
    gone = [one.since for one in stopped if not one.scraped]
    last = max((float(one.t[-1]) for one in ended(signals).values()), default=np.inf)
    return min([*stuck, *(one for one in gone if one >= last)], default=None)


def _windows(
    rows: Columns, settings: Settings, missing: Sequence[Window]
) -> tuple[Window, Window, bool, bool]:
    """Return the windows to compare, whether they were searched for, and whether any was found."""
    before, after = settings.before, settings.after
    first, last = float(rows.start[0]) / 1e9, float(rows.start[-1]) / 1e9 + 1e-3
    if after is None and before is not None:
        after = Window(before.end, last)
    if after is not None:
        return before or Window(first, after.start), after, False, True
    for gap in missing:
        if settings.at is not None and gap.start < settings.at < gap.end:
            raise DataError(
                f"--at {date_and_zone(settings.at)}: no engine was scraped {_from_to(gap)}"
            )
    metrics = _METRICS if settings.metric is None else (settings.metric,)
    found = find_stretch(rows, [f"{name}_s" for name in metrics], settings.at, missing)
    if found is not None:
        return *found, True, True
    edges = [first, *(edge for gap in missing for edge in (gap.start, gap.end)), last]
    recorded = [Window(*pair) for pair in zip(edges[::2], edges[1::2], strict=True)]
    at = settings.at
    there = [one for one in recorded if at is not None and one.start <= at < one.end]
    whole = max(there or recorded, key=lambda one: one.seconds)
    middle = at or (whole.start + whole.end) / 2
    return Window(whole.start, middle), Window(middle, whole.end), True, False


def _from_to(gap: Window) -> str:
    return f"from {date_and_zone(gap.start)} to {date_and_zone(gap.end)}"


def _rose(shift: Shift | None) -> bool:
    return shift is not None and (shift.rose(0.0, _RISE) or shift.mean_rose(0.0, _RISE))


def _longer(moved: Sequence[Metric], evidence: Evidence) -> Metric:
    """Return the first metric that moved; of TTFT and TPOT, the one whose wait grew by more."""
    first, decode = (evidence.row(f"{name}_s") for name in ("ttft", "decode"))
    if first is None or decode is None or not {"ttft", "tpot"} <= {*moved}:
        return moved[0]
    added = [one.mean_change for one in (first, decode)]
    return "tpot" if added[1] > added[0] else "ttft"


def _most(shifts: dict[Metric, Shift | None]) -> Metric:
    known = {name: one for name, one in shifts.items() if one is not None}
    return max(known, key=lambda name: known[name].ratio) if known else "ttft"


def _verdict(metric: Metric, shift: Shift | None, *, blind: bool) -> tuple[Verdict, str]:
    if shift is None:
        return "not_enough_data", (
            f"Too few intervals between scrapes in which requests ended and {metric} was counted: "
            f"{MIN_COUNT} on each side are the least."
        )
    if blind or not _rose(shift):
        return "no_change", "No mean of the engines' own counts rose beyond its usual variation."
    return "moved", "It is what engines counted; what is outside of them is not seen here."


def _means(evidence: Evidence) -> list[Mean]:
    found = {name: _mean(evidence, name) for name in DURATIONS.values()}
    rest: list[float | None] = []
    for side in (0, 1):
        whole = found["e2e"][side]
        parts = [found[name][side] for name in _PARTS]
        known = [part for part in parts if part is not None]
        rest.append(None if whole is None or not known else whole - sum(known))
    listed = {
        **{name: found[name] for name in _PARTS},
        "rest": (rest[0], rest[1]),
        **{name: found[name] for name in ("e2e", "ttft", "tpot")},
    }
    return [Mean(name, *both) for name, both in listed.items()]


def _mean(evidence: Evidence, name: str) -> tuple[float | None, float | None]:
    sums, counts = evidence.counted(f"{name}_sum"), evidence.counted(f"{name}_count")
    return (None, None) if sums is None or counts is None else _ratios(sums, counts)


def _percentiles(
    metric: Metric, windows: tuple[Window, Window], buckets: Buckets
) -> Iterator[Bounded]:
    for name in dict.fromkeys((str(metric), "ttft", "queue", "prefill", "tpot", "e2e")):
        for q in _QUANTILES:
            yield Bounded(name, q, *(_bounds(buckets(name, one), q) for one in windows))


def _bounds(counts: Sequence[tuple[float, float]], q: float) -> tuple[float, float] | None:
    """Return the bounds of the bucket that contains a quantile.

    Example:
        >>> _bounds([(0.1, 10.0), (0.5, 96.0), (float("inf"), 100.0)], 0.95)
        (0.1, 0.5)
    """
    ordered = sorted(counts)
    if not ordered or not ordered[-1][1] > 0:
        return None
    below = 0.0
    for bound, count in ordered:
        if count >= q * ordered[-1][1]:
            return below, bound
        below = bound
    return None


def as_plain(result: EngineTriage) -> dict[str, Any]:
    """Return a result for JSON, as docs/on-call/engine-triage-result.schema.json describes it."""
    plain = asdict(result)
    for one in plain["percentiles"]:
        for side in ("before", "after"):
            if one[side] is not None:
                low, high = one[side]
                one[side] = {"over": low, "at_most": None if high == float("inf") else high}
    return plain


def named(result: EngineTriage) -> tuple[Finding, ...]:
    """Return the causes that are at least possible."""
    return tuple(one for one in result.causes if one.status in NAMED)
