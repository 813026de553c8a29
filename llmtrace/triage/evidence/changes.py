"""Measure how a quantity changed between two windows, compared with its usual variation.

Requests of one batch share their fate, so spread is taken between blocks of time, not between
requests: the variation of a quiet window, from one block to the next, is the scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.stats.arrays import Floats, Mask
from llmtrace.stats.significance import more_than

MIN_COUNT: Final = 8  # values a side; fewer say nothing of a distribution
TAIL: Final = 0.05
# Standard errors: dozens of quantities are looked at, and three of them happen on quiet days. Less
# will do where other evidence says the same.
SURE: Final = 3.5
RATHER_SURE: Final = 2.5
HALF: Final = 0.5  # of a whole: from there on a part is most of it
# Standard errors by which one more stretch stands out from those before, of what a cause is about.
STANDS_OUT: Final = 2.75
STRETCHES: Final = 6  # of the window before, at least
_MAX_BLOCKS: Final = 24
_PER_BLOCK: Final = 12
_FEW_BLOCKS: Final = 6  # of fewer requests each, where there are not many
_PER_SMALL_BLOCK: Final = 4
_MAD_TO_SIGMA: Final = 1.4826
_MEDIAN_ERROR: Final = 1.2533  # a median is this much less sure than a mean
_SEVERAL: Final = 3
_ALIKE: Final = 2.0  # means that follow one another are alike: so much less is known of them
_RELATIVE: Final = 0.1
_SMALLEST: Final = 1e-300
_TINY: Final = 1e-12
_HURST: Final = 0.75
_FEW_SAMPLES: Final = 4  # before: fewer know no spread
_USUAL_SPREAD: Final = 0.2  # of the level before, at least, whatever few samples say
_SMALL_SPREAD: Final = 0.05  # of the level after
_CLOSE: Final = 1e-12


@dataclass(frozen=True, slots=True)
class Shift:
    """One quantity before and after.

    Attributes:
        z: change of the median, in standard errors from the unrest between blocks of time.
        over: share of the values after that lie above the p95 before; 0.05 = as ever.
        over_z: how far `over` is above 0.05, clustering counted in, as the z of an exact test.
        mean_z: change of the mean, in standard errors from the unrest between blocks of time.
        under_z: as `over_z`, of the values after that lie below the p5 before.
        stretch_z: how far the mean after is above those of stretches before, as a z.
        middle_z: the same of medians, which a few long waits before do not hide.
        source: who measured it, where no request did.
        sure: from how many standard errors on it is beyond chance.
    """

    before_p50: float
    after_p50: float
    before_p95: float
    after_p95: float
    before_mean: float
    after_mean: float
    over: float
    z: float = 0.0
    over_z: float = 0.0
    mean_z: float = 0.0
    under_z: float = 0.0
    stretch_z: float = 0.0
    middle_z: float = 0.0
    source: str = ""
    sure: float = SURE

    @property
    def change(self) -> float:
        """What the median changed by, or the p95 where that is more: signed."""
        return max(self.after_p50 - self.before_p50, self.after_p95 - self.before_p95, key=abs)

    @property
    def mean_change(self) -> float:
        """What the mean changed by: signed."""
        return self.after_mean - self.before_mean

    @property
    def ratio(self) -> float:
        """Median after over median before; infinite from nothing to something."""
        if self.before_p50 <= 0:  # below it is what is left of other figures
            return math.inf if self.after_p50 > 0 else 1.0
        return self.after_p50 / self.before_p50

    def rose(self, floor: float, relative: float = _RELATIVE) -> bool:
        """Return whether the middle or the tail is up, beyond chance and by what matters.

        Args:
            floor: the least change worth a word, in the quantity's unit.
            relative: the least change worth a word, as a share of what was before.
        """
        middle, tail, _ = self._levels
        return (self.z >= self.sure and _matters(*middle, floor, relative)) or (
            self.over_z >= self.sure and _matters(*tail, floor, relative)
        )

    def grew(self, floor: float, relative: float = _RELATIVE) -> bool:
        """Return whether the mean is up: for counts that are mostly 0, and for rare long waits."""
        return self.mean_z >= self.sure and _matters(*self._levels[2], floor, relative)

    def leans(self, floor: float, relative: float = _RELATIVE) -> bool:
        """Return whether the middle, the tail or the mean is up by what matters, chance or not."""
        return any(_matters(*one, floor, relative) for one in self._levels)

    @property
    def _levels(self) -> tuple[tuple[float, float], ...]:
        return ((self.before_p50, self.after_p50), (self.before_p95, self.after_p95),
                (self.before_mean, self.after_mean))  # fmt: skip

    def sank(self, relative: float = _RELATIVE) -> bool:
        """Return whether the mean is down, beyond chance and by this share of what was before."""
        less = self.before_mean - self.after_mean
        return self.mean_z <= -self.sure and less >= relative * abs(self.before_mean)

    def fell(self, floor: float, relative: float = _RELATIVE) -> bool:
        """Return whether the middle is down, beyond chance and by what matters."""
        less = self.before_p50 - self.after_p50
        sure = max(-self.z, self.under_z) >= self.sure
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
) -> Shift | None:
    """Compare a quantity between two windows; `None` where too little is known of either.

    Args:
        before: values, NaN = unknown.
        before_t: when, seconds; as long as `before`.
        after: as `before`.
        after_t: as `before_t`.
        of_means: whether each value is a mean over many requests.
    """
    before, before_t = _known(before, before_t)
    after, after_t = _known(after, after_t)
    if len(before) < MIN_COUNT or len(after) < MIN_COUNT:
        return None
    before, after = (values[np.argsort(t, kind="stable")]
                     for values, t in ((before, before_t), (after, after_t)))  # fmt: skip
    found, b05 = _described(before, after), np.percentile(before, 5)
    blocks_b, blocks_a = _blocks(before), _blocks(after)
    medians = np.array([np.median(block) for block in blocks_b])
    spread = max(mad(medians), 0.02 * abs(found.before_p50), 1e-12)
    # The spread is that of blocks as large as those before, however large those after are.
    size = len(before) / len(blocks_b)
    error = spread * _MEDIAN_ERROR * math.sqrt(size / len(before) + size / len(after))
    beyond = _beyond_z(before, after) if of_means else -math.inf
    many = [block > found.before_p95 for block in blocks_b]
    few = [block < b05 for block in blocks_b]
    return replace(
        found,
        z=as_z((found.after_p50 - found.before_p50) / error, len(blocks_b) - 1),
        over_z=max(_over_z(found.over, len(before), len(after), many), beyond),
        mean_z=max(_mean_z(blocks_b, blocks_a), beyond),
        under_z=_over_z(float(np.mean(after < b05)), len(before), len(after), few),
        stretch_z=_stretch_z(before, after, np.mean),
        middle_z=_stretch_z(before, after, np.median),
    )


def _described(before: Floats, after: Floats) -> Shift:
    """Return what values are before and after, without how far that is beyond chance."""
    b50, b95, a50, a95 = (float(one) for side in (before, after)
                          for one in np.percentile(side, (50, 95)))  # fmt: skip
    means = float(before.mean()), float(after.mean())
    return Shift(b50, a50, b95, a95, *means, over=float(np.mean(after > b95)))


def shift_of_samples(before: Floats, after: Floats, others: Iterable[Floats] = ()) -> Shift | None:
    """Compare a gauge between two windows that hold few samples; `None` = none of one of them.

    Those of other instances before, at much the same level, say as well how far samples differ.

    A gauge that is scraped every 15 s has four samples a minute: they say nothing of a
    distribution, but whether they are far from those before (Student's t). Samples that follow one
    another are alike, and a few that happen to be the same still have a spread: counts that of
    chance (Poisson).
    """
    if len(before) < _FEW_SAMPLES or not len(after):
        return None
    low, high = float(before.mean()), float(after.mean())
    counts = not (before % 1).any() and not (after % 1).any()
    alike = [one for one in others if len(one) and low / 2 <= one.mean() <= 2 * low]
    off = np.concatenate([one - one.mean() for one in (before, *alike)])
    free = len(off) - 1 - len(alike)
    spread = max(
        _ALIKE * math.sqrt(float((off**2).sum()) / free), _USUAL_SPREAD * abs(low),
        _SMALL_SPREAD * abs(high), math.sqrt(max(low, 1.0)) if counts else 0.0,
    )  # fmt: skip
    error = max(spread * math.sqrt(1 / len(before) + 1 / len(after)), _TINY)
    z = as_z((high - low) / error, free)
    return replace(
        _described(before, after), z=z, over_z=z, mean_z=z, under_z=-z, stretch_z=z, middle_z=z
    )


@dataclass(frozen=True, slots=True)
class Share:
    """How many of how many, before and after."""

    before_k: int
    before_n: int
    after_k: int
    after_n: int
    sure: float = SURE

    @property
    def before(self) -> float:
        """The share before; 0 of none."""
        return self.before_k / self.before_n if self.before_n else 0.0

    @property
    def after(self) -> float:
        """The share after; 0 of none."""
        return self.after_k / self.after_n if self.after_n else 0.0

    @property
    def z(self) -> float:
        """How far the share is above the one before, as the z of an exact test."""
        if not self.before_n or not self.after_n:
            return 0.0
        return _z_of(more_than(self.after_k, self.after_n, self.before_k, self.before_n))

    def rose(self, floor: float, fewest: int = 5, sure: float | None = None) -> bool:
        """Return whether there is more of it, beyond chance, by `floor` and `fewest` cases.

        Args:
            floor: the least rise of the share worth a word.
            fewest: cases after.
            sure: standard errors; fewer will do where other evidence says the same.
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


def matched(before: Floats, before_by: Floats, after: Floats, after_by: Floats) -> float | None:
    """Return the ratio of a quantity, after over before, between rows alike in another.

    Rows are put into half octaves of `by`; the medians within each are compared, and the log
    ratios averaged by how many rows are there afterwards. `None` where no half octave has
    eight rows on both sides.
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


def foreseen(percent: float, before: Floats, before_by: Floats, after_by: Floats) -> float | None:
    """Return the percentile to expect after, if only another field changed.

    What a value of the field costs is the median before, by half octaves of it, and beyond what
    was seen a straight line; what is left over is as spread as before. `None` where before says
    of fewer than two half octaves.
    """
    cells = np.where(np.isfinite(before), half_octaves(before_by), -1)
    x, y = [], []
    for cell in np.unique(cells[cells >= 0]):
        here = cells == cell
        if here.sum() >= MIN_COUNT:
            x.append(float(np.median(before_by[here])))
            y.append(float(np.median(before[here])))
    wanted = after_by[np.isfinite(after_by)]
    if len(x) < 2 or not len(wanted):
        return None
    known = cells >= 0
    rest = before[known] - _along(before_by[known], x, y)
    drawn = np.random.default_rng(1).choice(rest, len(wanted))
    return float(np.percentile(_along(wanted, x, y) + drawn, percent))


def _along(by: Floats, x: list[float], y: list[float]) -> Floats:
    """Interpolate, and go on straight beyond the ends."""
    slope = max(float(np.polyfit(x, y, 1)[0]), 0.0)
    found = np.interp(by, x, y)
    found = np.where(by > x[-1], y[-1] + slope * (by - x[-1]), found)
    return np.where(by < x[0], np.maximum(y[0] + slope * (by - x[0]), 0.0), found)


def half_octaves(values: Floats) -> NDArray[np.int64]:
    """Return in which half octave each value is, 0 on; -1 = it is not known."""
    with np.errstate(invalid="ignore", divide="ignore"):
        cells = np.floor(2 * np.log2(values + 1))
    return np.where(np.isfinite(cells), cells, -1).astype(np.int64)


def _known(values: Floats, t: Floats) -> tuple[Floats, Floats]:
    known = np.isfinite(values)
    return values[known], t[known]


def _blocks(values: Floats) -> list[Floats]:
    """Cut values into blocks of equal count; they are in order of time."""
    fewest = min(max(len(values) // _PER_SMALL_BLOCK, 2), _FEW_BLOCKS)
    count = min(max(len(values) // _PER_BLOCK, fewest), _MAX_BLOCKS)
    return np.array_split(values, count)


def mad(values: Floats) -> float:
    """Return the spread of values by their median absolute deviation, as a standard deviation."""
    return _MAD_TO_SIGMA * float(np.median(np.abs(values - np.median(values))))


def _mean_z(before: list[Floats], after: list[Floats]) -> float:
    means = [np.array([block.mean() for block in blocks]) for blocks in (before, after)]
    variance = sum(float(one.var(ddof=1)) / len(one) for one in means)
    more = float(means[1].mean() - means[0].mean())
    least = max(0.01 * abs(float(means[0].mean())), 1e-9)
    return as_z(more / max(math.sqrt(variance), least), len(before) + len(after) - 2)


def _stretch_z(before: Floats, after: Floats, of: Callable[[Floats], np.floating[Any]]) -> float:
    """Return how far the mean after is from those of stretches before, each as long if possible.

    Lengths, bursts and waits are alike for longer than any block of requests: the window after is
    one more stretch, and if nothing happened its mean is drawn as theirs are. No more is taken to
    be known of them than a handful of stretches say (Student's prediction interval; Ibragimov and
    Müller), however many requests these hold.
    """
    count = max(STRETCHES, len(before) // len(after))
    means = np.array([of(part) for part in np.array_split(before, count)])
    least = max(0.01 * abs(float(means.mean())), 1e-9)
    return one_more_z(means, float(of(after)), least, len(after) * count / len(before))


def one_more_z(stretches: Floats, after: float, least: float, longer: float = 1.0) -> float:
    """Return how far the time after is from stretches before, as a z.

    Args:
        stretches: their means.
        after: the mean after.
        least: the least spread that is assumed of the stretches.
        longer: how many times as long as one of them the time after is. The mean of so many is
            surer, by as much as load allows that remembers for long (a Hurst exponent of 0.75).
    """
    count, spread = len(stretches), max(float(stretches.std(ddof=1)), least)
    error = spread * math.sqrt(max(longer, 1.0) ** (2 * _HURST - 2) + 1 / count)
    return as_z((after - float(stretches.mean())) / max(error, _TINY), count - 1)


def _beyond_z(before: Floats, after: Floats) -> float:
    """Return how sure it is that means are higher for some of the time, by their unrest before.

    A request may take any time, and some of a few dozen always take long: how many do is what
    counts. A mean of many does not leave its unrest by itself, and how far it does counts, too;
    but a long request takes one of them along: the highest are as high as the third of them.
    """
    after = np.minimum(after, np.sort(after)[-_SEVERAL])
    error = float(before.std(ddof=1)) * math.sqrt(1 / len(before) + 1 / len(after))
    more = float(after.mean() - before.mean())
    least = max(error, 0.01 * abs(float(before.mean())), 1e-12)
    return as_z(more / (_ALIKE * least), len(before) - 1)


def as_z(t: float, free: int) -> float:
    """Return the z as likely as a t of so many degrees of freedom, by Wallace's approximation.

    A few blocks know their own spread badly: what looks like six standard errors by two of them
    may be none.
    """
    if free < 1:
        return 0.0
    z = math.sqrt(free * math.log1p(t * t / free)) * (8 * free + 1) / (8 * free + 3)
    return math.copysign(z, t)


def _over_z(over: float, before_n: int, after_n: int, blocks: list[Mask]) -> float:
    counts = np.array([block.sum() for block in blocks], float)
    sizes = np.array([len(block) for block in blocks], float)
    expected = sizes * counts.sum() / sizes.sum()
    clustered = 1.0
    if len(counts) > 2 and expected.sum() > 0:
        clustered = max(float(np.mean((counts - expected) ** 2 / np.maximum(expected, 0.5))), 1.0)
    after, before = after_n / clustered, before_n / clustered
    return _z_of(more_than(over * after, after, TAIL * before, before))


def _z_of(chance: float) -> float:
    return -NormalDist().inv_cdf(min(max(chance, _SMALLEST), 1 - _CLOSE))
