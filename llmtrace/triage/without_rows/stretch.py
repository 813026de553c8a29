"""Find the stretch of time in which a mean was higher than in the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.dataset.case import Window
from llmtrace.dataset.columns import Columns
from llmtrace.stats.arrays import Floats
from llmtrace.triage.evidence.changes import MIN_COUNT, mad_sigma

_CHANCE: Final = 1e-6  # that any stretch stands out by chance
_LEAST: Final = math.log(1.2)  # rise of a mean beyond that of any day
_SMALLEST_SPREAD: Final = 0.02  # relative, of means
_ALIKE_AT_MOST: Final = 0.9  # autocorrelation
_MOST: Final = 720  # points; more are merged
_BEFORE: Final = 3.0  # length of the window before, relative to the stretch


def find_stretch(
    rows: Columns,
    metrics: Sequence[str],
    at: float | None = None,
    gaps: Sequence[Window] = (),
) -> tuple[Window, Window] | None:
    """Return the windows before and in the most certain stretch; `None` = none stands out.

    Logarithms of means inside and outside each possible stretch are compared with their variation.
    No window has a gap in it.

    Args:
        rows: of intervals, by time.
        metrics: fields of them, any of which may have moved.
        at: a time that the stretch must contain, unix seconds.
        gaps: times in which nothing was recorded.
    """
    best = None
    for metric in metrics:
        t, values = _by_time(rows, metric)
        found = _highest(t, values, at, gaps)
        if found is not None and (best is None or found[0] > best[0]):
            best = found
    if best is None:
        return None
    _, start, end, compared = best
    return Window(max(compared.start, compared.end - _BEFORE * (end - start)), compared.end), (
        Window(start, end)
    )


def _by_time(rows: Columns, metric: str) -> tuple[Floats, Floats]:
    """Return the mean of a field over all engines at each time it is known."""
    values = rows.numbers[metric]
    known = np.isfinite(values) & (values > 0)
    t, weights = rows.start[known] / 1e9, rows.numbers["weight"][known]
    times, where = np.unique(t, return_inverse=True)
    if len(times) > _MOST:
        where = where * _MOST // len(times)
        times = np.array([times[place] for place in np.searchsorted(where, np.arange(_MOST))])
    total = np.bincount(where, values[known] * weights)
    return times, total / np.bincount(where, weights)


def _highest(
    t: Floats, values: Floats, at: float | None, gaps: Sequence[Window]
) -> tuple[float, float, float, Window] | None:
    """Return the z of the most certain stretch, its start and end, and the time before it."""
    n = len(t)
    if n < 2 * MIN_COUNT:
        return None
    x = np.log(values)
    sums = np.concatenate([[0.0], np.cumsum(x)])
    first, end = np.meshgrid(np.arange(n), np.arange(1, n + 1), indexing="ij")
    # Long enough, with enough before it to compare with.
    fits = (end - first >= MIN_COUNT) & (first >= MIN_COUNT)
    inside = np.maximum(end - first, 1)
    # Points of one number have no gap between them; those to compare with precede the stretch.
    part = np.searchsorted([gap.end for gap in gaps], t)
    begins = np.searchsorted(part, part)  # of each point's part, the first point
    compare = _to_compare_with(begins)
    fits &= (part[first] == part[end - 1]) & (compare[first] >= 0)
    if at is not None:
        fits &= (t[first] <= at) & (t[end - 1] >= at)
    if not fits.any():
        return None
    total = np.where(fits, sums[end] - sums[first], 0.0)
    outside = np.maximum(n - inside, 1)
    rise = total / inside - (sums[n] - total) / outside
    weighted = np.where(fits, rise * np.sqrt(inside * outside / n), -np.inf)
    place = np.unravel_index(int(np.argmax(weighted)), weighted.shape)
    begin, last = int(place[0]), int(place[1]) - 1
    high = (np.arange(n) >= begin) & (np.arange(n) <= last)
    unrest = x - np.where(high, np.median(x[high]), np.median(x[~high]))
    spread = max(mad_sigma(unrest), mad_sigma(np.diff(x)) / math.sqrt(2), _SMALLEST_SPREAD)
    spread *= _shared(unrest)
    z = float(weighted[place]) / spread
    if z < math.sqrt(2 * math.log(n * n / _CHANCE)) or rise[place] < _LEAST:
        return None
    step = float(np.median(np.diff(t)))
    after_gap = begins[begin] == begin
    start = float(t[begin]) - (step if after_gap else step / 2)
    until = int(compare[begin])
    compared = Window(float(t[begins[until - 1]]), min(start, float(t[until - 1]) + step / 2))
    return z, start, float(t[last]) + step / 2, compared


def _to_compare_with(begins: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return, for each point as the first of a stretch, the end of the points to compare with.

    Args:
        begins: the first point without a gap up to each point.

    Returns:
        Indices; -1 = there are too few.
    """
    found = np.full(len(begins), -1)
    for place in range(len(begins)):
        until = place
        while until and until - begins[until - 1] < MIN_COUNT:
            until = int(begins[until - 1])
        found[place] = until or -1
    return found


def _shared(unrest: Floats) -> float:
    """Return the factor on a mean's error if consecutive points are alike (autocorrelation)."""
    power = float(unrest @ unrest)
    alike = float(unrest[1:] @ unrest[:-1]) / power if power > 0 else 0.0
    alike = min(max(alike, 0.0), _ALIKE_AT_MOST)
    return math.sqrt((1 + alike) / (1 - alike))
