"""Decide whether a duration differs between two runs, and by how much.

Requests of one run share fate, so none of them counts for itself: a run is cut by time into
batches, and what varies between batches is the noise (nonoverlapping batch means, Law and
Carson 1979). Two tests look at each duration: its ranks, for all of the distribution, and the
share of slow requests, for the tail.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final, Literal

import numpy as np

from llmtrace.stats.arrays import Floats
from llmtrace.stats.significance import quantile, student_tail

Direction = Literal["slower", "faster"]

QUANTILES: Final = (0.5, 0.95, 0.99)
ALPHA: Final = 0.03  # of all durations together; a little under the 1 in 20 that is promised
_OUTSIDE: Final = 0.05  # of an interval
_POWER: Final = 0.8
_TAIL: Final = 0.9
_RESAMPLES: Final = 400
_ROUNDING: Final = 1e-12
MIN_COUNT: Final = 10
_MIN_BATCHES: Final = 5
_MAX_BATCHES: Final = 30
_MIN_ABOVE: Final = 1.0  # values that a quantile leaves above it, to be more than the maximum


@dataclass(frozen=True, slots=True)
class Sample:
    """One duration of one run's requests, in order of their start.

    Attributes:
        values: seconds.
        weights: how many requests each stands for.
    """

    values: Floats
    weights: Floats

    @classmethod
    def of_known(cls, values: Floats) -> Sample:
        """Return the values that are not NaN, each standing for one request."""
        known = values[~np.isnan(values)]
        return cls(known, np.ones(len(known)))

    def quantile(self, q: float) -> float | None:
        """Return a quantile in seconds; `None` where it would be no more than the maximum."""
        if len(self.values) * (1 - q) < _MIN_ABOVE:
            return None
        return quantile(self.values, q, self.weights)

    @property
    def mean(self) -> float:
        """The weighted mean, in seconds."""
        return float(np.average(self.values, weights=self.weights))


@dataclass(frozen=True, slots=True)
class Change:
    """By how much a quantile moved, in seconds, with the bounds of its 95 % interval."""

    by: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One duration in two runs.

    Attributes:
        name: of the stage or metric.
        before, after: the runs' values.
        changes: by quantile; those that either run is too small for are missing.
        p_value: chance of a difference as large if there is none, corrected for the number of
            durations compared; `None` = too few requests.
        direction: of a difference that is shown; `None` = none is.
        smallest: relative change of the median that would have been shown in four of five such
            comparisons; `None` = not known.
    """

    name: str
    before: Sample
    after: Sample
    changes: Mapping[float, Change]
    p_value: float | None
    direction: Direction | None
    smallest: float | None

    @property
    def alone(self) -> list[float]:
        """The quantiles whose own interval excludes 0; by chance, 1 in 20 does."""
        return [q for q, change in self.changes.items() if change.low > 0 or change.high < 0]


def effects(samples: Mapping[str, tuple[Sample, Sample]]) -> list[Effect]:
    """Compare each duration of two runs; together they err in one of twenty comparisons.

    Samples are by name, of the runs before and after.
    """
    found = [_effect(name, *sides, len(samples)) for name, sides in samples.items()]
    return [_shown(effect, p) for effect, p in zip(found, _holm(found), strict=True)]


def _effect(name: str, before: Sample, after: Sample, compared: int) -> Effect:
    if min(len(before.values), len(after.values)) < MIN_COUNT:
        return Effect(
            name=name, before=before, after=after, changes={}, p_value=None, direction=None,
            smallest=None,
        )  # fmt: skip
    moved = _resampled(before, after)
    changes = {}
    for q, draws in moved.items():
        first, second = before.quantile(q), after.quantile(q)
        if first is not None and second is not None:
            low, high = (
                float(bound) for bound in np.quantile(draws, (_OUTSIDE / 2, 1 - _OUTSIDE / 2))
            )
            by = second - first
            changes[q] = Change(by, max(min(low, by), -first), max(high, by))  # at most all
    return Effect(
        name=name,
        before=before,
        after=after,
        changes=changes,
        p_value=chance_p(before, after),
        direction=None,
        smallest=_smallest(before, moved[QUANTILES[0]], compared),
    )


def _shown(effect: Effect, p_value: float | None) -> Effect:
    if p_value is None or p_value >= ALPHA:
        return replace(effect, p_value=p_value)
    up = _rank_shift(effect.before, effect.after) > 0
    return replace(effect, p_value=p_value, direction="slower" if up else "faster")


def _holm(found: Sequence[Effect]) -> list[float | None]:
    """Correct p-values for their number (Holm 1979)."""
    order = sorted(
        (effect.p_value, i) for i, effect in enumerate(found) if effect.p_value is not None
    )
    corrected: list[float | None] = [None] * len(found)
    highest = 0.0
    for rank, (p_value, i) in enumerate(order):
        highest = max(highest, min(1.0, p_value * (len(order) - rank)))
        corrected[i] = highest
    return corrected


def chance_p(before: Sample, after: Sample) -> float:
    """Return the smaller of two tests' p-values, corrected for there being two."""
    pooled = np.concatenate([before.values, after.values])
    if np.ptp(pooled) == 0:
        return 1.0
    weights = np.concatenate([before.weights, after.weights])
    slow = pooled > quantile(pooled, _TAIL, weights)
    tests = [_welch(before, after, _ranks(pooled)), _welch(before, after, slow.astype(np.float64))]
    return min(1.0, 2 * min(tests))


def _rank_shift(before: Sample, after: Sample) -> float:
    ranks = _ranks(np.concatenate([before.values, after.values]))
    first, second = ranks[: len(before.values)], ranks[len(before.values) :]
    return float(
        np.average(second, weights=after.weights) - np.average(first, weights=before.weights)
    )


def _ranks(values: Floats) -> Floats:
    """Return each value's rank from 0 to 1; equal values share theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    middle: Floats = ((last - (count - 1) / 2) / len(values))[place]
    return middle


def _welch(before: Sample, after: Sample, scores: Floats) -> float:
    """Compare the batches' mean scores of two runs (Welch's t-test, two-sided)."""
    n = len(before.values)
    means = [_batch_means(scores[:n], before.weights), _batch_means(scores[n:], after.weights)]
    # Scores come in steps of one request: no run is without any noise.
    floor = [(1 / len(side.values)) ** 2 for side in (before, after)]
    errors = [
        max(float(m.var(ddof=1)), least) / len(m) for m, least in zip(means, floor, strict=True)
    ]
    spread = sum(errors)
    t = float(means[1].mean() - means[0].mean()) / math.sqrt(spread)
    freedom = spread**2 / sum(
        error**2 / (len(m) - 1) for error, m in zip(errors, means, strict=True)
    )
    return student_tail(t, freedom)


def _edges(n: int) -> np.typing.NDArray[np.intp]:
    count = min(max(math.isqrt(n), _MIN_BATCHES), _MAX_BATCHES)
    return np.linspace(0, n, count + 1).round().astype(np.intp)


def _batch_means(scores: Floats, weights: Floats) -> Floats:
    edges = _edges(len(scores))[:-1]
    total: Floats = np.add.reduceat(scores * weights, edges)
    mean: Floats = total / np.add.reduceat(weights, edges)
    return mean


def _resampled(before: Sample, after: Sample) -> dict[float, Floats]:
    """Return changes of each quantile, batches of both runs being drawn again and again."""
    draws = np.random.default_rng(0)
    first, second = _resampled_quantiles(before, draws), _resampled_quantiles(after, draws)
    return {q: second[:, i] - first[:, i] for i, q in enumerate(QUANTILES)}


def _resampled_quantiles(side: Sample, draws: np.random.Generator) -> Floats:
    """Return each draw's quantiles, a row a draw: a batch counts as often as it is drawn."""
    n = len(side.values)
    edges = _edges(n)
    batches = len(edges) - 1
    order = np.argsort(side.values, kind="stable")
    batch = np.repeat(np.arange(batches), np.diff(edges))[order]
    found = np.empty((_RESAMPLES, len(QUANTILES)))
    for row in found:
        times = np.bincount(draws.integers(0, batches, batches), minlength=batches)
        reached = np.cumsum(side.weights[order] * times[batch])
        ranks = np.searchsorted(reached, np.array(QUANTILES) * reached[-1] * (1 - _ROUNDING))
        row[:] = side.values[order[np.minimum(ranks, n - 1)]]
    return found


def _smallest(before: Sample, draws: Floats, compared: int) -> float | None:
    """Return the relative change of the median found with a power of 80 %, by its noise here."""
    middle = before.quantile(QUANTILES[0])
    if not middle:
        return None
    normal = NormalDist()
    needed = normal.inv_cdf(1 - ALPHA / (4 * compared)) + normal.inv_cdf(_POWER)
    return needed * float(draws.std()) / middle
