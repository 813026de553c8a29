"""Decide whether chance alone explains a difference.

Exact small-sample tests of counts (binomial, Fisher), how far clustering in time stretches them,
and how many discoveries may be believed out of many tests (Benjamini and Hochberg).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats, Mask

_WIDTHS_S: Final = (15.0, 30.0, 60.0, 120.0, 300.0)
_MIN_BINS: Final = 10
_BINS: Final = 20  # of a window, which may be too short for those
_MIN_STRETCHES: Final = 4
_MIN_EXPECTED: Final = 0.25
_TAIL: Final = 0.025
_CLOSE: Final = 1e-12
_STEPS: Final = 10_000
_MIN_LAGGED: Final = 8  # values, of which a quarter is two
_TERMS: Final = 1000


def quantile(values: Floats, q: float, weights: Floats | None = None) -> float:
    """Return the smallest value that a share `q` of the weight does not exceed: nearest rank.

    Example:
        >>> quantile(np.array([3.0, 1.0, 2.0, 4.0]), 0.5)
        2.0
    """
    if weights is None or np.ptp(weights) == 0:
        rank = max(math.ceil(len(values) * q - 1e-9), 1) - 1
        return float(np.partition(values, rank)[rank])
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    rank = int(np.searchsorted(reached, q * reached[-1] * (1 - 1e-12)))
    return float(values[order[min(rank, len(values) - 1)]])


def harrell_davis(n: int, q: float) -> Floats:
    """Return the weights of ordered values, smallest first: a beta density, adding up to 1.

    Example:
        >>> harrell_davis(3, 0.5).round(3)
        array([0.263, 0.474, 0.263])
    """
    a, b = (n + 1) * q - 1, (n + 1) * (1 - q) - 1
    share = (np.arange(n) + 0.5) / n
    logs = a * np.log(share) + b * np.log1p(-share)
    density = np.exp(logs - logs.max())
    weights: Floats = density / density.sum()
    return weights


def effective_count(weights: Floats) -> float:
    """Return the effective sample size of weighted requests.

    Example:
        >>> effective_count(np.array([2.0, 2.0])), effective_count(np.array([1.0, 0.0]))
        (2.0, 1.0)
    """
    total = float((weights**2).sum())
    return float(weights.sum()) ** 2 / total if total > 0 else 0.0


def quantile_bounds(
    values: Floats, q: float, design: float = 1.0, weights: Floats | None = None
) -> tuple[float | None, ...]:
    """Return the order statistics that cover the true quantile with 95 % confidence.

    Exact for independent requests; `design` counts fewer of them where they share fate, and so do
    weights that differ. `None` where there are too few for a bound.
    """
    n = len(values)
    uneven = weights is not None and np.ptp(weights) > 0
    count = effective_count(weights) if weights is not None and uneven else n
    effective = max(int(count / max(design, 1.0)), 1)
    low, high = _ranks(effective, q)
    ordered = np.sort(values)

    def at(rank: int | None, up: bool) -> float | None:
        if rank is None:
            return None
        if uneven:
            return quantile(values, rank / effective, weights)
        # A rank of the effective count, as a share, is a rank of the whole.
        place = (
            math.ceil(rank / effective * n) if up else math.floor((rank - 1) / effective * n) + 1
        )
        return float(ordered[min(max(place, 1), n) - 1])

    return at(low, up=False), at(high, up=True)


@lru_cache(maxsize=1024)
def _ranks(n: int, q: float) -> tuple[int | None, int | None]:
    """Return the ranks whose values leave 2.5 % on either side; `None` = no such rank."""
    spread = 6 * math.sqrt(n * q * (1 - q)) + 6
    first, last = max(math.floor(n * q - spread), 0), min(math.ceil(n * q + spread), n)
    k = np.arange(first, last + 1)
    below = np.cumsum(np.exp(_log_choose(n, k) + k * math.log(q) + (n - k) * math.log1p(-q)))
    under = np.flatnonzero(below <= _TAIL)
    over = np.flatnonzero(below >= 1 - _TAIL)
    low = int(k[under[-1]]) + 1 if under.size else None
    high = int(k[over[0]]) + 1 if over.size and k[over[0]] + 1 <= n else None
    return low, high


def share_bounds(k: float, n: float) -> tuple[float, float]:
    """Return the exact 95 % interval (Clopper and Pearson) of a share of `k` in `n`."""
    if n <= 0:
        return 0.0, 1.0
    low = 0.0 if k <= 0 else _inverse_beta(_TAIL, k, n - k + 1)
    high = 1.0 if k >= n else _inverse_beta(1 - _TAIL, k + 1, n - k)
    return low, high


def more_than(k1: float, n1: float, k2: float, n2: float) -> float:
    """Return the chance of a share as high as `k1` of `n1` if it truly were that of `k2` of `n2`.

    Fisher's exact test, one-sided. Counts may be fractions of requests, where requests that share
    fate count for less than one: they are rounded so that the test errs to caution.
    """
    n1, n2 = math.floor(n1), math.floor(n2)
    k1, k2 = min(math.floor(k1), n1), min(math.ceil(k2), n2)
    if n1 < 1 or n2 < 1 or k1 < 1:
        return 1.0
    drawn = k1 + k2
    k = np.arange(k1, min(drawn, n1) + 1)
    logs = _log_choose(n1, k) + _log_choose(n2, drawn - k)
    total = _log_choose(n1 + n2, np.array([drawn]))[0]
    return float(min(np.exp(logs - total).sum(), 1.0))


def binomial_tail(k: float, n: float, p: float) -> float:
    """Return the chance of `k` or more out of `n` at probability `p`."""
    if k <= 0:
        return 1.0
    if k > n or p <= 0:
        return 0.0
    return _beta(p, k, n - k + 1) if p < 1 else 1.0


def poisson_tail(k: int, expected: float) -> float:
    """Return the chance of `k` or more where so many are expected.

    Example:
        >>> round(poisson_tail(2, 1.0), 4)
        0.2642
    """
    below = [math.exp(i * math.log(max(expected, 1e-300)) - expected - math.lgamma(i + 1))
             for i in range(k, k + _TERMS)]  # fmt: skip
    return min(1.0, math.fsum(below))


def clustered(
    t: Floats,
    slow: Mask,
    window_s: float | None = None,
    change: float | None = None,
    *,
    remembers: bool = False,
) -> float:
    """Return how many times more the slow requests vary by time than if each were independent.

    The index of dispersion of their counts in bins of 15 s to 5 min, or what the requests remember
    of those before them, whichever is most: at least 1. So many are worth one independent one.

    Args:
        t: unix seconds.
        slow: whether each request was slow.
        window_s: the length of a window these are compared with. What stretches as long as it do
            by themselves, as load comes and goes, is no news either.
        change: when the share changed for good, unix seconds; requests on either side are compared
            with the share of their own side, or an incident would be its own excuse.
        remembers: count what requests share with those before them, and in bins of a twentieth
            of the time, which windows of seconds have as well.
    """
    if len(t) == 0 or slow.all() or not slow.any():
        return 1.0
    expected = np.full(len(t), float(slow.mean()))
    later = t >= change if change is not None else np.zeros(len(t), bool)
    if later.any() and not later.all():
        expected = np.where(later, slow[later].mean(), slow[~later].mean())
    most = max(_dispersion(t, slow, expected, width, _MIN_BINS) for width in _WIDTHS_S)
    if remembers:
        most = max(most, _dispersion(t, slow, expected, float(np.ptp(t)) / _BINS, _MIN_BINS))
        most = max(most, _memory((slow - expected)[np.argsort(t, kind="stable")]))
    if window_s is not None:
        for width in (window_s, window_s / 2):
            most = max(most, _dispersion(t, slow, expected, width, _MIN_STRETCHES))
    return most


def _memory(off: Floats) -> float:
    """Return 1 and twice the correlations of each with those before it, while above chance."""
    n, whole = len(off), float((off**2).sum())
    if n < _MIN_LAGGED or whole <= 0:
        return 1.0
    # All lags at once: those of a million requests, one after another, would take minutes.
    power = np.abs(np.fft.rfft(off, 2 * n)) ** 2
    alike = np.fft.irfft(power)[1 : n // 4] / whole
    chance = np.flatnonzero(alike <= 1 / math.sqrt(n))
    above = alike[: chance[0]] if len(chance) else alike
    return 1.0 + 2.0 * float(above.sum())


def _dispersion(t: Floats, slow: Mask, expected: Floats, width: float, fewest: int) -> float:
    """Return the variance of counts in bins over that of independent requests; 1 if not known."""
    p = float(slow.mean())
    start, span = float(t.min()), float(np.ptp(t))
    bins = round(span / width) if width > 0 else 0
    if not fewest <= bins <= len(t):
        return 1.0
    place = np.minimum(((t - start) / span * bins).astype(np.int64), bins - 1)
    n = np.bincount(place, minlength=bins)
    k = np.bincount(place, slow, minlength=bins)
    mean = np.bincount(place, expected, minlength=bins)
    variance = np.bincount(place, expected * (1 - expected), minlength=bins)
    used = n > 0
    free = int(used.sum()) - 1
    if free < fewest - 1 or n[used].mean() * p < _MIN_EXPECTED:
        return 1.0
    used = variance > 0  # where all of a side are slow, or none, nothing varies
    chi = (k[used] - mean[used]) ** 2 / variance[used]
    # A variance of few bins is itself a guess, and may as well be too low.
    return float(chi.sum()) / free * (1 + 2 / free)


def false_discovery(p_values: Sequence[float]) -> list[float]:
    """Return each test's q: the share of false ones among those at least as certain.

    Example:
        >>> false_discovery([0.01, 0.5, 0.02])
        [0.03, 0.5, 0.03]
    """
    n = len(p_values)
    q = [1.0] * n
    least = 1.0
    for rank, i in reversed(list(enumerate(np.argsort(p_values, kind="stable"), 1))):
        least = min(least, p_values[i] * (n / rank))
        q[int(i)] = least
    return q


_log_factorials = np.zeros(1)


def _log_choose(n: int, k: np.typing.NDArray[np.int64]) -> Floats:
    """Return the logarithm of `n` choose `k`, for `k` from 0 to `n`."""
    global _log_factorials
    if len(_log_factorials) <= n:
        numbers = np.arange(1, max(2 * len(_log_factorials), n + 1), dtype=np.float64)
        _log_factorials = np.concatenate([[0.0], np.cumsum(np.log(numbers))])
    table: Floats = _log_factorials
    logs: Floats = table[n] - table[k] - table[n - k]
    return logs


def _inverse_beta(p: float, a: float, b: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _beta(middle, a, b) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _beta(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
        + a * math.log(x) + b * math.log1p(-x)
    ) / a  # fmt: skip
    tiny = 1e-300
    c, d = 1.0, 1.0 / max(1.0 - (a + b) * x / (a + 1), tiny)
    f = d
    for m in range(1, _STEPS):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + numerator * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + numerator / c
            c = c if abs(c) > tiny else tiny
            f *= c * d
        if abs(c * d - 1.0) < _CLOSE:
            break
    return front * f


def student_tail(t: float, freedom: float) -> float:
    """Return the chance of a |t| as high in Student's distribution: the two-sided p-value.

    Example:
        >>> round(student_tail(2.228, 10), 3)
        0.05
    """
    return _beta(freedom / (freedom + t * t), freedom / 2, 0.5)
