"""Find a gradual rise (a ramp), and tell it from a step.

A metric, or its logarithm, is binned and fitted by a level, a straight rise and another level. A
step is the steepest such rise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats
from llmtrace.triage.windows.bins import PER_BIN
from llmtrace.triage.windows.changepoint import Dated
from llmtrace.triage.windows.highest_stretch import (
    DRIFT_THRESHOLD,
    MIN_SCORE,
    autocorrelation_time,
    threshold,
)

_MAX_BINS: Final = 48  # a rise between every two of them is fitted
_MIN_BINS: Final = 8
_BETTER: Final = 12.0  # times the variance by which a ramp must fit better than the best step
_MIN_RAMP: Final = 4  # bins that a ramp takes
_QUARTER: Final = 0.25  # of the time: shorter ramps are found as stretches
_CHI_SQUARE: Final = 3.84  # times the variance: fits worse by more are outside the 95 % interval
_MAX_GAP: Final = 0.2  # of the rise
_MAX_STEP: Final = 2  # bins that a step takes, since it may be within one
_EXACT: Final = 0.03  # of what the fit explains: smaller residuals are not noise, but curvature
_MIN_RISE: Final = 0.1  # of the logarithm: 10 %


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rise that began at `start`, unix seconds, and took so many seconds.

    `score` is scaled like that of a `Spike`: 1 = what noise reaches in one search of a hundred.
    """

    start: float
    seconds: float
    score: float

    @property
    def middle(self) -> float:
        """When half of the rise was reached, unix seconds."""
        return self.start + self.seconds / 2


@dataclass(frozen=True, slots=True)
class _Fit:
    """The best fit of a rise, and the sum of squares that it explains.

    `earliest` and `latest` are the 95 % interval of `start`, unix seconds.
    """

    explained: float
    residuals: Floats
    start: float
    seconds: float
    height: float
    earliest: float
    latest: float


def find_ramp(t: Floats, value: Floats) -> Ramp | None:
    """Return the clearest rise that takes a quarter of the time or more; `None` = none."""
    ramps = [_scored_ramp(*_binned(t, value, plain=plain)) for plain in (False, True)]
    covered = [one for one in ramps if one is not None and _is_covered(t, one.start, one.seconds)]
    return max(covered, key=lambda one: one.score, default=None)


def _is_covered(t: Floats, start: float, seconds: float) -> bool:
    """Return whether requests started all along a rise: across a gap it may have been a step."""
    inside = t[(t >= start) & (t <= start + seconds)]
    edges = np.concatenate([[start], inside, [start + seconds]])
    return bool(np.diff(edges).max() < _MAX_GAP * seconds)


def _scored_ramp(x: Floats, y: Floats) -> Ramp | None:
    """Return the best ramp of binned values with its score."""
    if len(x) < _MIN_BINS:
        return None
    fit = _best_fit(x, y, max(len(x) * _QUARTER, _MIN_RAMP))
    if fit is None or fit.height < _MIN_RISE:
        return None
    score = (
        fit.explained
        / _variance(fit.residuals)
        / autocorrelation_time(fit.residuals) ** 2
        / threshold(DRIFT_THRESHOLD, len(x))
    )
    if float((fit.residuals**2).sum()) < _EXACT * fit.explained:
        score = max(score, MIN_SCORE)
    return Ramp(fit.start, fit.seconds, score)


def ramp_of(t: Floats, value: Floats, start: float, end: float) -> Ramp | None:
    """Return the ramp that explains a stretch better than a step; `None` = a step does.

    Args:
        t: unix seconds, ascending.
        value: the metric, above 0.
        start: of the stretch,
        end: and its end. Later requests are left out, since a fall is no part of the rise.
    """
    until_end = t < end
    x, y = _binned(t[until_end], value[until_end])
    if len(x) < _MIN_BINS or start >= end:
        return None
    fit, step = _best_fit(x, y, _MIN_RAMP), _best_fit(x, y, 1, most=_MAX_STEP)
    if fit is None or step is None:
        return None
    better = float((step.residuals**2).sum() - (fit.residuals**2).sum())
    if better < _BETTER * _variance(fit.residuals) * autocorrelation_time(fit.residuals):
        return None
    return Ramp(fit.start, fit.seconds, 0.0) if _is_covered(t, fit.start, fit.seconds) else None


def date_ramp(t: Floats, value: Floats) -> Dated | None:
    """Return when the best ramp of a metric, or of its logarithm, began; `None` = it has none.

    A straight rise has a bent logarithm, which a straight line fits best from too early on. Which
    fits better is decided in logarithms: noise grows with the level.
    """
    fits = []
    for plain in (False, True):
        x, y = _binned(t, value, plain=plain)
        fit = _best_fit(x, y, _MIN_RAMP) if len(x) >= _MIN_BINS else None
        if fit is not None:
            off = fit.residuals
            if plain:
                off = np.log(np.maximum(y, 1e-9) / np.maximum(y - fit.residuals, 1e-9))
            fits.append((float((off**2).sum()), fit.earliest, fit.start, fit.latest))
    return Dated(*min(fits)[1:]) if fits else None


def _binned(t: Floats, value: Floats, *, plain: bool = False) -> tuple[Floats, Floats]:
    """Return the mean time and the level of bins with equally many requests; empty = too few.

    The level is the mean logarithm, or if `plain` the median, relative to the median of the bins.
    """
    count = min(_MAX_BINS, len(t) // PER_BIN)
    if count < _MIN_BINS or t[-1] <= t[0]:
        return np.empty(0), np.empty(0)
    groups = np.array_split(np.arange(len(t)), count)
    x = np.array([float(t[group].mean()) for group in groups])
    if plain:
        y = np.array([float(np.median(value[group])) for group in groups])
        y /= max(float(np.median(y)), 1e-9)
    else:
        y = np.array([float(np.log(np.maximum(value[group], 1e-9)).mean()) for group in groups])
    used = np.append(True, np.diff(x) > 0)
    return x[used], y[used]


def _best_fit(x: Floats, y: Floats, fewest: float, most: float = np.inf) -> _Fit | None:
    """Fit a rise of `fewest` to `most` bins by least squares; `None` = y only falls."""
    low, high = np.triu_indices(len(x), 1)
    fits = (high - low >= fewest) & (high - low <= most)
    low, high = low[fits], high[fits]
    if not low.size:
        return None
    rise = np.clip((x[None, :] - x[low, None]) / (x[high] - x[low])[:, None], 0.0, 1.0)
    rise -= rise.mean(axis=1, keepdims=True)
    level = y - y.mean()
    power = (rise**2).sum(axis=1)
    height = rise @ level / power
    explained = np.where(height > 0, height**2 * power, -1.0)
    best = int(np.argmax(explained))
    if explained[best] < 0:
        return None
    residuals = level - height[best] * rise[best]
    start, highest = float(x[low[best]]), float(explained[best])
    margin = _CHI_SQUARE * _variance(residuals) * autocorrelation_time(residuals)
    similar = low[explained >= highest - margin]
    earliest, latest = x[[max(similar.min() - 1, 0), min(similar.max() + 1, len(x) - 1)]]
    seconds = float(x[high[best]]) - start
    return _Fit(highest, residuals, start, seconds, float(height[best]), earliest, latest)


def _variance(residuals: Floats) -> float:
    return max(float((residuals**2).sum()) / max(len(residuals) - 3, 1), 1e-12)
