"""When did requests become slow, and when did that end?

A spike is the stretch of time inside which more requests are slow than outside, found by a
likelihood ratio over all stretches of a binned series; a change is dated to the request. Both
scale by how unruly the series is when nothing happens, since requests close in time share fate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.stats.arrays import Floats, Mask

_WIDTHS_S: Final = (5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
_MOST_BINS: Final = 600
_FEWEST_BINS: Final = 8
_PER_BIN: Final = 20  # requests, typically
_FEWEST_INSIDE: Final = 80
_LAGS: Final = (1, 2, 4, 8)
_FEWEST_STRETCHES: Final = 4
_STANDS_OUT: Final = 4.0
_ABOVE_HIGHEST: Final = 1.5  # times as far above the usual as the highest of them
_LEAST_S: Final = 120.0  # a spike lasts so long, or this share of all there is
_LEAST_SHARE: Final = 0.1
_MOST_GAPS: Final = 4
_NEAR: Final = 2  # bins
_MEDIAN_OF_CHI: Final = 0.4549
_THRESHOLDS: Final = (0.5, 0.8, 0.95)
_LEAST_CHANGE: Final = math.log(1.1)
CERTAIN: Final = 30.0  # of the likelihood ratio: on noise alone the best stretch stays below
_DATED: Final = 2.0  # log likelihood below the best at which another date is as good


@dataclass(frozen=True, slots=True)
class Spike:
    """A stretch of slow requests.

    Attributes:
        start, end: unix seconds; `end` is `None` where it lasts to the end of the data.
        bin_s: how finely it was looked for.
        score: twice the log likelihood ratio against no change; above `CERTAIN` to count.
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
    """Choose bins of equal width that typically hold 20 requests; `None` = too few requests."""
    if len(t) < 2 * _FEWEST_INSIDE:
        return None
    first, span = float(t.min()), float(np.ptp(t))
    if span <= 0:
        return None
    wanted = max(span / len(t) * _PER_BIN, span / _MOST_BINS)
    width = next((w for w in _WIDTHS_S if w >= wanted), wanted)
    width = min(width, span / _FEWEST_BINS)
    count = math.ceil(span / width + 1e-9)
    edges = first + width * np.arange(count + 1, dtype=np.float64)
    return Bins(edges, float(width))


def find_slow(t: Floats, value: Floats, bins: Bins, at: float | None = None) -> Spike | None:
    """Find the stretch where a metric is high, by shares above thresholds and by its p95.

    Args:
        t: unix seconds of each request, ascending.
        value: the metric.
        bins: by which to look.
        at: a time that must lie in it or beside it.
    """
    place = np.searchsorted(t, bins.edges)
    counts = np.diff(place).astype(np.float64)
    found = []
    for share in _THRESHOLDS:
        above = np.append(0, np.cumsum(value > np.quantile(value, share)))
        found.append(_shares(np.diff(above[place]), counts, bins, at))
    tails = np.full(len(counts), np.nan)
    for i in np.flatnonzero(counts >= _PER_BIN // 2):
        inside = value[place[i] : place[i + 1]]
        tails[i] = np.partition(inside, rank := math.ceil(0.95 * len(inside)) - 1)[rank]
    with np.errstate(divide="ignore"):
        tails = np.log(np.maximum(tails, 1e-9))
    found.append(_stretch(tails, counts, bins, at, floor=0.0, least=_LEAST_CHANGE))
    return _best(found)


def find_failures(t: Floats, failed: Mask, bins: Bins, at: float | None = None) -> Spike | None:
    """Find the stretch where more requests fail."""
    place = np.searchsorted(t, bins.edges)
    reached = np.append(0, np.cumsum(failed))
    return _shares(np.diff(reached[place]), np.diff(place).astype(np.float64), bins, at)


def _shares(k: Floats, n: Floats, bins: Bins, at: float | None) -> Spike | None:
    # The angle of a share has the same spread whatever the share: 1 / 4n (Anscombe's counts).
    angle = np.arcsin(np.sqrt((k + 0.375) / (n + 0.75)))
    return _stretch(np.where(n > 0, angle, np.nan), n, bins, at, floor=0.25, least=0.02)


def _best(found: list[Spike | None]) -> Spike | None:
    return max((one for one in found if one), key=lambda one: one.score, default=None)


def _stretch(
    x: Floats, weight: Floats, bins: Bins, at: float | None, *, floor: float, least: float
) -> Spike | None:
    """Find the stretch of a series that stands highest above the rest, for its length."""
    weight = np.where(np.isnan(x), 0.0, weight)
    x = np.nan_to_num(x, nan=0.0)
    if int((weight > 0).sum()) < _FEWEST_BINS:
        return None
    found = _highest(x, weight, least) if at is None else _at(x, weight, bins, at)
    if found is None:
        return None
    apart, i, j = found
    spread = max(floor, _unrest(x, weight, (i, j)))
    if spread <= 0:
        return None
    score = apart / spread
    if at is None:
        i, j = _without_gaps(x, weight, spread, (i, j))
        lasted = (j - i) * bins.width
        if lasted < min(_LEAST_S, _LEAST_SHARE * len(x) * bins.width):
            return None
        if not _stands_out(x, weight, i, j):
            return None
    lasts = not (weight[j:] > 0).any()
    end = None if lasts else float(bins.edges[j])
    return Spike(float(bins.edges[i]), end, bins.width, score)


def _at(x: Floats, weight: Floats, bins: Bins, at: float) -> tuple[float, int, int] | None:
    """Return the stretch around a time that is nearer to its level than to the usual one."""
    place = int(np.clip(np.searchsorted(bins.edges, at, side="right") - 1, 0, len(x) - 1))
    usual = float(np.median(x[weight > 0]))
    near = slice(max(place - _NEAR, 0), place + _NEAR + 1)
    if not weight[near].sum() > 0:
        return None
    level = float(np.average(x[near], weights=weight[near]))
    high = (x > (usual + level) / 2) & (weight > 0)
    i = j = place
    while i > 0 and high[max(i - _NEAR, 0) : i].any():
        i -= 1
    while j < len(x) and high[j : j + _NEAR].any():
        j += 1
    inside = float(weight[i:j].sum())
    if inside < _FEWEST_INSIDE or level <= usual:
        return None
    mean = float(np.average(x[i:j], weights=weight[i:j]))
    return (mean - usual) ** 2 * inside, i, j


def _highest(x: Floats, weight: Floats, least: float) -> tuple[float, int, int] | None:
    """Return the stretch [i, j) that is highest above the rest for its length.

    With it comes how far it is above the rest: a sum of squares, to be divided by the noise. Which
    stretch is the highest does not depend on that.
    """
    total = float(weight.sum())
    if total <= 0:
        return None
    reached_w = np.append(0.0, np.cumsum(weight))
    reached_x = np.append(0.0, np.cumsum(weight * (x - (weight * x).sum() / total)))
    inside = reached_w[None, :] - reached_w[:, None]
    sums = reached_x[None, :] - reached_x[:, None]
    fits = (inside >= _FEWEST_INSIDE) & (total - inside >= _FEWEST_INSIDE)
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = sums * total / (inside * (total - inside))  # mean inside less mean outside
        score = sums**2 / (inside * (1 - inside / total))
    fits &= apart >= least
    if not fits.any():
        return None
    score = np.where(fits, score, -np.inf)
    i, j = np.unravel_index(int(np.argmax(score)), score.shape)
    return float(score[i, j]), int(i), int(j)


def _without_gaps(
    x: Floats, weight: Floats, spread: float, found: tuple[int, int]
) -> tuple[int, int]:
    """Return one spike of a stretch that holds two and the quiet between them.

    The one of more requests, and of equals the later one.
    """
    i, j = found
    outside = np.ones(len(x), bool)
    outside[i:j] = False
    if not weight[outside].sum() > 0:
        return found
    usual = float(np.average(x[outside], weights=weight[outside]))
    for _ in range(_MOST_GAPS):
        gap = _highest(-x[i:j], weight[i:j], 0.0)
        if gap is None or gap[0] < CERTAIN * spread:
            break
        low, high = i + gap[1], i + gap[2]
        level = float(np.average(x[low:high], weights=weight[low:high]))
        around = float(np.average(x[i:j], weights=weight[i:j]))
        if level - usual > around - level:
            break  # lower, but not quiet
        later = weight[high:j].sum() >= weight[i:low].sum()
        cut = (high, j) if later else (i, low)
        if weight[slice(*cut)].sum() < _FEWEST_INSIDE:
            break
        i, j = cut
    return i, j


def _stands_out(x: Floats, weight: Floats, i: int, j: int) -> bool:
    """Return whether a stretch is above what other stretches as long as it do by themselves."""
    length = j - i
    means = []
    for low, high in ((0, i), (j, len(x))):
        for begin in range(low, high - length + 1, length):
            part = slice(begin, begin + length)
            if weight[part].sum() > 0:
                means.append(float(np.average(x[part], weights=weight[part])))
    if len(means) < _FEWEST_STRETCHES:
        return True  # too short a history to know what is usual
    apart = float(np.average(x[i:j], weights=weight[i:j])) - float(np.mean(means))
    error = float(np.std(means, ddof=1)) * math.sqrt(1 + 1 / len(means))
    highest = max(means) - float(np.mean(means))
    return apart > max(_STANDS_OUT * error, _ABOVE_HIGHEST * highest)


def _unrest(x: Floats, weight: Floats, stretch: tuple[int, int]) -> float:
    """Return the variance of a request's worth of the series, from its steps in quiet times.

    Steps over several bins count too: a series that wanders has small ones and large ones. A step
    across an edge of the stretch in question is no noise: both its ends must be on one side.
    """
    used = weight > 0
    side = np.zeros(len(x))
    side[stretch[0] : stretch[1]] = 1.0
    side[stretch[1] :] = 2.0
    x, weight, side = x[used], weight[used], side[used]
    found = 0.0
    for lag in _LAGS:
        within = side[lag:] == side[:-lag]
        if np.count_nonzero(within) <= lag:
            break
        steps = (x[lag:] - x[:-lag]) ** 2 / (1 / weight[lag:] + 1 / weight[:-lag])
        found = max(found, float(np.median(steps[within])) / _MEDIAN_OF_CHI)
    return found


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
