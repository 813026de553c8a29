"""Date a change to the request, with the interval that holds the true date in 95 % of cases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.stats.arrays import Floats, Mask

_TAIL: Final = 0.025


@dataclass(frozen=True, slots=True)
class Dated:
    """When a share changed: the likeliest time, and a 95 % interval; unix seconds.

    `clear` is how much likelier the requests are with the change than without one, a logarithm.
    """

    earliest: float
    best: float
    latest: float
    clear: float = 0.0


def date_change(
    t: Floats, slow: Mask, low: float, high: float, design: float = 1.0
) -> Dated | None:
    """Date the request from which on more are slow.

    The likelihood of every split of the requests in two is weighed by the time between the
    request before it and its own, in which the change then was.

    Args:
        t: unix seconds, ascending, from well before to well after.
        slow: whether each request was slow.
        low: the change is looked for from here,
        high: to here.
        design: how many requests are worth one independent one, as `clustered` counts them.

    Returns:
        The date of the likeliest split; `None` = no such change.
    """
    n = len(t)
    first, last = np.searchsorted(t, (low, high))
    split = np.arange(max(int(first), 1), min(int(last) + 1, n))
    if not split.size:
        return None
    reached = np.cumsum(slow, dtype=np.float64)
    k, total = reached[split - 1], float(reached[-1])
    rising = k / split < (total - k) / (n - split)
    both = log_likelihood(k, split) + log_likelihood(total - k, n - split)
    chance = np.where(rising, both, -np.inf)
    best = int(np.argmax(chance))
    if not rising[best]:
        return None
    likely = np.exp((chance - chance[best]) / design) * np.maximum(t[split] - t[split - 1], 1e-9)
    reached_share = np.cumsum(likely) / likely.sum()
    ends = np.searchsorted(reached_share, (_TAIL, 1 - _TAIL))
    begins, stops = np.minimum(ends, len(split) - 1)
    dated = float(t[split[best]])
    return Dated(
        earliest=min(float(t[split[begins] - 1]), dated),
        best=dated,
        latest=max(float(t[split[stops]]), dated),
        clear=float(chance[best] - log_likelihood(reached[-1:], np.array([n]))[0]) / design,
    )


def log_likelihood(k: Floats, n: Floats | NDArray[np.intp]) -> Floats:
    """Return how likely so many of so many are, if that is their share: a logarithm."""
    p = np.clip(k / n, 1e-12, 1 - 1e-12)
    found: Floats = k * np.log(p) + (n - k) * np.log1p(-p)
    return found
