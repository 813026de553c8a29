"""Choose the window of the incident and the one before it to compare it with.

What the user gives is taken as given. What is left open is found: the spike in the rows, and for
it the quiet stretch before, with a gap between them so that a date off by seconds spoils neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from llmtrace.dataset.case import Window
from llmtrace.dataset.columns import Columns
from llmtrace.stats.arrays import Floats
from llmtrace.triage.attribution.components import METRICS, Values
from llmtrace.triage.comparison.outcomes import failed_mask
from llmtrace.triage.result import Metric, Onset
from llmtrace.triage.windows.spike import (
    CERTAIN,
    Spike,
    bins_for,
    date_change,
    find_failures,
    find_slow,
)

_LONGER: Final = 8.0  # times the incident that the window before may be long
_HOUR_S: Final = 3600.0
_DAY_S: Final = 86_400.0
_ENOUGH: Final = 200
_AT_S: Final = (300.0, 900.0, 1800.0)
_QUIET_SHARE: Final = 0.2
_FOR_A_P95: Final = 72
FEW: Final = 1000  # rows, from which a search that finds nothing is to be believed


@dataclass(frozen=True, slots=True)
class Chosen:
    """The windows to compare, and how they were come by.

    Attributes:
        found: the spike, where the windows were searched for and one was there.
        searched: whether they were; then chance had many attempts, and must be trusted less.
    """

    before: Window
    after: Window
    found: Spike | None
    searched: bool
    warnings: tuple[str, ...] = ()


def choose(
    rows: Columns,
    values: Callable[[Metric], Values],
    *,
    before: Window | None,
    after: Window | None,
    at: float | None,
    metric: Metric | None,
) -> Chosen:
    """Choose the windows.

    Args:
        rows: by start.
        values: a metric of these rows.
        before: as the user gave it; `None` = to be found.
        after: the same.
        at: a time inside the incident, unix seconds.
        metric: the metric the spike is looked for in; `None` = any, and failures.
    """
    if before is not None and after is not None:
        return Chosen(before, after, None, searched=False)
    t = rows.start / 1e9
    if after is not None:
        found, said = _before(t, after, 0.0)
        return Chosen(found, after, None, searched=False, warnings=said)
    since = None if before is None else before.end
    highest = _search(rows, values, since, at, metric)
    spike = highest if highest is not None and highest.score >= CERTAIN else None
    end = float(t[-1]) + 1e-3 if len(t) else 1.0
    warnings: tuple[str, ...] = ()
    if spike is not None:
        after = Window(spike.start, spike.end or end)
        guard = spike.bin_s
    elif highest is not None and before is None and at is None and _carries(t, highest, end):
        after, guard = Window(highest.start, highest.end or end), 0.0
        warnings = ("no spike stands out; the slowest stretch is compared with what was before",)
    elif before is not None:
        after, guard = Window(before.end, max(end, before.end + 1)), 0.0
    elif at is not None:
        after, guard = _around(t, at), 0.0
        warnings = ("no spike stands out at this time; the time around it is compared",)
    else:
        after, guard = _last(t, end), 0.0
        warnings = ("no spike stands out; the last fifth is compared with what was before",)
    if before is None:
        before, more = _before(t, after, guard)
        warnings += more
    return Chosen(before, after, spike, searched=True, warnings=warnings)


def onset(
    one: Values,
    windows: tuple[Window, Window],
    threshold: float,
    chosen: Chosen,
) -> Onset | None:
    """Date the change near the start of the window after; `None` where nothing rises there.

    Args:
        one: the metric of all rows.
        windows: before and after.
        threshold: above which a request is slow.
        chosen: how the windows were come by.
    """
    before, after = windows
    inside = (one.t >= before.start) & (one.t < after.end)
    t, above = one.t[inside], one.value[inside] > threshold
    slack = max(0.1 * after.seconds, 60.0)
    if chosen.found is not None:
        slack = 3 * chosen.found.bin_s
    dated = date_change(t, above, after.start - slack, min(after.start + slack, after.end))
    end = chosen.found.end if chosen.found else None
    if dated is None:
        if chosen.found is None:
            return None
        return Onset(start=after.start, end=end, error_s=chosen.found.bin_s)
    return Onset(start=dated[0], end=end, error_s=dated[1])


def _search(
    rows: Columns,
    values: Callable[[Metric], Values],
    since: float | None,
    at: float | None,
    metric: Metric | None,
) -> Spike | None:
    """Find the most certain spike of any metric; one of first tokens or tokens goes first."""
    best: Spike | None = None
    bins = bins_for(rows.start / 1e9)
    if bins is None:
        return None
    if since is not None:
        at = max(since, at or since)
    if metric is None:
        best = _clearer(best, find_failures(rows.start / 1e9, failed_mask(rows), bins, at))
    for name in METRICS if metric is None else (metric,):
        one = values(name)
        t = np.concatenate([one.t, one.censored_t])
        order = np.argsort(t, kind="stable")
        value = np.concatenate([one.value, one.at_least])[order]
        if not len(t):
            continue
        best = _clearer(best, find_slow(t[order], value, bins, at))
    if best is None:
        return None
    if since is not None and best.start < since:
        return Spike(since, best.end, best.bin_s, best.score)
    return best


def _clearer(best: Spike | None, spike: Spike | None) -> Spike | None:
    """Return the more certain of two spikes; one that noise can make shadows none.

    Of two as certain the one that says more is taken, which is the earlier one: what fails is
    also quick or slow, and a longer response is a longer e2e.
    """
    if spike is None:
        return best
    if best is None or spike.score > 1.5 * best.score:
        return spike
    return spike if spike.score >= CERTAIN > best.score else best


def _carries(t: Floats, spike: Spike, end: float) -> bool:
    """Return whether a stretch is worth comparing though noise may have made it.

    It is where the search had few requests to go by, and stretch and rest have as many as a p95
    needs.
    """
    inside = _count(t, Window(spike.start, spike.end or end))
    if len(t) > FEW:
        return False  # the search has seen enough to be believed
    return min(inside, len(t) - inside) >= _FOR_A_P95


def _last(t: Floats, end: float) -> Window:
    """Return the last fifth, or as much as a p95 needs, and half at most."""
    if not len(t):
        return Window(end - 1.0, end)
    first = float(t[0])
    start = end - _QUIET_SHARE * (end - first)
    wanted = min(_FOR_A_P95, len(t) // 2)
    return Window(min(start, float(t[len(t) - max(wanted, 1)])), end)


def _before(t: Floats, after: Window, guard: float) -> tuple[Window, tuple[str, ...]]:
    """Choose the quiet window: the hours before, else the same hours a day or a week ago."""
    end = after.start - guard
    wanted = min(_ENOUGH, max(_count(t, after), 1))
    long = max(_LONGER * after.seconds, _HOUR_S)
    first = float(t[0]) if len(t) else end
    near = Window(max(end - long, first), end) if end > first else None
    if near is not None and _count(t, near) >= wanted:
        return near, ()
    for days in (1, 7):
        back = Window(after.start - days * _DAY_S, after.end - days * _DAY_S)
        if _count(t, back) >= wanted:
            return back, (f"too few requests just before: compared with {days} d earlier",)
    all_before = Window(first, end) if end > first else None
    if all_before is not None and _count(t, all_before) >= wanted:
        return all_before, ()
    last = float(t[-1]) + 1e-3 if len(t) else after.end
    later = Window(after.end + guard, min(last, after.end + guard + long))
    if later.seconds > 0 and _count(t, later) >= wanted:
        return later, ("nothing quiet before: compared with what came afterwards",)
    return all_before or Window(after.start - long, after.start), ()


def _around(t: Floats, at: float) -> Window:
    for half in _AT_S:
        window = Window(at - half, at + half)
        if _count(t, window) >= _ENOUGH:
            break
    return window


def _count(t: Floats, window: Window) -> int:
    low, high = np.searchsorted(t, (window.start, window.end))
    return int(high - low)
