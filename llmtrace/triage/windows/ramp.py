"""Find a gradual rise, and tell one from a step.

A metric, or its logarithm, is fitted, bin by bin, by a level, a straight rise and another level. A
step is the steepest of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats
from llmtrace.triage.windows.bins import PER_BIN
from llmtrace.triage.windows.changepoint import Dated
from llmtrace.triage.windows.highest_stretch import CERTAIN, WANDERS, bar, memory_of

_BINS: Final = 48  # at most: the rise is looked for between each two of them
_FEWEST: Final = 8
_SURE: Final = 12.0  # times the spread by which a ramp must fit better than the best step
_LONG: Final = 4  # bins that a rise takes at least
_QUARTER: Final = 0.25  # of the time: a shorter rise is looked for as a stretch
_ALIKE: Final = 3.84  # times the spread: lines that fit worse are not in the 95 % interval
_GAP: Final = 0.2  # of the rise
_EDGE: Final = 2  # bins that a step takes at most, as it may be within one
_EXACT: Final = 0.03  # of all variation: what leaves less is no noise, whatever it remembers
_MIN_RISE: Final = 0.1  # of the logarithm: by a tenth


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rise that began at `start`, unix seconds, and took so many seconds.

    `score` compares it with what noise does in one search of a hundred, as that of a spike.
    """

    start: float
    seconds: float
    score: float

    @property
    def middle(self) -> float:
        """When half of it was reached, unix seconds."""
        return self.start + self.seconds / 2


@dataclass(frozen=True, slots=True)
class _Fit:
    """The best rise of at least so many bins: what it explains, what it leaves, where it is.

    Its start is between `earliest` and `latest` in 95 % of cases.
    """

    gain: float
    left: Floats
    start: float
    seconds: float
    slope: float
    earliest: float
    latest: float


def find_ramp(t: Floats, value: Floats) -> Ramp | None:
    """Return the rise that takes a quarter of the time or more; `None` = the metric has none."""
    found = [_scored(*_binned(t, value, plain=plain)) for plain in (False, True)]
    seen = [one for one in found if one is not None and _is_seen(t, one.start, one.seconds)]
    return max(seen, key=lambda one: one.score, default=None)


def _is_seen(t: Floats, start: float, seconds: float) -> bool:
    """Return whether requests show a rise all along: across a gap it may have been a step."""
    inside = t[(t >= start) & (t <= start + seconds)]
    edges = np.concatenate([[start], inside, [start + seconds]])
    return bool(np.diff(edges).max() < _GAP * seconds)


def _scored(x: Floats, y: Floats) -> Ramp | None:
    if len(x) < _FEWEST:
        return None
    fit = _best(x, y, max(len(x) * _QUARTER, _LONG))
    if fit is None or fit.slope < _MIN_RISE:
        return None
    score = fit.gain / _spread(fit.left) / memory_of(fit.left) ** 2 / bar(WANDERS, len(x))
    if float((fit.left**2).sum()) < _EXACT * fit.gain:
        score = max(score, CERTAIN)
    return Ramp(fit.start, fit.seconds, score)


def ramp_of(t: Floats, value: Floats, start: float, end: float) -> Ramp | None:
    """Return the ramp that explains a stretch better than a step; `None` = a step does.

    Args:
        t: unix seconds, ascending.
        value: the metric, above 0.
        start: of the stretch,
        end: and its end; what follows is left out, since a fall is no part of the rise.
    """
    before = t < end
    x, y = _binned(t[before], value[before])
    if len(x) < _FEWEST or start >= end:
        return None
    fit, step = _best(x, y, _LONG), _best(x, y, 1, most=_EDGE)
    if fit is None or step is None:
        return None
    better = float((step.left**2).sum() - (fit.left**2).sum())
    if better < _SURE * _spread(fit.left) * memory_of(fit.left):
        return None
    return Ramp(fit.start, fit.seconds, 0.0) if _is_seen(t, fit.start, fit.seconds) else None


def date_ramp(t: Floats, value: Floats) -> Dated | None:
    """Return when the best rise of a metric began, by requests up to its end; `None` = none."""
    x, y = _binned(t, value)
    fit = _best(x, y, _LONG) if len(x) >= _FEWEST else None
    return None if fit is None else Dated(fit.earliest, fit.start, fit.latest)


def _binned(t: Floats, value: Floats, *, plain: bool = False) -> tuple[Floats, Floats]:
    """Return the mean time and level of bins of as many requests each.

    The level is the mean logarithm, or `plain` the median as a share of that of all.
    """
    count = min(_BINS, len(t) // PER_BIN)
    if count < _FEWEST or t[-1] <= t[0]:
        return np.empty(0), np.empty(0)
    groups = np.array_split(np.arange(len(t)), count)
    x = np.array([float(t[one].mean()) for one in groups])
    if plain:
        y = np.array([float(np.median(value[one])) for one in groups])
        y /= max(float(np.median(y)), 1e-9)
    else:
        y = np.array([float(np.log(np.maximum(value[one], 1e-9)).mean()) for one in groups])
    used = np.append(True, np.diff(x) > 0)
    return x[used], y[used]


def _best(x: Floats, y: Floats, fewest: float, most: float = np.inf) -> _Fit | None:
    low, high = np.triu_indices(len(x), 1)
    fits = (high - low >= fewest) & (high - low <= most)
    low, high = low[fits], high[fits]
    if not low.size:
        return None
    rise = np.clip((x[None, :] - x[low, None]) / (x[high] - x[low])[:, None], 0.0, 1.0)
    rise -= rise.mean(axis=1, keepdims=True)
    level = y - y.mean()
    power = (rise**2).sum(axis=1)
    slope = rise @ level / power
    gain = np.where(slope > 0, slope**2 * power, -1.0)
    best = int(np.argmax(gain))
    if gain[best] < 0:
        return None
    left = level - slope[best] * rise[best]
    start, most = float(x[low[best]]), float(gain[best])
    alike = low[gain >= most - _ALIKE * _spread(left) * memory_of(left)]
    bounds = x[[max(alike.min() - 1, 0), min(alike.max() + 1, len(x) - 1)]]
    return _Fit(most, left, start, float(x[high[best]]) - start, float(slope[best]), *bounds)


def _spread(left: Floats) -> float:
    return max(float((left**2).sum()) / max(len(left) - 3, 1), 1e-12)
