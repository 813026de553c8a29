"""Estimate the stages of a request at the p95.

The Harrell-Davis estimate of a quantile is a weighted mean of all ordered values. The same weights
applied to each stage's times give the stages of that estimate, which add up to it.
"""

from __future__ import annotations

import numpy as np

from llmtrace.core.stages import PARTITION
from llmtrace.stats.arrays import Floats
from llmtrace.stats.significance import harrell_davis


def anatomy(
    value: Floats, parts: Floats, q: float, at: float, weight: Floats | None = None
) -> dict[str, float]:
    """Return the seconds of each stage in a request at the quantile; they add up to `at`.

    Args:
        value: a metric of many requests.
        parts: a column for each of `PARTITION`, adding up to `value`.
        q: between 0 and 1.
        at: the quantile as reported, which the smoother estimate is scaled to.
        weight: how many requests each row stands for; one, if not given.
    """
    order = np.argsort(value, kind="stable")
    weights = harrell_davis(len(value), q)
    if weight is not None and np.ptp(weight) > 0:
        # A row gets the weights of all the ranks that it stands for.
        reached = np.append(0.0, np.cumsum(weight[order]) / weight.sum())
        of_ranks = np.append(0.0, np.cumsum(weights))
        weights = np.diff(np.interp(reached, np.linspace(0, 1, len(of_ranks)), of_ranks))
    found = weights @ parts[order]
    total = float(found.sum())
    if total > 0:
        found = found * (at / total)
    return {name: float(found[i]) for i, name in enumerate(PARTITION) if found[i] != 0}
