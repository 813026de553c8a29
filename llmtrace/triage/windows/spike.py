"""Find the stretch in which requests were slow, failed, or came in other numbers than usual.

It is found in a binned series of the metric, and its edges are then dated to the request.
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
from llmtrace.triage.windows.highest_stretch import Spike, autocorrelation_time, highest_stretch

_TAIL_QUANTILES: Final = (0.8, 0.95)  # above which a request is in the tail
_ANGLE_VARIANCE: Final = 0.25  # of the angle of a share, for one independent request
_MIN_CHANGE: Final = math.log(1.1)
_MIN_ANGLE: Final = 0.02
_SILENCE: Final = 20.0  # times the mean time between two requests
_MIN_TRAFFIC: Final = 3  # bins: anything shorter is a hiccup
TRAFFIC_RATIO: Final = 1.5  # times as many requests, or as few: from here on it is a finding
_MIN_RATE: Final = 0.5  # requests per bin, from which their variance is known
# Threshold of the log likelihood ratio, after division by the overdispersion and autocorrelation
# of the counts. Of pieces of 86 to 3,000 requests without an incident, 4 of 390 of two chat
# services reach it, and 53 of 145 of code completion, which comes in long bursts
# (tests.bench.bench_search).
_TRAFFIC_THRESHOLD: Final = 15.0


def find_slow(t: Floats, value: Floats, bins: Bins, at: float | None = None) -> Spike | None:
    """Find the stretch in which a metric is high: its mean, or the share of requests in its tail.

    Args:
        t: when requests started, unix seconds, ascending.
        value: the metric of each request.
        bins: of these requests.
        at: a time in the stretch, unix seconds; `None` = anywhere.
    """
    place = np.searchsorted(t, bins.edges)
    counts = np.diff(place).astype(np.float64)
    logs = np.append(0, np.cumsum(np.log(np.maximum(value, 1e-9))))
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.diff(logs[place]) / counts
    best, autocorrelation = highest_stretch(
        means, counts, bins, at, min_variance=0.0, min_rise=_MIN_CHANGE
    )
    for quantile in _TAIL_QUANTILES:
        above = np.append(0, np.cumsum(value > np.quantile(value, quantile)))
        angles = _angles(np.diff(above[place]), counts)
        # A drifting metric crosses a bound abruptly, so sharp edges of the share mean nothing.
        in_tail, _ = highest_stretch(
            angles, counts, bins, at, min_variance=_ANGLE_VARIANCE, min_rise=_MIN_ANGLE,
            sharp_edges=False, autocorrelation=autocorrelation,
        )  # fmt: skip
        if in_tail and (best is None or in_tail.score > best.score):
            best = in_tail
    return best and _with_exact_edges(best, t, value, bins)


def _with_exact_edges(found: Spike, t: Floats, value: Floats, bins: Bins) -> Spike:
    """Move a stretch's edges from those of its bins to the requests where it begins and ends.

    A bin may span a gap in which no request started.
    """
    inside = found.contains(t)
    if inside.all() or not inside.any():
        return found
    middle = (np.median(value[inside]) + np.median(value[~inside])) / 2
    moved = found
    if found.start > float(t[0]):
        start = date_change(t, value > middle, *_neighbouring_bins(bins, found.start))
        moved = replace(found, start=_after_silence(t, start.best if start else found.start))
    if found.end is not None:
        end = date_change(t, value <= middle, *_neighbouring_bins(bins, found.end))
        if end is not None and end.best > moved.start:
            moved = replace(moved, end=end.best)
    return moved


def _after_silence(t: Floats, start: float) -> float:
    """Return the start of a stretch, moved past a long silence if only a few requests precede it.

    Those few belong to the time before.
    """
    first = int(np.searchsorted(t, start))
    gaps = np.diff(t[first : first + PER_BIN + 1])
    if not gaps.size:
        return start
    longest = int(np.argmax(gaps))
    long = float(gaps[longest]) > _SILENCE * (float(t[-1] - t[0]) / len(t))
    return float(t[first + longest + 1]) if long else start


def _neighbouring_bins(bins: Bins, edge: float) -> tuple[float, float]:
    """Return the time from two bins before an edge to two bins after it."""
    place = int(np.searchsorted(bins.edges, edge))
    last = len(bins.edges) - 1
    return float(bins.edges[max(place - 2, 0)]), float(bins.edges[min(place + 2, last)])


def find_failures(t: Floats, failed: Mask, bins: Bins, at: float | None = None) -> Spike | None:
    """Find the stretch in which more requests fail; arguments as for `find_slow`."""
    place = np.searchsorted(t, bins.edges)
    cumulative = np.append(0, np.cumsum(failed))
    counts = np.diff(place).astype(np.float64)
    angles = _angles(np.diff(cumulative[place]), counts)
    found, _ = highest_stretch(
        angles, counts, bins, at, min_variance=_ANGLE_VARIANCE, min_rise=_MIN_ANGLE
    )
    by_counts = stretch_of_failures(t, failed) if at is None else None
    if by_counts is not None and (found is None or by_counts.score > found.score):
        return by_counts
    return found


def find_traffic(t: Floats, start: float, end: float, *, more: bool) -> Spike | None:
    """Find the stretch with far `more` requests, or else far fewer, from `start` to `end`."""
    count = min(MAX_BINS, len(t) // PER_BIN)
    if count < MIN_BINS or end <= start:
        return None
    edges = np.linspace(start, end, count + 1)
    n = np.diff(np.searchsorted(t, edges)).astype(np.float64)
    cumulative = np.append(0.0, np.cumsum(n))
    low, high = np.triu_indices(count + 1, _MIN_TRAFFIC)
    low, high = (side[high - low <= count - _MIN_TRAFFIC] for side in (low, high))
    bins, requests = (high - low).astype(np.float64), cumulative[high] - cumulative[low]
    inside, outside = requests / bins, (cumulative[-1] - requests) / (count - bins)
    usual = cumulative[-1] / count
    ratio = _log_ratio(inside, usual) * bins + _log_ratio(outside, usual) * (count - bins)
    larger, smaller = (inside, outside) if more else (outside, inside)
    ratio = np.where(larger >= TRAFFIC_RATIO * smaller, ratio, 0.0)
    best = int(np.argmax(ratio))
    i, j = int(low[best]), int(high[best])
    rate = np.full(count, outside[best])
    rate[i:j] = inside[best]
    residuals = (n - rate) / np.sqrt(np.maximum(rate, _MIN_RATE))
    overdispersion = max(float((residuals**2).sum()) / (count - 3), 1.0)
    score = float(ratio[best]) / overdispersion / autocorrelation_time(residuals)
    score /= _TRAFFIC_THRESHOLD
    stop = None if j == count else float(edges[j])
    return Spike(float(edges[i]), stop, float(edges[1] - edges[0]), score) if score else None


def _log_ratio(rate: Floats, usual: float) -> Floats:
    """Return the log likelihood ratio of a bin's count at its own rate against the usual one."""
    ratio: Floats = rate * np.log(np.maximum(rate, 1e-12) / usual) - rate + usual
    return ratio


def _angles(k: Floats, n: Floats) -> Floats:
    """Return the angles of the shares k / n.

    Their variance is 1 / 4n whatever the share (Anscombe's transformation of counts).
    """
    angles: Floats = np.arcsin(np.sqrt((k + 0.375) / (n + 0.75)))
    return angles
