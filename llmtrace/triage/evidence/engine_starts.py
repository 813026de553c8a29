"""Find engines that have just started, and how slow requests to them are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from llmtrace.dataset.case import Window
from llmtrace.stats.arrays import Floats, Mask, finite
from llmtrace.triage.evidence.changes import HALF, MIN_COUNT, SURE
from llmtrace.triage.evidence.evidence import Evidence, memoized
from llmtrace.triage.evidence.signals import Series, gauges
from llmtrace.triage.evidence.window_rows import Side

_RECENT: Final = 1.0  # window lengths before the window in which a start is recent
_AGES: Final = (0.15, 0.3, 0.6)  # quantiles of the age that are tried as limits of "fresh"
_SLOW: Final = 0.25  # of the requests before are slower than their p75
_STILL_SLOW: Final = 0.5  # of the fresh requests' delay
_WARM: Final = 20  # requests that an engine has served before the window; it started earlier
COUNTERS: Final = ("tokens_out", "generation_tokens", "finished", "e2e_count")
_SEVERAL: Final = 3  # samples, or requests
_FAR_LONGER: Final = 10.0  # times
_AT_ONCE: Final = 0.1  # of the time that they were held for
_RESET: Final = 0.5  # of the previous value; a lower value means that the counter was reset


@memoized
def starts(e: Evidence) -> Mapping[str, float]:
    """Return when engines started that did so shortly before the window after, or in it."""
    recent = _RECENT * max(e.after.window.seconds, 0.5 * e.before.window.seconds)
    since = e.after.window.start - recent
    # If the windows are close, anything that started since the window before is new.
    if 0 <= e.after.window.start - e.before.window.end <= e.before.window.seconds:
        since = min(since, e.before.window.end)
    until = e.after.window.end
    stated = {name: np.array([facts["started"]]) for name, facts in e.facts.instances.items()
              if isinstance(facts.get("started"), int | float)}  # fmt: skip
    found: dict[str, float] = {}
    for seen in (_start_times(e), stated, _first_seen(e)):
        for name, times in seen.items():
            fresh = times[(times >= since) & (times < until)]
            if len(fresh):
                found.setdefault(name, float(fresh.max()))
    return {name: t for name, t in found.items() if _requests_served(e, name, t) < _WARM}


def _process_starts(series: Series) -> Floats:
    """Return when the process behind each sample started, or took over an engine's name."""
    earlier = np.roll(series.t, 1)  # time of the previous sample
    took_over = (np.diff(series.value, prepend=np.inf) > 0) & (series.value < earlier)
    step = float(np.median(np.diff(series.t))) if len(series.t) > 1 else 0.0
    return np.where(took_over, series.t - step, series.value)


def _requests_served(e: Evidence, name: str, since: float) -> float:
    """Return how many requests of before an engine served since its start, or on average."""
    words, young = e.before.rows.words["replica"], e.before.t >= since
    if (words.codes >= 0).any():
        return float((words.where(name) & young).sum())
    return float(young.sum()) / max(len(e.instances), 1)


def _start_times(e: Evidence) -> Mapping[str, Floats]:
    """Return when engines started, in order: by the gauge `started`, else by counters' resets."""
    if e.has("started"):
        return {name: np.unique(_process_starts(one)) for name, one in e.series("started").items()}
    found: dict[str, Floats] = {}
    for signal in COUNTERS:
        for name, one in gauges(e.signals, signal).items():
            fell = np.flatnonzero(one.value[1:] < _RESET * one.value[:-1])
            if len(fell):
                found.setdefault(name, one.t[fell])
    return found


def stalled_start(e: Evidence) -> tuple[str, float] | None:
    """Return the engine that made no token for longest after its start, and for how many seconds.

    Only while requests waited in it, by its own count; `None` = none did.
    """
    found: tuple[str, float] | None = None
    for name, at in starts(e).items():
        counters = (e.rates(one).get(name) for one in ("tokens_out", "finished"))
        tokens, waiting = next(filter(None, counters), None), e.series("waiting").get(name)
        if tokens is None or waiting is None:
            continue
        made = tokens.within(Window(at, e.served.end))
        first = made.t[made.value > 0]
        until = float(first[0]) if len(first) else e.served.end
        held = waiting.within(Window(at, until)).value
        if len(held) and held.max() >= 1 and (found is None or until - at > found[1]):
            found = (name, until - at)
    return found


def _first_seen(e: Evidence) -> Mapping[str, Floats]:
    """Return the replicas that are seen after but not before, and when first, if others were."""
    before, after = (_first_seen_in(e, side, "running") for side in (e.before, e.after))
    return {name: np.array([t]) for name, t in after.items() if before and name not in before}


def _first_seen_in(e: Evidence, side: Side, signal: str) -> Mapping[str, float]:
    """Return when each engine is first seen in a window, by rows or by samples of a gauge."""
    words = side.rows.words["replica"]
    first = {words.names[code]: float(side.t[words.codes == code].min())
             for code in np.unique(words.codes[words.codes >= 0])}  # fmt: skip
    for name, series in e.series(signal).items():
        times = series.within(side.window).t
        if len(times):
            first[name] = min(first.get(name, np.inf), float(times[0]))
    return first


@memoized
def loading(e: Evidence) -> Mapping[str, float]:
    """Return since when engines are scraped that have not answered once: they were added."""
    series = {name: one for name, one in e.series("up").items() if name not in e.series("running")}
    return {name: float(one.t[0]) for name, one in series.items()
            if len(one.within(e.after.window).t) >= _SEVERAL and not one.value.any()}  # fmt: skip


@memoized
def held_for_start(e: Evidence) -> int | None:
    """Return how many requests a gateway held until one moment, as until an engine served.

    `None` = too few, not at one moment, or no engine was added that was still loading.
    """
    usual, held = e.before.number("gateway_s"), e.after.number("gateway_s")
    if not (e.events("scale") and loading(e)) or not np.isfinite(usual).any():
        return None
    typical = np.nanmedian(e.before.number("e2e_s"))
    long = held > _FAR_LONGER * np.nanpercentile(usual, 95) + typical
    released = (e.after.t + held)[long]
    together = len(released) >= _SEVERAL and np.ptp(released) <= _AT_ONCE * np.median(held[long])
    return len(released) if together else None


@memoized
def restarted(e: Evidence) -> Mapping[str, float]:
    """Return when engines started again that were running before."""
    first = _first_seen_in(e, e.before, "started")
    return {name: t for name, t in starts(e).items() if t > first.get(name, np.inf)}


@dataclass(frozen=True, slots=True)
class Fresh:
    """How slow requests are on engines that had just started, against all other requests.

    Attributes:
        of: the row field that is compared: time per token if that is the metric, else first chunk.
        within: seconds after the start that count as fresh; 0 or less = while it was starting.
        n: number of fresh requests.
        fresh, other: p75 of the fresh requests and of the others, seconds.
        early, late: medians of the first and second half of the fresh requests, by time.
        slow_share: share of the slow requests that are fresh.
        slower: whether fresh ones are slower than before and than the others, beyond chance.
        stays: whether the last requests to these engines are slow as well; a cold start ends.
    """

    of: str
    within: float
    n: int
    fresh: float
    other: float
    early: float
    late: float
    slow_share: float
    slower: bool
    stays: bool


def fresh(e: Evidence, started: Mapping[str, float]) -> Fresh | None:
    """Compare requests to engines that had just started with the others; `None` = too few."""
    words, of = e.after.rows.words["replica"], "tpot_s" if e.metric == "tpot_s" else "ttft_s"
    took, t = e.after.number(of), e.after.t
    known = np.isfinite(took)
    if known.sum() < 3 * MIN_COUNT or not started:
        return None
    if not (words.codes >= 0).any() and len(started) < HALF * len(e.instances):
        return None  # rows name no engine, and most requests were on other engines
    age = np.full(len(t), np.inf)
    answered = t + np.nan_to_num(e.after.number("ttft_s"))
    start_times = _start_times(e)
    for name, at in started.items():
        here = words.where(name) if (words.codes >= 0).any() else np.ones(len(t), bool)
        # An engine may start several times; a request counts for the last start before its answer.
        earlier = start_times.get(name, np.empty(0))
        began = np.append(earlier[earlier < at], at)
        age = np.where(here, t - began[np.maximum(np.searchsorted(began, answered) - 1, 0)], age)
    near = known & (age > -0.1 * e.after.window.seconds)  # it may have waited for the start
    ages = {float(until): near & (age <= until) for until in _ages(age[known])}
    ages = {until: young for until, young in ages.items()
            if min(young.sum(), (known & ~young).sum()) >= MIN_COUNT}  # fmt: skip
    if not ages:
        return None
    within, young = max(ages.items(), key=lambda one: _log_excess(took, known, one[1]))
    last = max(within, float(_ages(age[known])[-1]))
    order = np.argsort(t[young])
    halves = np.array_split(took[young][order], 2)
    before = e.before.number(of)
    p95 = float(np.nanpercentile(before, 95)) if np.isfinite(before).any() else np.inf
    slow = known & (took > p95)
    return Fresh(
        of=of,
        within=within,
        n=int(young.sum()),
        fresh=float(np.percentile(took[young], 75)),
        other=float(np.percentile(took[known & ~young], 75)),
        early=float(np.median(halves[0])),
        late=float(np.median(halves[1])),
        slow_share=float(young[slow].mean()) if slow.any() else 0.0,
        slower=_slower(before, took, known, young),
        stays=_stays(before, took[young], took[known & np.isfinite(age) & (age > last)]),
    )


def _stays(before: Floats, young: Floats, last: Floats) -> bool:
    """Return whether the last requests still have half of the fresh ones' delay or more."""
    if min(int(np.isfinite(before).sum()), len(last)) < MIN_COUNT:
        return False
    usual, early, late = (float(np.nanmedian(one)) for one in (before, young, last))
    sure = _z_slow(before, last) >= SURE
    return bool(sure and late - usual >= _STILL_SLOW * (early - usual))


def _z_slow(before: Floats, took: Floats) -> float:
    """Return how far the share of slow requests is above that before, in standard errors."""
    share = float((took > np.nanpercentile(before, 100 * (1 - _SLOW))).mean())
    return (share - _SLOW) / float(np.sqrt(_SLOW * (1 - _SLOW) / len(took)))


def _ages(age: Floats) -> Floats:
    """Return the ages, seconds, up to which an engine may count as fresh."""
    age = finite(age)
    return np.quantile(age, _AGES) if len(age) else np.empty(0)


def _log_excess(took: Floats, known: Mask, young: Mask) -> float:
    """Return by how many standard errors of log times the fresh requests are slower."""
    with np.errstate(divide="ignore"):
        a, b = np.log(took[young] + 1e-9), np.log(took[known & ~young] + 1e-9)
    error = float(np.sqrt(a.var() / len(a) + b.var() / len(b)))
    return float(a.mean() - b.mean()) / max(error, 1e-9)


def _slower(before: Floats, took: Floats, known: Mask, young: Mask) -> bool:
    """Return whether fresh requests are slow more often than those before, and than the rest."""
    before = finite(before)
    if len(before) < MIN_COUNT:
        return False
    slow = took > float(np.percentile(before, 100 * (1 - _SLOW)))
    share, rest = float(slow[young].mean()), float(slow[known & ~young].mean())
    higher = np.percentile(took[young], 75) >= 1.3 * np.percentile(took[known & ~young], 75)
    return bool(_z_slow(before, took[young]) >= SURE and share >= rest and higher)
