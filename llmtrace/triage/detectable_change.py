"""Compute the smallest change that these two windows would have shown.

"Nothing moved" means no more than that: in a few dozen requests, or requests that are slow
together, even a doubling can go unseen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from llmtrace.stats.significance import more_than, quantile
from llmtrace.triage.attribution.components import Values
from llmtrace.triage.result import Q

TOO_COARSE: Final = 0.2  # if a larger change can go unseen, "nothing moved" is not said
_FACTORS: Final = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 4.0, 9.0)
_ONE_IN_FIVE: Final = 0.8416  # standard deviations below the mean: 80 % power
_ENOUGH: Final = 20_000
_HALVINGS: Final = 10  # of the shares between the expected one and all


def smallest_visible(
    both: tuple[Values, Values],
    designs: tuple[float, float],
    shares: Sequence[float],
    *,
    certain: float,
    least: float,
) -> float | None:
    """Return by which factor all requests must get slower to be noticed in four of five cases.

    Args:
        both: the metric before and after; each request before is slowed by the same factor.
        designs: requests per independent request, before and after.
        shares: the quantiles at which the windows are compared.
        certain: the chance of a false alarm to stay below.
        least: smallest relative change of the p95 that matters.

    Returns:
        0.2 = a rise by 20 %, of the factors tried; `None` = not even ten times as slow.
    """
    before, after = both
    if not len(before) or not len(after):
        return None
    value = np.sort(before.value[:: -(-len(before) // _ENOUGH)])
    bounds = [quantile(before.value, share, before.weight) for share in shares]
    for factor in _FACTORS:
        if factor < least:
            continue
        slower = [1 - np.searchsorted(value, bound / (1 + factor), side="right") / len(value)
                  for bound in bounds]  # fmt: skip
        chance = min(_chance(seen, 1 - share, (len(before), len(after)), designs)
                     for seen, share in zip(slower, shares, strict=True))  # fmt: skip
        if 2 * len(shares) * chance < certain:
            return factor
    return None


def _chance(
    share: float, usual: float, counts: tuple[int, int], designs: tuple[float, float]
) -> float:
    """Return the chance of as many slow requests as are seen in four of five cases."""
    n0, n1 = counts[0] / designs[0], counts[1] / designs[1]
    seen = share - _ONE_IN_FIVE * math.sqrt(max(share * (1 - share), 0.0) / max(n1, 1))
    return more_than(seen * n1, n1, usual * n0, n0)


def smallest_share(
    counts: tuple[int, int], designs: tuple[float, float], *, tests: int, certain: float
) -> float | None:
    """Return the smallest share of requests beyond the p95 before that would be noticed.

    In four of five cases; `None` = not even all of them would be.

    Args:
        counts: requests before and after.
        designs: requests per independent request, before and after.
        tests: number of quantiles at which the windows are compared.
        certain: the chance of a false alarm to stay below.
    """
    if not min(counts):
        return None

    def shows(share: float) -> bool:
        return 2 * tests * _chance(share, 1 - Q, counts, designs) < certain

    low, high = 1 - Q, 1.0
    if not shows(high):
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if shows(middle) else (middle, high)
    return round(high, 3)
