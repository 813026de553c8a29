"""Decide whether the p95 of a metric moved beyond chance, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from llmtrace.dataset.case import Window
from llmtrace.dataset.columns import Columns
from llmtrace.stats import significance
from llmtrace.stats.arrays import Floats, Mask, finite
from llmtrace.triage.attribution.components import Values, slow, values
from llmtrace.triage.comparison.extreme_waits import far_beyond
from llmtrace.triage.detectable_change import smallest_share, smallest_visible
from llmtrace.triage.result import NO_BOUNDS, Change, Metric, Q, Side
from llmtrace.triage.windows.changepoint import date_change

CERTAIN: Final = 0.01  # chance of a false alarm, in windows that were given
LEAST: Final = 0.1  # smallest relative change of a quantile that matters
FELT: Final = 0.02  # of a typical request; a shorter part of it is not felt
MIN_COUNT: Final = 10  # requests in a window; an interval of its p95 takes more
_ALSO: Final = (0.5, 0.8)  # quantiles tested beside the p95
_TOGETHER_S: Final = 15.0  # width of a crowd, as of the smallest cluster
_BINS: Final = 20  # of the shorter window: the width of a crowd, if that is less
_CROWD: Final = 4.0  # times as many requests together as after
_STRETCHES: Final = 5  # that a window is cut into
_FEW: Final = 150  # requests up to which clustering cannot be measured well
_WANDERS: Final = 0.02  # chance of windows as far apart, by their stretches
_MANY: Final = 5.0  # times the p95 before; no level wanders that far
_WAITED: Final = ("ttft", "e2e")  # not tpot: over a few tokens it takes extreme values anyway
_TAIL: Final = 0.02  # of the requests; longer waits of fewer do not move a p95
_SMALLEST: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Compared:
    """A metric compared between both windows.

    Attributes:
        change: for the result.
        design: requests per independent request (design effect), before and after.
        threshold: the p95 before, above which a request counts as slow; NaN = not known.
        visible: the smallest relative change that would have been seen; `None` = none.
        visible_share: the smallest share of slow requests that would have been seen.
    """

    change: Change
    design: tuple[float, float]
    threshold: float
    visible: float | None = None
    visible_share: float | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """A metric of the rows of one window."""

    rows: Columns
    window: Window
    values: Values

    def at(self, share: float) -> float:
        """Return a quantile of the metric, seconds."""
        return significance.quantile(self.values.value, share, self.values.weight)


Both = tuple[Measured, Measured]


def measured(
    rows: tuple[Columns, Columns], windows: tuple[Window, Window], metric: Metric
) -> Both:
    """Return a metric before and after."""
    before, after = (Measured(one, window, values(one, metric))
                     for one, window in zip(rows, windows, strict=True))  # fmt: skip
    return before, after


def compare(
    both: Both,
    *,
    certain: float = CERTAIN,
    least: float = LEAST,
    shown: bool = False,
    remembers: bool = True,
) -> Compared:
    """Compare a metric in two windows.

    Fisher's exact test: whether more requests than expected are now above the p95 before (or, for
    a fall, were above the p95 after), counting independent requests as clustering leaves them. The
    p50 and p80 are tested as well if they moved the same way, because the p95 of few requests
    moves far by chance. The change must also matter, relative to the p95, and for rendering to the
    whole request.

    Args:
        both: the metric before and after.
        certain: the chance of a false alarm to stay below.
        least: smallest relative change of the p95 that matters.
        shown: whether a search of the whole course has shown a rise that two windows may not show.
        remembers: whether clustering includes correlation with earlier requests, as in a search.
    """
    metric, sides = both[0].values.metric, (both[0].values, both[1].values)
    if not all(map(len, sides)):
        return _nothing_to_compare(both)
    low, high = (one.at(Q) for one in both)
    (_, _, design_b), (k, n, design_a) = _above(both, low, remembers=remembers)
    side_b, side_a = (_side(one, _design_in_window(one)) for one in both)
    floor = felt(both[0].rows) if metric == "render" else 0.0
    p_value = _p_value(both, (floor, least), remembers=remembers)
    matters = any(_matters((one.at(q) for one in both), floor, least) for q in (Q, 0.5))
    moved, p_value = _beyond_chance(sides, (low, high), p_value, certain, shown=shown)
    change = Change(
        metric=metric, before=side_b, after=side_a, delta_s=_ns(high) - _ns(low),
        share_above=k / n if n else None,
        share_above_ci=significance.share_bounds(k / design_a, n / design_a),
        p_value=p_value,
        significant=bool(matters and moved),
    )  # fmt: skip
    designs, shares = (design_b, design_a), (*_ALSO, Q)
    visible = smallest_visible(sides, designs, shares, certain=certain, least=least)
    counts = (len(sides[0]), len(sides[1]))
    share = smallest_share(counts, designs, tests=len(shares), certain=certain)
    return Compared(change, designs, low, visible, share)


def _beyond_chance(
    both: tuple[Values, Values],
    p95s: tuple[float, float],
    p_value: float,
    certain: float,
    *,
    shown: bool,
) -> tuple[bool, float]:
    """Return whether a change is beyond chance, and that chance.

    With few requests, a change must exceed how the level wanders within the windows, unless the
    p95 rose many times over. A few waits far longer than any before suffice as well. `shown`: a
    rise is known already.
    """
    if min(map(len, both)) < MIN_COUNT:
        return False, p_value
    if shown and p95s[1] > p95s[0]:
        return True, p_value
    if p_value < certain and (p95s[1] >= _MANY * p95s[0] or _beyond_wandering(*both)):
        return True, p_value
    far, after = 1.0, both[1]
    if after.metric in _WAITED and p95s[1] > p95s[0]:
        waits = np.concatenate([after.value, after.at_least])
        if (waits > both[0].value.max()).mean() >= _TAIL:
            far = far_beyond(both[0].value, waits, np.concatenate([after.t, after.censored_t]))
    return far < certain, min(far, p_value)


def _beyond_wandering(before: Values, after: Values) -> bool:
    """Return whether windows of few requests differ more than the fifths of each do.

    A level wanders over seconds by itself: an engine has more to do for a while, or a machine is
    shared. Ranks are compared by Student's test. With many requests, clustering is known better.
    """
    if min(len(before), len(after)) > _FEW:
        return True
    ranks = np.argsort(np.argsort(np.concatenate([before.value, after.value]), kind="stable"))
    sides = [np.array([part.mean() for part in np.array_split(side, _STRETCHES)])
             for side in np.split(ranks, [len(before)])]  # fmt: skip
    spread = math.sqrt(sum(float(side.var(ddof=1)) for side in sides) / _STRETCHES)
    difference = abs(float(sides[1].mean() - sides[0].mean()))
    t = difference / max(spread, _SMALLEST)
    return significance.student_tail(t, 2 * (_STRETCHES - 1)) < _WANDERS


def _nothing_to_compare(both: Both) -> Compared:
    before, after = (_side(one, 1.0) for one in both)
    change = Change(
        metric=both[0].values.metric, before=before, after=after, delta_s=None, share_above=None,
        share_above_ci=NO_BOUNDS, p_value=None, significant=False,
    )  # fmt: skip
    return Compared(change, (1.0, 1.0), math.nan)


_Above = tuple[float, float, float]


def _above(both: Both, threshold: float, *, remembers: bool) -> tuple[_Above, _Above]:
    """Return for each window: requests above a threshold, all requests, design effect.

    The design effect after is at least that before. If requests came in crowds before and do not
    after, it is scaled down, because single requests share less.
    """
    found = [slow(one.values, threshold) for one in both]
    times = [one.rows.start[index] / 1e9 for one, (index, _) in zip(both, found, strict=True)]
    change = _change_time(times, [above for _, above in found])
    counted = []
    for one, other, t, (index, above) in zip(both, reversed(both), times, found, strict=True):
        design = significance.clustered(
            t, above, other.window.seconds, change, remembers=remembers
        )
        weights = one.rows.weights[index]
        n = significance.effective_count(weights)
        share = float(weights[above].sum() / weights.sum()) if n else 0.0
        counted.append((share * n, n, design))
    (k0, n0, d0), (k1, n1, d1) = counted
    width = min(_TOGETHER_S, *(one.window.seconds / _BINS for one in both))
    crowd, after = (_crowd_size(t, width) for t in times)
    usual = 1 + (d0 - 1) * after / crowd if crowd >= _CROWD * after else d0
    return (k0, n0, d0), (k1, n1, max((n0 * usual + n1 * d1) / max(n0 + n1, 1), usual))


def _crowd_size(t: Floats, width: float) -> float:
    """Return the size of the crowd in which a typical request comes, within `width` seconds."""
    if not len(t) or width <= 0:
        return 1.0
    counts = np.unique((t / width).astype(np.int64), return_counts=True)[1]
    return float((counts**2).sum() / counts.sum())


def _design_in_window(one: Measured) -> float:
    """Return the design effect of requests beyond their own window's quantile.

    For an interval of one window; a change within it counts as clustering.
    """
    index, above = slow(one.values, one.at(Q))
    return significance.clustered(
        one.rows.start[index] / 1e9, above, one.window.seconds / _STRETCHES
    )


def _change_time(times: Sequence[Floats], above: Sequence[Mask]) -> float | None:
    """Return when requests became slow, over both windows; `None` = they did not."""
    t, slow_ones = np.concatenate(times), np.concatenate(above)
    if len(t) < 2 or times[0][-1:] > times[1][:1]:  # noqa: PLR2004
        return None
    dated = date_change(t, slow_ones, float(t[0]), float(t[-1]))
    return None if dated is None else dated.best


def _p_value(both: Both, by: tuple[float, float], *, remembers: bool) -> float:
    """Return the chance of a change as clear as this, in the p95's direction if that moved."""
    ways = (both, (both[1], both[0]))
    low, high = (one.at(Q) for one in both)
    by_p95 = ways[high < low]
    # If the p95 hardly moved, typical requests may have, in either direction.
    chance = 1.0
    for way in (by_p95,) if _matters((low, high), *by) else ways:
        for share in (*_ALSO, Q):
            low, high = (one.at(share) for one in way)
            if (share == Q and way is by_p95) or (_matters((low, high), *by) and high > low):
                (k0, n0, d0), (k1, n1, d1) = _above(way, low, remembers=remembers)
                p = significance.more_than(k1 / d1, n1 / d1, k0 / d0, n0 / d0)
                chance = min(chance, p)
    return min(1.0, 2 * chance * (1 + len(_ALSO)))  # either direction, at each of the shares


def _matters(both: Iterable[float], floor: float, least: float) -> bool:
    low, high = both
    return abs(high - low) >= max(floor, least * min(low, high))


def felt(rows: Columns) -> float:
    """Return the smallest change, seconds, that matters for a part that may take no time."""
    known = finite(rows.numbers["e2e_s"])
    return FELT * float(np.median(known)) if len(known) else 0.0


def _side(one: Measured, design: float) -> Side:
    if not len(one.values):
        return Side(window=one.window, n=0, requests=0, p50=None, p95=None)
    bounds = significance.quantile_bounds(one.values.value, Q, design, one.values.weight)
    low, high = (None if bound is None else _ns(bound) for bound in bounds)
    return Side(
        window=one.window,
        n=len(one.values),
        requests=round(one.values.weight.sum()),
        p50=_ns(one.at(0.5)),
        p95=_ns(one.at(Q)),
        p95_ci=(low, high),
    )


def _ns(value: float) -> float:
    return round(value, 9)
