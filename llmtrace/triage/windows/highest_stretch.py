"""Find the stretch of a series that stands highest above the rest for its length.

The ratio of likelihoods of all stretches, compared with what the series does without the highest:
its spread, how long it remembers itself, and how large its steps are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats
from llmtrace.triage.windows.bins import MIN_BINS, Bins

MIN_INSIDE: Final = 10  # requests of a stretch
_MAX_STRETCHES: Final = 4
_ALSO: Final = 0.3  # of what the highest stretch stands out by, from which another is no noise
_MAX_GAPS: Final = 4
_NEAR: Final = 2  # bins
_CLEAR: Final = 30.0  # times the spread, from which a gap within a stretch is one
# Bars that noise reaches seldom, by bins: tests.bench.bench_search measures them. Few bins say
# little of how noise wanders, so that the bars are higher there.
_ABRUPT: Final = 25.0  # of the ratio, for a stretch with edges
_EDGE: Final = (3.5, 80.0, 6.5)  # at least, and by how much more for one over the bins, at most
WANDERS: Final = (20.0, 1600.0, 60.0)  # of the ratio, for a stretch without
_MAX_MEMORY: Final = 30  # bins
_STEPS: Final = (1, 2, 4, 8)  # bins on either side of an edge
_MIN_STEPS: Final = 3
CERTAIN: Final = 1.0  # of a score
SURE: Final = 1e-3  # a search so sure has paid for its many attempts: its windows are as if given
# How often noise reaches `CERTAIN` in one search, and how fast that falls with the score.
_BY_CHANCE: Final = 0.01
_STEEP: Final = 6.0
_SMALLEST: Final = 1e-300
_ROUNDING: Final = 1e-20  # of a sum of squares: what is left of a level is no noise
_OTHERS: Final = 10  # stretches whose heights are compared
_KNOWN_BY: Final = 4  # between their heights, from which those say something
_OF_TWO: Final = 4.0  # of a logarithm of chances: two bursts alike are no rarity, either


@dataclass(frozen=True, slots=True)
class Spike:
    """A stretch of slow requests.

    Attributes:
        start, end: unix seconds; `end` is `None` where it lasts to the end of the data.
        bin_s: how finely it was looked for.
        score: how far it stands out, as a multiple of what noise of any kind does in one search
            of a hundred; above `CERTAIN` to count, and twice that is far from any noise.
    """

    start: float
    end: float | None
    bin_s: float
    score: float

    @property
    def p_value(self) -> float:
        """How often noise of any kind makes a stretch that stands out as far, in one search."""
        return chance_of(self.score)


def chance_of(score: float) -> float:
    """Return how often noise of any kind reaches a score, in one search."""
    return max(min(_BY_CHANCE * math.exp(_STEEP * (CERTAIN - score)), 1.0), _SMALLEST)


def highest_stretch(
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
    if np.count_nonzero(used) < MIN_BINS:
        return None, memory
    x, weight = x[used], weight[used]
    starts, ends = bins.edges[:-1][used], bins.edges[1:][used]
    pairs = _Pairs(weight)
    found = pairs.highest(x) if at is None else _at(x, weight, starts, at)
    if found is None:
        return None, memory
    apart, i, j = found
    inside, outside = _levels(x, weight, i, j)
    # Shares cross their bound again and again where a metric wanders: that is their noise.
    noise, edges = _noise(x, weight, pairs, (i, j), _MAX_STRETCHES if abrupt else 1)
    spread = max(float((noise**2).mean()), floor)
    memory = max(memory, memory_of(noise))
    if inside - outside < least or spread <= 0:
        return None, memory
    score = apart / spread / memory**2 / bar(WANDERS, len(x))
    if abrupt:
        edge = _edge(x, (i, j), edges, spread / float(weight.mean()))
        score = max(score, min(apart / spread / memory / _ABRUPT, edge / bar(_EDGE, len(x))))
    if at is None and score >= CERTAIN:
        score = min(score, _beyond_others(x, weight, (i, j), apart))
    if at is None:
        i, j = _without_gaps(x, weight, spread, (i, j))
        i, j = _to_the_ends(weight, (i, j))
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
        fewest = min(MIN_INSIDE, total / 4)
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
    x: Floats, weight: Floats, pairs: _Pairs, found: tuple[int, int], most: int
) -> tuple[Floats, list[int]]:
    """Return what is left of a series without its highest stretches (at most so many).

    It is scaled to one request. An incident is no noise, nor is another one that stands out nearly
    as far. Their edges come with it.
    """
    rest = _levelled(x, weight, *found)
    edges = [*found]
    total = float(weight.sum())
    first = float(((x - rest - (x * weight).sum() / total) ** 2 * weight).sum())
    for _ in range(most - 1):
        other = pairs.highest(rest)
        if other is None or other[0] < _ALSO * first:
            break
        rest = _levelled(rest, weight, *other[1:])
        edges += other[1:]
    free = len(x) - 1 - len(edges)
    left: Floats = rest * np.sqrt(weight * (len(x) / max(free, len(x) / 2)))
    return left, edges


def _beyond_others(x: Floats, weight: Floats, found: tuple[int, int], apart: float) -> float:
    """Return the score of a stretch by how far it stands out beyond others of the same series.

    Load that comes and goes makes stretches all the time, and one of them is the highest. Of many
    heights that chance makes, the steps between the highest are exponential, the k-th on average
    a k-th of the first: an incident, or two that are alike, stand out beyond that.
    """
    heights = [apart]
    while len(heights) < _OTHERS and len(x) >= MIN_BINS:
        around = slice(max(found[0] - 1, 0), found[1] + 1)
        x, weight = np.delete(x, around), np.delete(weight, around)
        other = _Pairs(weight).highest(x)
        if other is None:
            break
        heights.append(other[0])
        found = other[1:]
    steps = np.maximum(-np.diff(heights), 0.0) * np.arange(1, len(heights))
    best = 0.0
    for alike in (1, 2):
        usual = steps[alike:]
        if len(usual) < _KNOWN_BY:
            return math.inf
        further = steps[alike - 1] / max(float(usual.sum()), _SMALLEST)
        best = max(best, len(usual) * math.log1p(further) - _OF_TWO * (alike - 1))
    return CERTAIN + (best + math.log(_BY_CHANCE)) / _STEEP


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


def bar(by_bins: tuple[float, float, float], bins: int) -> float:
    """Return what noise in so many bins reaches in one search of a hundred."""
    least, more, most = by_bins
    return min(least + more / bins, most)


def memory_of(noise: Floats) -> float:
    """Return how many bins say as much as one independent one: 1 and twice the correlations."""
    whole = float((noise**2).sum())
    found = 1.0
    for lag in range(1, min(len(noise) // 3, _MAX_MEMORY)):
        alike = float((noise[lag:] * noise[:-lag]).sum()) / whole if whole > _ROUNDING else 0.0
        if alike <= 0:
            break
        found += 2 * alike
    return found


def _edge(x: Floats, found: tuple[int, int], edges: Sequence[int], spread: float) -> float:
    """Return how much larger the steps at a stretch's edges are than steps elsewhere.

    A series that wanders makes stretches of its own, but no edges; so a stretch that has them
    counts even where few bins say little of how the series wanders.
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
    if inside < MIN_INSIDE or level <= usual:
        return None
    mean = float(np.average(x[i:j], weights=weight[i:j]))
    return (mean - usual) ** 2 * inside, i, j


def _to_the_ends(weight: Floats, found: tuple[int, int]) -> tuple[int, int]:
    """Return a stretch from the first bin, or to the last, where too few requests lie outside.

    That those few differ from the stretch cannot be known.
    """
    i, j = found
    i = 0 if float(weight[:i].sum()) < MIN_INSIDE else i
    j = len(weight) if float(weight[j:].sum()) < MIN_INSIDE else j
    return found if (i, j) == (0, len(weight)) else (i, j)


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
        if weight[slice(*cut)].sum() < MIN_INSIDE:
            break
        i, j = cut
    return i, j
