"""Date a change to the request, with a 95 % interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.stats.arrays import Floats, Mask

_TAIL: Final = 0.025  # of the likelihood, on each side of the 95 % interval


@dataclass(frozen=True, slots=True)
class Dated:
    """When a share changed: the likeliest time, and a 95 % interval; unix seconds.

    `log_ratio` is the log likelihood ratio of a change at that time against no change.
    """

    earliest: float
    best: float
    latest: float
    log_ratio: float = 0.0


def date_change(
    t: Floats, slow: Mask, low: float, high: float, design: float = 1.0
) -> Dated | None:
    """Date the first request from which a larger share of requests is slow.

    Every split of the requests into before and after has a likelihood. For the interval it is
    weighted by the time between the two requests at the split, since the change was between them.

    Args:
        t: unix seconds, ascending, from well before to well after.
        slow: whether each request was slow.
        low: the change is looked for from here, unix seconds,
        high: to here.
        design: number of requests worth one independent request, as computed by `clustered`.

    Returns:
        `None` if at the likeliest split the share does not rise.
    """
    n = len(t)
    first, last = np.searchsorted(t, (low, high))
    split = np.arange(max(int(first), 1), min(int(last) + 1, n))
    if not split.size:
        return None
    slow_so_far = np.cumsum(slow, dtype=np.float64)
    k, total = slow_so_far[split - 1], float(slow_so_far[-1])
    rises = k / split < (total - k) / (n - split)
    likelihood = log_likelihood(k, split) + log_likelihood(total - k, n - split)
    likelihood = np.where(rises, likelihood, -np.inf)
    best = int(np.argmax(likelihood))
    if not rises[best]:
        return None
    mass = np.exp((likelihood - likelihood[best]) / design)
    mass *= np.maximum(t[split] - t[split - 1], 1e-9)
    ends = np.searchsorted(np.cumsum(mass) / mass.sum(), (_TAIL, 1 - _TAIL))
    begin, end = np.minimum(ends, len(split) - 1)
    date = float(t[split[best]])
    no_change = log_likelihood(slow_so_far[-1:], np.array([n]))[0]
    return Dated(
        earliest=min(float(t[split[begin] - 1]), date),
        best=date,
        latest=max(float(t[split[end]]), date),
        log_ratio=float(likelihood[best] - no_change) / design,
    )


def log_likelihood(k: Floats, n: Floats | NDArray[np.intp]) -> Floats:
    """Return the log likelihood of k of n requests, if k / n is the true share."""
    p = np.clip(k / n, 1e-12, 1 - 1e-12)
    likelihood: Floats = k * np.log(p) + (n - k) * np.log1p(-p)
    return likelihood
