"""Measure how a quantity changed between two windows, relative to its usual variation.

Requests of one batch are slow together, so variation is measured between blocks of time, not
between requests: the scale is how much blocks of a quiet window differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.stats.arrays import Floats, Mask, finite, median, percentiles
from llmtrace.stats.significance import more_than
from llmtrace.triage.comparison.extreme_waits import far_beyond

MIN_COUNT: Final = 8  # values in each window; fewer show no distribution
TAIL: Final = 0.05
# Standard errors. Dozens of quantities are compared, so three of them happen on quiet days; fewer
# suffice if other evidence agrees.
SURE: Final = 3.5
RATHER_SURE: Final = 2.5
HALF: Final = 0.5  # of a whole: a part this large is most of it
# Standard errors by which the time after differs from stretches of the time before.
STANDS_OUT: Final = 2.75
STRETCHES: Final = 6  # that the window before is cut into, at least
_MAX_BLOCKS: Final = 24
_PER_BLOCK: Final = 12
_FEW_BLOCKS: Final = 6  # of `_PER_SMALL_BLOCK` values, if there are few
_PER_SMALL_BLOCK: Final = 4
_MAD_TO_SIGMA: Final = 1.4826
_AS_MANY: Final = 0.4  # of the requests of a mean: so few more would change little
_MEDIAN_ERROR: Final = 1.2533  # standard error of a median over that of a mean (normal values)
_SEVERAL: Final = 3
_AUTOCORRELATED: Final = 2.0  # factor on the error, since consecutive samples are alike
_RELATIVE: Final = 0.1
_SMALLEST: Final = 1e-300
_TINY: Final = 1e-12
_HURST: Final = 0.75
_FEW_SAMPLES: Final = 4  # before; fewer show no spread
_USUAL_SPREAD: Final = 0.2  # least spread assumed, relative to the level before
_SMALL_SPREAD: Final = 0.05  # the same, relative to the level after
_CLOSE: Final = 1e-12


@dataclass(frozen=True, slots=True)
class Shift:
    """One quantity before and after. All z are signed; 0 = as before.

    Attributes:
        z: change of the median in standard errors, from the variation between blocks of time.
        tail_share: share of the values after above the p95 before; 0.05 = as before.
        tail_z: how far `tail_share` is above 0.05, allowing for clustering (exact test).
        mean_z: like `z`, of the mean.
        low_tail_z: like `tail_z`, for the values after below the p5 before.
        stretch_z: how far the mean after is above the means of stretches before.
        stretch_median_z: the same of medians, which a few long waits before do not hide.
        source: who measured it, if not the requests.
        sure: standard errors from which a change is beyond chance.
    """

    before_p50: float
    after_p50: float
    before_p95: float
    after_p95: float
    before_mean: float
    after_mean: float
    tail_share: float
    z: float = 0.0
    tail_z: float = 0.0
    mean_z: float = 0.0
    low_tail_z: float = 0.0
    stretch_z: float = 0.0
    stretch_median_z: float = 0.0
    source: str = ""
    sure: float = SURE

    @property
    def change(self) -> float:
        """Signed change of the median, or of the p95 if that is larger."""
        return max(self.after_p50 - self.before_p50, self.after_p95 - self.before_p95, key=abs)

    @property
    def mean_change(self) -> float:
        """Signed change of the mean."""
        return self.after_mean - self.before_mean

    @property
    def ratio(self) -> float:
        """Median after over median before; infinite from nothing to something."""
        if self.before_p50 <= 0:  # differences of other fields can be negative
            return math.inf if self.after_p50 > 0 else 1.0
        return self.after_p50 / self.before_p50

    def rose(self, floor: float, relative: float = _RELATIVE) -> bool:
        """Return whether the median or the tail is up, beyond chance and by enough to matter.

        Args:
            floor: the smallest change that matters, in the quantity's unit.
            relative: the smallest change that matters, relative to before.
        """
        middle, tail, _ = self._levels
        return (self.z >= self.sure and _matters(*middle, floor, relative)) or (
            self.tail_z >= self.sure and _matters(*tail, floor, relative)
        )

    def mean_rose(self, floor: float, relative: float = _RELATIVE) -> bool:
        """Return whether the mean is up: for counts that are mostly 0, and for rare long waits."""
        return self.mean_z >= self.sure and _matters(*self._levels[2], floor, relative)

    def is_higher(self, floor: float, relative: float = _RELATIVE) -> bool:
        """Return whether median, p95 or mean is up by enough to matter, by chance or not."""
        return any(_matters(*one, floor, relative) for one in self._levels)

    @property
    def _levels(self) -> tuple[tuple[float, float], ...]:
        return ((self.before_p50, self.after_p50), (self.before_p95, self.after_p95),
                (self.before_mean, self.after_mean))  # fmt: skip

    def mean_fell(self, relative: float = _RELATIVE) -> bool:
        """Return whether the mean is down, beyond chance and by this share of before."""
        less = self.before_mean - self.after_mean
        return self.mean_z <= -self.sure and less >= relative * abs(self.before_mean)

    def fell(self, floor: float, relative: float = _RELATIVE) -> bool:
        """Return whether the median is down, beyond chance and by enough to matter."""
        less = self.before_p50 - self.after_p50
        sure = max(-self.z, self.low_tail_z) >= self.sure
        return sure and less >= max(floor, relative * abs(self.before_p50))


def _matters(low: float, high: float, floor: float, relative: float) -> bool:
    return high - low >= max(floor, relative * abs(low))


def shift(
    before: Floats,
    before_t: Floats,
    after: Floats,
    after_t: Floats,
    *,
    of_means: bool = False,
    waits: bool = False,
) -> Shift | None:
    """Compare a quantity between two windows; `None` = too few values in one of them.

    Args:
        before: values, NaN = unknown.
        before_t: their times, seconds; as long as `before`.
        after: as `before`.
        after_t: as `before_t`.
        of_means: whether each value is a mean over many requests.
        waits: whether each value is a wait of one request, of which a few far longer ones count.
    """
    before, before_t = _known(before, before_t)
    after, after_t = _known(after, after_t)
    if len(before) < MIN_COUNT or len(after) < MIN_COUNT:
        return None
    far_z = _z_of_chance(far_beyond(before, after, after_t)) if waits else -math.inf
    before, after = (values[np.argsort(t, kind="stable")]
                     for values, t in ((before, before_t), (after, after_t)))  # fmt: skip
    found, (b05,) = _without_z(before, after), percentiles(np.sort(before), 5)
    blocks_b, blocks_a = _blocks(before), _blocks(after)
    medians = _of_each(blocks_b, median)
    spread = max(mad_sigma(medians), 0.02 * abs(found.before_p50), 1e-12)
    # The spread is of blocks of this size, so it is scaled to the sizes of both windows.
    size = len(before) / len(medians)
    error = spread * _MEDIAN_ERROR * math.sqrt(size / len(before) + size / len(after))
    means_z = _mean_level_z(before, after) if of_means else -math.inf
    many = [block > found.before_p95 for block in blocks_b]
    few = [block < b05 for block in blocks_b]
    return replace(
        found,
        z=z_of_t((found.after_p50 - found.before_p50) / error, len(medians) - 1),
        tail_z=max(_tail_z(found.tail_share, len(before), len(after), many), means_z),
        mean_z=max(_mean_z(blocks_b, blocks_a), means_z, far_z),
        low_tail_z=_tail_z(float(np.mean(after < b05)), len(before), len(after), few),
        stretch_z=_stretch_z(before, after, _mean),
        stretch_median_z=_stretch_z(before, after, median),
    )


def of_as_many(values: Floats, t: Floats, weight: Floats, least: float) -> tuple[Floats, Floats]:
    """Merge consecutive means, until each is of at least so many requests.

    Means of fewer requests vary more, and would have a higher p95 of the same requests.
    """
    known = np.isfinite(values) & (weight > 0)
    order = np.flatnonzero(known)[np.argsort(t[known], kind="stable")]
    values, t, weight = values[order], t[order], weight[order]
    if not len(values) or np.median(weight) >= _AS_MANY * least:
        return values, t
    group = ((np.cumsum(weight) - weight) / least).astype(int)
    sums, totals = (np.bincount(group, by) for by in (weight * values, weight))
    there, first = np.unique(group, return_index=True)
    return sums[there] / totals[there], t[first]


def _without_z(before: Floats, after: Floats) -> Shift:
    """Return percentiles and means before and after, without any z."""
    b50, b95, a50, a95 = (one for side in (before, after)
                          for one in percentiles(np.sort(side), 50, 95))  # fmt: skip
    means = float(before.mean()), float(after.mean())
    return Shift(b50, a50, b95, a95, *means, tail_share=float(np.mean(after > b95)))


def shift_of_samples(before: Floats, after: Floats, others: Iterable[Floats] = ()) -> Shift | None:
    """Compare a gauge between windows with few samples; `None` = too few in one of them.

    Few samples show no distribution, but whether they are far from those before (Student's t).
    Consecutive samples are alike, so the error is enlarged; equal samples still get a spread, and
    counts that of chance (Poisson). `others` = samples of other instances before, used if similar.
    """
    if len(before) < _FEW_SAMPLES or not len(after):
        return None
    low, high = float(before.mean()), float(after.mean())
    counts = not (before % 1).any() and not (after % 1).any()
    similar = [one for one in others if len(one) and low / 2 <= one.mean() <= 2 * low]
    residuals = np.concatenate([one - one.mean() for one in (before, *similar)])
    free = len(residuals) - 1 - len(similar)
    spread = max(
        _AUTOCORRELATED * math.sqrt(float((residuals**2).sum()) / free), _USUAL_SPREAD * abs(low),
        _SMALL_SPREAD * abs(high), math.sqrt(max(low, 1.0)) if counts else 0.0,
    )  # fmt: skip
    error = max(spread * math.sqrt(1 / len(before) + 1 / len(after)), _TINY)
    z = z_of_t((high - low) / error, free)
    return replace(
        _without_z(before, after),
        z=z,
        tail_z=z,
        mean_z=z,
        low_tail_z=-z,
        stretch_z=z,
        stretch_median_z=z,
    )


@dataclass(frozen=True, slots=True)
class Share:
    """A number of cases of a total, before and after."""

    before_k: int
    before_n: int
    after_k: int
    after_n: int
    sure: float = SURE

    @property
    def before(self) -> float:
        """The share before; 0 if the total is 0."""
        return self.before_k / self.before_n if self.before_n else 0.0

    @property
    def after(self) -> float:
        """The share after; 0 if the total is 0."""
        return self.after_k / self.after_n if self.after_n else 0.0

    @property
    def z(self) -> float:
        """How far the share is above the one before, as the z of an exact test."""
        if not self.before_n or not self.after_n:
            return 0.0
        return _z_of_chance(more_than(self.after_k, self.after_n, self.before_k, self.before_n))

    def rose(self, floor: float, fewest: int = 5, sure: float | None = None) -> bool:
        """Return whether the share is up beyond chance, by `floor`, with `fewest` cases after.

        Args:
            floor: the smallest rise of the share that matters.
            fewest: cases after.
            sure: standard errors, if fewer than usual suffice because other evidence agrees.
        """
        bar = self.sure if sure is None else min(sure, self.sure)
        return self.after_k >= fewest and self.z >= bar and self.after - self.before >= floor

    def __str__(self) -> str:
        return (
            f"{100 * self.before:.1f} → {100 * self.after:.1f} % "
            f"({self.before_k:,} of {self.before_n:,} → {self.after_k:,} of {self.after_n:,})"
        )


def share(before: Mask, after: Mask) -> Share:
    """Count the rows of a mask before and after."""
    return Share(int(before.sum()), len(before), int(after.sum()), len(after))


def ratio_at_same(
    before: Floats, before_by: Floats, after: Floats, after_by: Floats
) -> float | None:
    """Return the ratio of a quantity, after over before, among rows alike in another field.

    Rows are grouped by half octaves of `by`. The log ratios of the medians are averaged, weighted
    by the rows after. `None` = no group has eight rows in both windows.
    """
    ratios, weights = [], []
    cells_b = np.where(np.isfinite(before), half_octaves(before_by), -1)
    cells_a = np.where(np.isfinite(after), half_octaves(after_by), -1)
    for cell in np.intersect1d(cells_b, cells_a):
        if cell < 0:
            continue
        low, high = before[cells_b == cell], after[cells_a == cell]
        if min(len(low), len(high)) < MIN_COUNT:
            continue
        b50, a50 = float(np.median(low)), float(np.median(high))
        if b50 > 0 and a50 > 0:
            ratios.append(math.log(a50 / b50))
            weights.append(len(high))
    return math.exp(float(np.average(ratios, weights=weights))) if ratios else None


def expected_percentile(
    percent: float, before: Floats, before_by: Floats, after_by: Floats
) -> float | None:
    """Return the percentile to expect after if only another field (`by`) had changed.

    The value expected for a row is the median before in its half octave of `by`, interpolated, and
    extrapolated along a straight line; residuals are drawn from those before. `None` = fewer than
    two half octaves have enough rows before.
    """
    cells = np.where(np.isfinite(before), half_octaves(before_by), -1)
    x, y = [], []
    for cell in np.unique(cells[cells >= 0]):
        here = cells == cell
        if here.sum() >= MIN_COUNT:
            x.append(float(np.median(before_by[here])))
            y.append(float(np.median(before[here])))
    wanted = finite(after_by)
    if len(x) < 2 or not len(wanted):
        return None
    known = cells >= 0
    residuals = before[known] - _extrapolated(before_by[known], x, y)
    drawn = np.random.default_rng(1).choice(residuals, len(wanted))
    return float(np.percentile(_extrapolated(wanted, x, y) + drawn, percent))


def _extrapolated(by: Floats, x: list[float], y: list[float]) -> Floats:
    """Interpolate between the points x, y; beyond them, continue along their regression line."""
    slope = max(float(np.polyfit(x, y, 1)[0]), 0.0)
    found = np.interp(by, x, y)
    found = np.where(by > x[-1], y[-1] + slope * (by - x[-1]), found)
    return np.where(by < x[0], np.maximum(y[0] + slope * (by - x[0]), 0.0), found)


def half_octaves(values: Floats) -> NDArray[np.int64]:
    """Return the half octave that each value is in, from 0; -1 = not known."""
    with np.errstate(invalid="ignore", divide="ignore"):
        cells = np.floor(2 * np.log2(values + 1))
    return np.where(np.isfinite(cells), cells, -1).astype(np.int64)


def _known(values: Floats, t: Floats) -> tuple[Floats, Floats]:
    known = np.isfinite(values)
    return values[known], t[known]


def _blocks(values: Floats) -> list[Floats]:
    """Cut values, which are in order of time, into blocks of equal count; see `_cut`."""
    fewest = min(max(len(values) // _PER_SMALL_BLOCK, 2), _FEW_BLOCKS)
    return _cut(values, min(max(len(values) // _PER_BLOCK, fewest), _MAX_BLOCKS))


def _cut(values: Floats, count: int) -> list[Floats]:
    """Cut values into `count` blocks; return them as rows of one matrix, or two.

    Where they do not divide evenly, the first blocks have one value more, as in `np.array_split`.
    """
    size, longer = divmod(len(values), count)
    edge = longer * (size + 1)
    cut = [values[:edge].reshape(longer, size + 1), values[edge:].reshape(count - longer, size)]
    return [blocks for blocks in cut if blocks.size]


def _of_each(blocks: Iterable[NDArray[Any]], of: Callable[..., NDArray[Any]]) -> Floats:
    """Return the mean, median or sum (`of`, along the last axis) of every block of `_cut`."""
    return np.concatenate([of(same_size) for same_size in blocks])


def _mean(values: Floats) -> Floats:
    return np.asarray(values.mean(axis=-1))


def _sum(values: NDArray[Any]) -> Floats:
    return np.asarray(values.sum(axis=-1, dtype=np.float64))


def mad_sigma(values: Floats) -> float:
    """Return the standard deviation of values, estimated by their median absolute deviation."""
    return _MAD_TO_SIGMA * float(median(np.abs(values - median(values))))


def _mean_z(before: list[Floats], after: list[Floats]) -> float:
    """Return the change of the mean of blocks as a z (Welch)."""
    low, high = (_of_each(blocks, _mean) for blocks in (before, after))
    variance = float(low.var(ddof=1)) / len(low) + float(high.var(ddof=1)) / len(high)
    least = max(0.01 * abs(float(low.mean())), 1e-9)
    error = max(math.sqrt(variance), least)
    return z_of_t(float(high.mean() - low.mean()) / error, len(low) + len(high) - 2)


def _stretch_z(before: Floats, after: Floats, of: Callable[..., NDArray[Any]]) -> float:
    """Return how far the mean (`of`) after is from those of stretches before, as a z.

    Lengths, bursts and waits are alike for longer than a block of requests, so the window after is
    treated as one more stretch. However many requests stretches have, certainty depends on their
    number (Student's prediction interval; Ibragimov and Müller).
    """
    count = max(STRETCHES, len(before) // len(after))
    means = _of_each(_cut(before, count), of)
    least = max(0.01 * abs(float(means.mean())), 1e-9)
    return z_among_stretches(means, float(of(after)), least, len(after) * count / len(before))


def z_among_stretches(stretches: Floats, after: float, least: float, longer: float = 1.0) -> float:
    """Return how far the time after is from stretches of the time before, as a z.

    Args:
        stretches: their means.
        after: the mean after.
        least: the smallest spread assumed between stretches.
        longer: length of the time after over that of a stretch. A longer mean is more certain, but
            less so than with independent values: load has a long memory (Hurst exponent 0.75).
    """
    count, spread = len(stretches), max(float(stretches.std(ddof=1)), least)
    error = spread * math.sqrt(max(longer, 1.0) ** (2 * _HURST - 2) + 1 / count)
    return z_of_t((after - float(stretches.mean())) / max(error, _TINY), count - 1)


def _mean_level_z(before: Floats, after: Floats) -> float:
    """Return how certain it is that means over many requests got higher, by their spread before.

    A single request may take any time, so only how many are slow counts; a mean hardly strays by
    itself. One long request can raise a few means, so the highest are lowered to the third
    highest.
    """
    after = np.minimum(after, np.sort(after)[-_SEVERAL])
    error = float(before.std(ddof=1)) * math.sqrt(1 / len(before) + 1 / len(after))
    more = float(after.mean() - before.mean())
    least = max(error, 0.01 * abs(float(before.mean())), 1e-12)
    return z_of_t(more / (_AUTOCORRELATED * least), len(before) - 1)


def z_of_t(t: float, free: int) -> float:
    """Return the z that is as likely as a t with so many degrees of freedom (Wallace).

    A spread that is known from a few blocks is uncertain: six standard errors may be chance.
    """
    if free < 1:
        return 0.0
    z = math.sqrt(free * math.log1p(t * t / free)) * (8 * free + 1) / (8 * free + 3)
    return math.copysign(z, t)


def _tail_z(tail_share: float, before_n: int, after_n: int, blocks: list[Mask]) -> float:
    """Return how far a tail's share after is above `TAIL`, as the z of an exact test.

    Counts are divided by how much more those of blocks before (masks) vary than by chance.
    """
    counts = _of_each(blocks, _sum)
    sizes = np.concatenate([np.full(len(block), float(block.shape[1])) for block in blocks])
    expected = sizes * counts.sum() / sizes.sum()
    clustered = 1.0
    if len(counts) > 2 and expected.sum() > 0:
        clustered = max(float(np.mean((counts - expected) ** 2 / np.maximum(expected, 0.5))), 1.0)
    after, before = after_n / clustered, before_n / clustered
    return _z_of_chance(more_than(tail_share * after, after, TAIL * before, before))


def _z_of_chance(chance: float) -> float:
    return -NormalDist().inv_cdf(min(max(chance, _SMALLEST), 1 - _CLOSE))
