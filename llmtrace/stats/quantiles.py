"""Percentiles of a few hundred requests, with their confidence intervals.

Nearest rank, so that every percentile is a wait that occurred; and the interval of order
statistics that covers the true one, which assumes only that requests are independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# Keeps 0.07 * 100, which is a little more than 7 in floating point, at rank 7.
_ROUNDING: Final = 1e-9
_CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """The bounds between which a quantile lies; `None` where the data are too few."""

    low: float | None
    high: float | None


def quantile(ordered: Sequence[float], q: float) -> float:
    """Return the smallest value that at least a share `q` of the values do not exceed.

    A quantile within a limit therefore means the same as "a share `q` is within it".

    Args:
        ordered: the values, smallest first; one at least.
        q: between 0 and 1.

    Raises:
        IndexError: there are no values.

    Example:
        >>> quantile([1.0, 2.0, 3.0, 4.0], 0.5)
        2.0
    """
    rank = math.ceil(len(ordered) * q - _ROUNDING)
    return ordered[max(rank, 1) - 1]


def interval(ordered: Sequence[float], q: float) -> Interval:
    """Return bounds that cover the true quantile `q` with a probability of 95 % or more.

    How many of n values lie below the true quantile is binomial, whatever their distribution: the
    bounds are the values whose ranks leave half of the rest on either side.

    Args:
        ordered: the values, smallest first.
        q: between 0 and 1.

    Example:
        >>> interval([float(n) for n in range(1, 201)], 0.95)
        Interval(low=184.0, high=197.0)
    """
    n = len(ordered)
    tail = (1 - _CONFIDENCE) / 2
    low: float | None = None
    below = 0.0
    for rank in range(1, n + 1):
        # `below` is the chance that fewer than `rank` values lie under the true quantile.
        below += _binomial(n, rank - 1, q)
        if below <= tail:
            low = ordered[rank - 1]
        elif below >= 1 - tail:
            return Interval(low, ordered[rank - 1])
    return Interval(low, None)


def least_values(q: float) -> int:
    """Return how many values it takes until `interval` has an upper bound.

    Example:
        >>> least_values(0.95)
        72
    """
    return math.ceil(math.log((1 - _CONFIDENCE) / 2) / math.log(q) - _ROUNDING)


def _binomial(n: int, k: int, p: float) -> float:
    # In logarithms: 0.05 ** n is 0 in floating point from n = 249 on.
    log_combinations = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(log_combinations + k * math.log(p) + (n - k) * math.log1p(-p))
