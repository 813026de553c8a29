"""Find the stretch of a binned series that stands highest above the rest, for its length.

All stretches are compared by their likelihood ratio. It is scored against the noise that the rest
of the series shows: its variance, its autocorrelation, and the size of its steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats, Mask
from llmtrace.triage.windows.bins import MIN_BINS, Bins

MIN_REQUESTS: Final = 10  # in a stretch
MIN_SCORE: Final = 1.0  # from which a stretch counts: noise reaches it in one search of a hundred
# A stretch with a smaller p-value than this is trusted like a window that the user gave.
SURE_P: Final = 1e-3
_CHANCE_OF_MIN_SCORE: Final = 0.01  # p-value of `MIN_SCORE`
_DECAY: Final = 6.0  # how fast the p-value falls with the score: exp(-6 * score)
_SMALLEST: Final = 1e-300

# Thresholds that noise reaches in one search of a hundred, as measured by
# tests.bench.bench_search: (a, b, max) = min(a + b / bins, max). They are higher for few bins,
# which show little of how the noise drifts.
DRIFT_THRESHOLD: Final = (20.0, 1600.0, 60.0)  # of the likelihood ratio; noise that drifts
_EDGE_THRESHOLD: Final = (3.5, 80.0, 6.5)  # of the sharpness of the edges
_RATIO_WITH_EDGES: Final = 25.0  # of the likelihood ratio, for a stretch with sharp edges

_MAX_STRETCHES: Final = 4  # left out of the noise
_SIMILAR: Final = 0.3  # of the highest stretch's sum of squares: another such stretch is no noise
_MAX_GAPS: Final = 4
_QUIET_GAP: Final = 30.0  # times the variance: a lower part of a stretch that splits it in two
_NEAR: Final = 2  # bins
_MAX_LAG: Final = 30  # bins
_STEP_WIDTHS: Final = (1, 2, 4, 8)  # bins on either side of an edge
_MIN_STEPS: Final = 3  # elsewhere, to compare those at the edges with
_ROUNDING: Final = 1e-20  # a smaller sum of squares is rounding error of a constant
_OTHERS: Final = 10  # stretches whose heights are compared, at most
_MIN_OTHERS: Final = 4
_PENALTY_FOR_TWO: Final = 4.0  # log likelihood, since two similar incidents are not rare


@dataclass(frozen=True, slots=True)
class Spike:
    """A stretch of time in which requests were slow, failed, or differed otherwise.

    Attributes:
        start, end: unix seconds; `end` is `None` if it lasts to the end of the data.
        bin_s: width of the bins that it was found with, seconds.
        score: how far it stands out; 1 = what noise reaches in one search of a hundred, so below
            `MIN_SCORE` it is ignored; at 2 noise is out of the question.
    """

    start: float
    end: float | None
    bin_s: float
    score: float

    @property
    def p_value(self) -> float:
        """How often noise makes a stretch that stands out as far, in one search."""
        return p_value_of(self.score)

    def contains(self, t: Floats) -> Mask:
        """Return which times are within the stretch."""
        return (t >= self.start) & (t < (math.inf if self.end is None else self.end))


def p_value_of(score: float) -> float:
    """Return how often noise reaches a score in one search."""
    chance = _CHANCE_OF_MIN_SCORE * math.exp(_DECAY * (MIN_SCORE - score))
    return max(min(chance, 1.0), _SMALLEST)


def highest_stretch(
    x: Floats,
    weight: Floats,
    bins: Bins,
    at: float | None,
    *,
    min_variance: float,
    min_rise: float,
    sharp_edges: bool = True,
    autocorrelation: float = 1.0,
) -> tuple[Spike | None, float]:
    """Find the stretch of a series that is highest above the rest, for its length.

    Args:
        x: the series.
        weight: requests in each bin.
        bins: the times of the series.
        at: a time in the stretch, unix seconds; `None` = anywhere.
        min_variance: the least variance to assume, for one request.
        min_rise: how much higher than the rest the stretch must be.
        sharp_edges: whether sharp edges raise the score.
        autocorrelation: the least autocorrelation time to assume, bins.

    Returns:
        The stretch, or `None`, and the autocorrelation time of the series.
    """
    used = weight > 0
    if np.count_nonzero(used) < MIN_BINS:
        return None, autocorrelation
    x, weight = x[used], weight[used]
    starts, ends = bins.edges[:-1][used], bins.edges[1:][used]
    stretches = _Stretches(weight)
    highest = stretches.highest(x) if at is None else _stretch_around(x, weight, starts, at)
    if highest is None:
        return None, autocorrelation
    squares, i, j = highest
    inside, outside = _levels(x, weight, i, j)
    # A drifting metric crosses a bound again and again: without sharp edges, its other stretches
    # are noise.
    noise, edges = _noise(x, weight, stretches, (i, j), _MAX_STRETCHES if sharp_edges else 1)
    variance = max(float((noise**2).mean()), min_variance)
    autocorrelation = max(autocorrelation, autocorrelation_time(noise))
    if inside - outside < min_rise or variance <= 0:
        return None, autocorrelation
    score = squares / variance / autocorrelation**2 / threshold(DRIFT_THRESHOLD, len(x))
    if sharp_edges:
        sharpness = _edge_sharpness(x, (i, j), edges, variance / float(weight.mean()))
        sharpness /= threshold(_EDGE_THRESHOLD, len(x))
        ratio = squares / variance / autocorrelation / _RATIO_WITH_EDGES
        score = max(score, min(ratio, sharpness))
    if at is None and score >= MIN_SCORE:
        score = min(score, _score_against_others(x, weight, (i, j), squares))
    if at is None:
        i, j = _without_gaps(x, weight, variance, (i, j))
        i, j = _extended_to_ends(weight, (i, j))
    end = None if j == len(x) else float(ends[j - 1])
    return Spike(float(starts[i]), end, bins.width, score), autocorrelation


class _Stretches:
    """All stretches [i, j) of a series that have enough requests inside and outside."""

    def __init__(self, weight: Floats) -> None:
        self._weight = weight
        self._total = total = float(weight.sum())
        cumulative = np.append(0.0, np.cumsum(weight))
        low, high = np.triu_indices(len(cumulative), 1)
        inside = cumulative[high] - cumulative[low]
        fewest = min(MIN_REQUESTS, total / 4)
        fits = (inside >= fewest) & (total - inside >= fewest)
        self.low, self.high, inside = low[fits], high[fits], inside[fits]
        self._scale = 1 / (inside * (1 - inside / total))

    def highest(self, x: Floats) -> tuple[float, int, int] | None:
        """Return the highest stretch for its length: the sum of squares it explains, i, and j."""
        if not self.low.size:
            return None
        mean = float((x * self._weight).sum()) / self._total
        cumulative = np.append(0.0, np.cumsum((x - mean) * self._weight))
        sums = cumulative[self.high] - cumulative[self.low]
        squares = np.where(sums > 0, sums**2 * self._scale, 0.0)
        best = int(np.argmax(squares))
        if squares[best] <= 0:
            return None
        return float(squares[best]), int(self.low[best]), int(self.high[best])


def _noise(
    x: Floats, weight: Floats, stretches: _Stretches, highest: tuple[int, int], most: int
) -> tuple[Floats, list[int]]:
    """Return the residuals of a series without its highest stretches, and those stretches' edges.

    At most `most` stretches are taken out: the highest, and others that stand out almost as far,
    since an incident is no noise. Residuals are scaled to one request.
    """
    rest = _residuals(x, weight, *highest)
    edges = [*highest]
    total = float(weight.sum())
    first = float(((x - rest - (x * weight).sum() / total) ** 2 * weight).sum())
    for _ in range(most - 1):
        other = stretches.highest(rest)
        if other is None or other[0] < _SIMILAR * first:
            break
        rest = _residuals(rest, weight, *other[1:])
        edges += other[1:]
    free = len(x) - 1 - len(edges)
    scaled: Floats = rest * np.sqrt(weight * (len(x) / max(free, len(x) / 2)))
    return scaled, edges


def _score_against_others(
    x: Floats, weight: Floats, highest: tuple[int, int], squares: float
) -> float:
    """Score a stretch by how far it stands out beyond the other stretches of the series.

    Load that comes and goes makes stretches all the time, and one of them is the highest. The
    differences between the highest of many such heights are exponentially distributed, the k-th
    with a k-th of the first one's mean. One incident, or two similar ones, stand out from that.
    """
    heights = [squares]
    while len(heights) < _OTHERS and len(x) >= MIN_BINS:
        around = slice(max(highest[0] - 1, 0), highest[1] + 1)
        x, weight = np.delete(x, around), np.delete(weight, around)
        other = _Stretches(weight).highest(x)
        if other is None:
            break
        heights.append(other[0])
        highest = other[1:]
    steps = np.maximum(-np.diff(heights), 0.0) * np.arange(1, len(heights))
    best = 0.0
    for incidents in (1, 2):
        usual = steps[incidents:]
        if len(usual) < _MIN_OTHERS:
            return math.inf
        relative = steps[incidents - 1] / max(float(usual.sum()), _SMALLEST)
        log_ratio = len(usual) * math.log1p(relative) - _PENALTY_FOR_TWO * (incidents - 1)
        best = max(best, log_ratio)
    return MIN_SCORE + (best + math.log(_CHANCE_OF_MIN_SCORE)) / _DECAY


def _levels(x: Floats, weight: Floats, i: int, j: int) -> tuple[float, float]:
    """Return the mean inside a stretch and outside."""
    total, inside = float((x * weight).sum()), float((x[i:j] * weight[i:j]).sum())
    n = float(weight[i:j].sum())
    return inside / n, (total - inside) / max(float(weight.sum()) - n, 1e-9)


def _residuals(x: Floats, weight: Floats, i: int, j: int) -> Floats:
    """Return a series less its mean inside a stretch and its mean outside."""
    inside, outside = _levels(x, weight, i, j)
    level = np.full(len(x), outside)
    level[i:j] = inside
    residuals: Floats = x - level
    return residuals


def threshold(by_bins: tuple[float, float, float], bins: int) -> float:
    """Return what noise in so many bins reaches in one search of a hundred."""
    least, more, most = by_bins
    return min(least + more / bins, most)


def autocorrelation_time(noise: Floats) -> float:
    """Return how many bins are worth one independent bin: 1 + 2 * the sum of autocorrelations."""
    squares = float((noise**2).sum())
    time = 1.0
    for lag in range(1, min(len(noise) // 3, _MAX_LAG)):
        product = float((noise[lag:] * noise[:-lag]).sum())
        correlation = product / squares if squares > _ROUNDING else 0.0
        if correlation <= 0:
            break
        time += 2 * correlation
    return time


def _edge_sharpness(
    x: Floats, stretch: tuple[int, int], edges: Sequence[int], variance: float
) -> float:
    """Return how much larger the steps at a stretch's edges are than the steps elsewhere.

    A drifting series makes stretches, but no edges. So a stretch with edges counts even if too few
    bins are known to say how the series drifts. Steps near the `edges` of all stretches are left
    out; `variance` is that of the noise of a bin.
    """
    cumulative = np.append(0.0, np.cumsum(x))
    best = 0.0
    for m in _STEP_WIDTHS:
        steps = np.abs(cumulative[2 * m :] - 2 * cumulative[m:-m] + cumulative[: -2 * m])
        place = np.arange(len(steps)) + m
        at_edges = [steps[edge - m] for edge in stretch
                    if m <= edge <= len(x) - m and 0 < edge < len(x)]  # fmt: skip
        elsewhere = np.all([np.abs(place - edge) >= m for edge in edges], axis=0)
        if not at_edges or np.count_nonzero(elsewhere) < _MIN_STEPS:
            continue
        usual = max(float((steps[elsewhere] ** 2).mean()), m * variance)
        best = max(best, float(min(at_edges)) / math.sqrt(usual))
    return best


def _stretch_around(
    x: Floats, weight: Floats, starts: Floats, at: float
) -> tuple[float, int, int] | None:
    """Return the stretch around a time in which the series is nearer to its level then than usual.

    With it, as `_Stretches.highest` does, the sum of squares that it explains.
    """
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
    if inside < MIN_REQUESTS or level <= usual:
        return None
    mean = float(np.average(x[i:j], weights=weight[i:j]))
    return (mean - usual) ** 2 * inside, i, j


def _extended_to_ends(weight: Floats, stretch: tuple[int, int]) -> tuple[int, int]:
    """Extend a stretch to the first or last bin if too few requests lie beyond it.

    So few requests cannot show that they differ from the stretch.
    """
    i, j = stretch
    i = 0 if float(weight[:i].sum()) < MIN_REQUESTS else i
    j = len(weight) if float(weight[j:].sum()) < MIN_REQUESTS else j
    return stretch if (i, j) == (0, len(weight)) else (i, j)


def _without_gaps(
    x: Floats, weight: Floats, variance: float, stretch: tuple[int, int]
) -> tuple[int, int]:
    """If a stretch is two spikes with a quiet gap between, return the one with more requests.

    Of two with equally many, the later one.
    """
    i, j = stretch
    outside = np.ones(len(x), bool)
    outside[i:j] = False
    usual = float(np.average(x[outside], weights=weight[outside]))
    for _ in range(_MAX_GAPS):
        gap = _Stretches(weight[i:j]).highest(-x[i:j])
        if gap is None or gap[0] < _QUIET_GAP * variance:
            break
        low, high = i + gap[1], i + gap[2]
        level = float(np.average(x[low:high], weights=weight[low:high]))
        around = float(np.average(x[i:j], weights=weight[i:j]))
        if level - usual > around - level:
            break  # lower, but not quiet
        later = weight[high:j].sum() >= weight[i:low].sum()
        part = (high, j) if later else (i, low)
        if weight[slice(*part)].sum() < MIN_REQUESTS:
            break
        i, j = part
    return i, j
