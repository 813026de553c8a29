"""Find when requests became slow, and when that ended.

A spike is the stretch of time inside which more requests are slow than outside, found by a
likelihood ratio over all stretches of a binned series, and compared with the series without it;
a change is dated to the request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.stats.arrays import Floats, Mask

_MAX_BINS: Final = 200
_MIN_BINS: Final = 8
_PER_BIN: Final = 5  # requests, at least
_MIN_INSIDE: Final = 10
_MAX_STRETCHES: Final = 4
_ALSO: Final = 0.3  # of what the highest stretch stands out by, from which another is no noise
_MAX_GAPS: Final = 4
_NEAR: Final = 2  # bins
_THRESHOLDS: Final = (0.8, 0.95)
_SPREAD: Final = 0.25  # of the angle of a share, for one request: that of independent ones
_MIN_CHANGE: Final = math.log(1.1)
_MIN_ANGLE: Final = 0.02
_CLEAR: Final = 30.0  # times the spread, from which a gap within a stretch is one
# Bars that noise reaches seldom, by bins: tests.bench.bench_search measures them. Few bins say
# little of how noise wanders, so that the bars are higher there.
_ABRUPT: Final = 25.0  # of the ratio, for a stretch with edges
_EDGE: Final = (3.5, 80.0, 6.5)  # at least, and by how much more for one over the bins, at most
_WANDERS: Final = (20.0, 1600.0, 60.0)  # of the ratio, for a stretch without
_MAX_MEMORY: Final = 30  # bins
_STEPS: Final = (1, 2, 4, 8)  # bins on either side of an edge
_MIN_STEPS: Final = 3
_SILENCE: Final = 20.0  # times as long as it usually is between two requests
CERTAIN: Final = 1.0  # of a score
_DATED: Final = 2.0  # log likelihood below the best at which another date is as good


@dataclass(frozen=True, slots=True)
class Spike:
    """A stretch of slow requests.

    Attributes:
        start, end: unix seconds; `end` is `None` where it lasts to the end of the data.
        bin_s: how finely it was looked for.
        score: how far it stands out, as a multiple of what noise of any kind does in one search
            of a hundred; above `CERTAIN` to count.
    """

    start: float
    end: float | None
    bin_s: float
    score: float


@dataclass(frozen=True, slots=True)
class Bins:
    """Requests by time: `edges[i]` to `edges[i + 1]`, half open."""

    edges: Floats
    width: float


def bins_for(t: Floats) -> Bins | None:
    """Choose bins of five requests each, or of more where that made too many of them.

    `None` = too few requests to look for anything.
    """
    t = np.sort(t)
    per = max(_PER_BIN, math.ceil(len(t) / _MAX_BINS))
    if len(t) < _MIN_BINS * _PER_BIN or t[-1] <= t[0]:
        return None
    last = float(np.nextafter(t[-1], np.inf))
    edges = np.unique(np.append(t[: len(t) - per + 1 : per], last))
    return Bins(edges, float(np.median(np.diff(edges))))


def find_slow(t: Floats, value: Floats, bins: Bins, at: float | None = None) -> Spike | None:
    """Find the stretch where a metric is high: all of it, or its tail.

    Args:
        t: unix seconds of each request, ascending.
        value: the metric.
        bins: by which to look.
        at: a time that must be in it or next to it.
    """
    place = np.searchsorted(t, bins.edges)
    counts = np.diff(place).astype(np.float64)
    logs = np.append(0, np.cumsum(np.log(np.maximum(value, 1e-9))))
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.diff(logs[place]) / counts
    best, memory = _stretch(means, counts, bins, at, floor=0.0, least=_MIN_CHANGE)
    for share in _THRESHOLDS:
        above = np.append(0, np.cumsum(value > np.quantile(value, share)))
        angles = _angles(np.diff(above[place]), counts)
        # A share above a bound has edges wherever the metric wanders across it: those are none.
        found, _ = _stretch(
            angles, counts, bins, at,
            floor=_SPREAD, least=_MIN_ANGLE, abrupt=False, memory=memory,
        )  # fmt: skip
        if found and (best is None or found.score > best.score):
            best = found
    return best and _to_the_request(best, t, value, bins)


def _to_the_request(found: Spike, t: Floats, value: Floats, bins: Bins) -> Spike:
    """Move the edges of a stretch from those of its bins to the requests where it begins and ends.

    A bin may span a gap in which there were no requests.
    """
    inside = (t >= found.start) & (t < (found.end or math.inf))
    if inside.all() or not inside.any():
        return found
    middle = (np.median(value[inside]) + np.median(value[~inside])) / 2
    start = date_change(t, value > middle, *_around(bins, found.start))
    moved = replace(found, start=_past_gap(t, start[0] if start else found.start))
    if found.end is not None:
        end = date_change(t, value <= middle, *_around(bins, found.end))
        if end is not None and end[0] > moved.start:
            moved = replace(moved, end=end[0])
    return moved


def _past_gap(t: Floats, start: float) -> float:
    """Return when a stretch begins, without a few requests from before a long gap."""
    first = int(np.searchsorted(t, start))
    gaps = np.diff(t[first : first + _PER_BIN + 1])
    if not gaps.size:
        return start
    longest = int(np.argmax(gaps))
    long = float(gaps[longest]) > _SILENCE * (float(t[-1] - t[0]) / len(t))
    return float(t[first + longest + 1]) if long else start


def _around(bins: Bins, at: float) -> tuple[float, float]:
    """Return the time of the bins on both sides of an edge."""
    place = int(np.searchsorted(bins.edges, at))
    last = len(bins.edges) - 1
    return float(bins.edges[max(place - 2, 0)]), float(bins.edges[min(place + 2, last)])


def find_failures(t: Floats, failed: Mask, bins: Bins, at: float | None = None) -> Spike | None:
    """Find the stretch where more requests fail."""
    place = np.searchsorted(t, bins.edges)
    reached = np.append(0, np.cumsum(failed))
    counts = np.diff(place).astype(np.float64)
    angles = _angles(np.diff(reached[place]), counts)
    return _stretch(angles, counts, bins, at, floor=_SPREAD, least=_MIN_ANGLE)[0]


def _angles(k: Floats, n: Floats) -> Floats:
    # The angle of a share has the same spread whatever the share: 1 / 4n (Anscombe's counts).
    found: Floats = np.arcsin(np.sqrt((k + 0.375) / (n + 0.75)))
    return found


def _stretch(
    x: Floats,
    weight: Floats,
    bins: Bins,
    at: float | None,
    *,
    floor: float,
    least: float,
    abrupt: bool = True,
    memory: float = 1.0,
) -> tuple[Spike | None, float]:
    """Find the stretch of a series that is highest above the rest, for its length.

    Args:
        x: the series.
        weight: requests in each bin.
        bins: their times.
        at: a time in the stretch.
        floor: the least spread of one request's worth of it.
        least: by how much the stretch must be higher to be one.
        abrupt: whether sharp edges count.
        memory: the least that it is taken to remember itself; with the result comes what it does.
    """
    used = weight > 0
    if np.count_nonzero(used) < _MIN_BINS:
        return None, memory
    x, weight = x[used], weight[used]
    starts, ends = bins.edges[:-1][used], bins.edges[1:][used]
    pairs = _Pairs(weight)
    found = pairs.highest(x) if at is None else _at(x, weight, starts, at)
    if found is None:
        return None, memory
    apart, i, j = found
    inside, outside = _levels(x, weight, i, j)
    noise, edges = _noise(x, weight, pairs, (i, j))
    spread = max(float((noise**2).mean()), floor)
    memory = max(memory, _memory(noise))
    if inside - outside < least or spread <= 0:
        return None, memory
    score = apart / spread / memory**2 / _bar(_WANDERS, len(x))
    if abrupt:
        edge = _edge(x, (i, j), edges, spread / float(weight.mean()))
        score = max(score, min(apart / spread / memory / _ABRUPT, edge / _bar(_EDGE, len(x))))
    if at is None:
        i, j = _without_gaps(x, weight, spread, (i, j))
    end = None if j == len(x) else float(ends[j - 1])
    return Spike(float(starts[i]), end, bins.width, score), memory


class _Pairs:
    """All stretches [i, j) of a series of these weights that leave enough inside and outside."""

    def __init__(self, weight: Floats) -> None:
        self._weight = weight
        self._total = total = float(weight.sum())
        reached = np.append(0.0, np.cumsum(weight))
        low, high = np.triu_indices(len(reached), 1)
        inside = reached[high] - reached[low]
        fewest = min(_MIN_INSIDE, total / 4)
        fits = (inside >= fewest) & (total - inside >= fewest)
        self.low, self.high, inside = low[fits], high[fits], inside[fits]
        self._scale = 1 / (inside * (1 - inside / total))

    def highest(self, x: Floats) -> tuple[float, int, int] | None:
        """Return the stretch that is highest above the rest for its length.

        With it comes how far it is above the rest: a sum of squares, to be compared with the
        noise. Which stretch is the highest does not depend on that.
        """
        if not self.low.size:
            return None
        sums = self._sums(x)
        score = np.where(sums > 0, sums**2 * self._scale, 0.0)
        best = int(np.argmax(score))
        if score[best] <= 0:
            return None
        return float(score[best]), int(self.low[best]), int(self.high[best])

    def _sums(self, x: Floats) -> Floats:
        mean = float((x * self._weight).sum()) / self._total
        reached = np.append(0.0, np.cumsum((x - mean) * self._weight))
        found: Floats = reached[self.high] - reached[self.low]
        return found


def _noise(
    x: Floats, weight: Floats, pairs: _Pairs, found: tuple[int, int]
) -> tuple[Floats, list[int]]:
    """Return what is left of a series without its highest stretches, for one request each.

    An incident is no noise, nor is another one that stands out nearly as far. Their edges come
    with it.
    """
    rest = _levelled(x, weight, *found)
    edges = [*found]
    first = float(((rest - x) ** 2 * weight).sum())
    for _ in range(_MAX_STRETCHES - 1):
        other = pairs.highest(rest)
        if other is None or other[0] < _ALSO * first:
            break
        rest = _levelled(rest, weight, *other[1:])
        edges += other[1:]
    free = len(x) - 1 - len(edges)
    left: Floats = rest * np.sqrt(weight * (len(x) / max(free, len(x) / 2)))
    return left, edges


def _levels(x: Floats, weight: Floats, i: int, j: int) -> tuple[float, float]:
    """Return the mean inside a stretch and outside."""
    total, inside = float((x * weight).sum()), float((x[i:j] * weight[i:j]).sum())
    n = float(weight[i:j].sum())
    return inside / n, (total - inside) / max(float(weight.sum()) - n, 1e-9)


def _levelled(x: Floats, weight: Floats, i: int, j: int) -> Floats:
    """Return a series less its mean, inside a stretch and outside."""
    inside, outside = _levels(x, weight, i, j)
    level = np.full(len(x), outside)
    level[i:j] = inside
    left: Floats = x - level
    return left


def _bar(by_bins: tuple[float, float, float], bins: int) -> float:
    least, more, most = by_bins
    return min(least + more / bins, most)


def _memory(noise: Floats) -> float:
    """Return how many bins say as much as one independent one: 1 and twice the correlations."""
    whole = float((noise**2).sum())
    found = 1.0
    for lag in range(1, min(len(noise) // 3, _MAX_MEMORY)):
        alike = float((noise[lag:] * noise[:-lag]).sum()) / whole if whole > 0 else 0.0
        if alike <= 0:
            break
        found += 2 * alike
    return found


def _edge(x: Floats, found: tuple[int, int], edges: Sequence[int], spread: float) -> float:
    """Return how much larger the steps at a stretch's edges are than steps elsewhere.

    A series that wanders makes stretches of its own, but no edges; so a stretch that has them
    counts even where few bins say little of how the series wanders.

    Args:
        x: the series.
        found: the stretch.
        edges: of all stretches; steps across them are no measure.
        spread: of a bin, by which steps differ at least.
    """
    reached = np.append(0.0, np.cumsum(x))
    best = 0.0
    for m in _STEPS:
        steps = np.abs(reached[2 * m :] - 2 * reached[m:-m] + reached[: -2 * m])
        place = np.arange(len(steps)) + m
        mine = [steps[edge - m] for edge in found if m <= edge <= len(x) - m and 0 < edge < len(x)]
        quiet = np.all([np.abs(place - edge) >= m for edge in edges], axis=0)
        if not mine or np.count_nonzero(quiet) < _MIN_STEPS:
            continue
        usual = max(float((steps[quiet] ** 2).mean()), m * spread)
        best = max(best, float(min(mine)) / math.sqrt(usual))
    return best


def _at(x: Floats, weight: Floats, starts: Floats, at: float) -> tuple[float, int, int] | None:
    """Return the stretch around a time that is nearer to its level than to the usual one."""
    place = int(np.clip(np.searchsorted(starts, at, side="right") - 1, 0, len(x) - 1))
    usual = float(np.median(x))
    near = slice(max(place - _NEAR, 0), place + _NEAR + 1)
    level = float(np.average(x[near], weights=weight[near]))
    high = x > (usual + level) / 2
    i = j = place
    while i > 0 and high[max(i - _NEAR, 0) : i].any():
        i -= 1
    while j < len(x) and high[j : j + _NEAR].any():
        j += 1
    inside = float(weight[i:j].sum())
    if inside < _MIN_INSIDE or level <= usual:
        return None
    mean = float(np.average(x[i:j], weights=weight[i:j]))
    return (mean - usual) ** 2 * inside, i, j


def _without_gaps(
    x: Floats, weight: Floats, spread: float, found: tuple[int, int]
) -> tuple[int, int]:
    """Return one spike of a stretch that holds two and the quiet between them.

    The one of more requests, and of equals the later one.
    """
    i, j = found
    outside = np.ones(len(x), bool)
    outside[i:j] = False
    usual = float(np.average(x[outside], weights=weight[outside]))
    for _ in range(_MAX_GAPS):
        gap = _Pairs(weight[i:j]).highest(-x[i:j])
        if gap is None or gap[0] < _CLEAR * spread:
            break
        low, high = i + gap[1], i + gap[2]
        level = float(np.average(x[low:high], weights=weight[low:high]))
        around = float(np.average(x[i:j], weights=weight[i:j]))
        if level - usual > around - level:
            break  # lower, but not quiet
        later = weight[high:j].sum() >= weight[i:low].sum()
        cut = (high, j) if later else (i, low)
        if weight[slice(*cut)].sum() < _MIN_INSIDE:
            break
        i, j = cut
    return i, j


def date_change(t: Floats, slow: Mask, low: float, high: float) -> tuple[float, float] | None:
    """Date the request from which on more are slow, and by how much that may be off.

    Args:
        t: unix seconds, ascending, from well before to well after.
        slow: whether each request was slow.
        low: the change is looked for from here,
        high: to here.

    Returns:
        Unix seconds, and half the width of what is nearly as likely; `None` = no such change.
    """
    n = len(t)
    first, last = np.searchsorted(t, (low, high))
    split = np.arange(max(int(first), 1), min(int(last) + 1, n))
    if not split.size:
        return None
    reached = np.cumsum(slow)
    k, total = reached[split - 1].astype(np.float64), float(reached[-1])
    rising = k / split < (total - k) / (n - split)
    both = _log_likelihood(k, split) + _log_likelihood(total - k, n - split)
    chance = np.where(rising, both, -np.inf)
    best = int(np.argmax(chance))
    if not rising[best]:
        return None
    as_good = np.flatnonzero(chance >= chance[best] - _DATED)
    near = t[split[as_good]]
    return float(t[split[best]]), max(float(near[-1] - near[0]) / 2, 0.0)


def _log_likelihood(k: Floats, n: NDArray[np.intp]) -> Floats:
    p = np.clip(k / n, 1e-12, 1 - 1e-12)
    found: Floats = k * np.log(p) + (n - k) * np.log1p(-p)
    return found
