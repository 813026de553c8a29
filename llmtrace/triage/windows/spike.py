"""Find when requests became slow, failed or changed in number, and when that ended.

A spike is the stretch of time inside which more requests are slow than outside, found in a binned
series of a metric; its edges are dated to the request.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats, Mask
from llmtrace.triage.windows.bins import MAX_BINS, MIN_BINS, PER_BIN, Bins
from llmtrace.triage.windows.changepoint import date_change
from llmtrace.triage.windows.failure_stretch import stretch_of_failures
from llmtrace.triage.windows.highest_stretch import Spike, highest_stretch, memory_of

_THRESHOLDS: Final = (0.8, 0.95)
_SPREAD: Final = 0.25  # of the angle of a share, for one request: that of independent ones
_MIN_CHANGE: Final = math.log(1.1)
_MIN_ANGLE: Final = 0.02
_SILENCE: Final = 20.0  # times as long as it usually is between two requests
_MIN_TRAFFIC: Final = 3  # bins: what is shorter is a hiccup
TRAFFIC_RATIO: Final = 1.5  # times as many requests, or as few: a finding
_SMALLEST_RATE: Final = 0.5  # requests a bin, of which the spread is known
# Of the log ratio of likelihoods, over the unrest and memory of the counts. Of pieces of 86 to
# 3,000 requests, 1 of 390 of two chats reaches it, and 44 of 145 of code completion, which comes
# in long bursts: tests.bench.bench_search.
_TRAFFIC_BAR: Final = 20.0


def find_slow(t: Floats, value: Floats, bins: Bins, at: float | None = None) -> Spike | None:
    """Find the stretch where a metric is high: all of it, or its tail."""
    place = np.searchsorted(t, bins.edges)
    counts = np.diff(place).astype(np.float64)
    logs = np.append(0, np.cumsum(np.log(np.maximum(value, 1e-9))))
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.diff(logs[place]) / counts
    best, memory = highest_stretch(means, counts, bins, at, floor=0.0, least=_MIN_CHANGE)
    for share in _THRESHOLDS:
        above = np.append(0, np.cumsum(value > np.quantile(value, share)))
        angles = _angles(np.diff(above[place]), counts)
        # A share above a bound has edges wherever the metric wanders across it: those are none.
        found, _ = highest_stretch(
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
    moved = found
    if found.start > float(t[0]):
        start = date_change(t, value > middle, *_around(bins, found.start))
        moved = replace(found, start=_past_gap(t, start.best if start else found.start))
    if found.end is not None:
        end = date_change(t, value <= middle, *_around(bins, found.end))
        if end is not None and end.best > moved.start:
            moved = replace(moved, end=end.best)
    return moved


def _past_gap(t: Floats, start: float) -> float:
    """Return when a stretch begins, without a few requests from before a long gap."""
    first = int(np.searchsorted(t, start))
    gaps = np.diff(t[first : first + PER_BIN + 1])
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
    found, _ = highest_stretch(angles, counts, bins, at, floor=_SPREAD, least=_MIN_ANGLE)
    again = stretch_of_failures(t, failed) if at is None else None
    if again is not None and (found is None or again.score > found.score):
        return again
    return found


def find_traffic(t: Floats, start: float, end: float, *, more: bool) -> Spike | None:
    """Find the stretch where requests come much more often than otherwise, or much less."""
    count = min(MAX_BINS, len(t) // PER_BIN)
    if count < MIN_BINS or end <= start:
        return None
    edges = np.linspace(start, end, count + 1)
    n = np.diff(np.searchsorted(t, edges)).astype(np.float64)
    reached = np.append(0.0, np.cumsum(n))
    low, high = np.triu_indices(count + 1, _MIN_TRAFFIC)
    low, high = (one[high - low <= count - _MIN_TRAFFIC] for one in (low, high))
    bins, inside = (high - low).astype(np.float64), reached[high] - reached[low]
    rate, others = inside / bins, (reached[-1] - inside) / (count - bins)
    usual = reached[-1] / count
    ratio = _surprise(rate, usual) * bins + _surprise(others, usual) * (count - bins)
    most, least = (rate, others) if more else (others, rate)
    found = np.where(most >= TRAFFIC_RATIO * least, ratio, 0.0)
    best = int(np.argmax(found))
    i, j = int(low[best]), int(high[best])
    level = np.full(count, others[best])
    level[i:j] = rate[best]
    off = (n - level) / np.sqrt(np.maximum(level, _SMALLEST_RATE))
    unrest = max(float((off**2).sum()) / (count - 3), 1.0)
    score = float(found[best]) / unrest / memory_of(off) / _TRAFFIC_BAR
    stop = None if j == count else float(edges[j])
    return Spike(float(edges[i]), stop, float(edges[1] - edges[0]), score) if score else None


def _surprise(rate: Floats, usual: float) -> Floats:
    """Return how much likelier a count is at its own rate than at the usual one: a logarithm."""
    found: Floats = rate * np.log(np.maximum(rate, 1e-12) / usual) - rate + usual
    return found


def _angles(k: Floats, n: Floats) -> Floats:
    # The angle of a share has the same spread whatever the share: 1 / 4n (Anscombe's counts).
    found: Floats = np.arcsin(np.sqrt((k + 0.375) / (n + 0.75)))
    return found
