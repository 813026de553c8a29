"""Decide whether some requests wait far longer than any did before: few, but beyond chance.

If one request in ten takes four times the longest time before, no quantile of sixty requests moves
beyond chance. The spread of the longest times before tells how rarely chance goes further.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats
from llmtrace.stats.significance import poisson_tail

_FAR: Final = (2.0, 4.0)  # limits to try, times the longest before
_FEWEST: Final = 30  # requests before
_TAIL: Final = 0.2  # share of the requests before that the tail is estimated from
_WAITS: Final = 3  # separate waits
# One long outage is enough: `_MANY` requests this far, over `_LONG` of the time.
_VERY_FAR: Final = 10.0
_MANY: Final = 8
_LONG: Final = 1 / 3
_JUST: Final = 0.99  # of the wait that `_MANY` requests exceed


def far_beyond(before: Floats, after: Floats, after_t: Floats) -> float:
    """Return the chance of as many waits as far beyond the longest before.

    The logarithms of the longest fifth before are taken to be exponential (Hill's estimate), with
    an uncertainty of as many values. Requests that wait at the same time, or one after another,
    wait for the same thing and count once.

    Args:
        before: waits, seconds.
        after: waits or lower bounds of them, seconds.
        after_t: when each of those began, seconds; in any order.
    """
    count = len(before)
    if count < _FEWEST or not len(after):
        return 1.0
    longest = np.sort(before)[-int(_TAIL * count) - 1 :]
    if longest[0] <= 0 or longest[-1] <= longest[0]:
        return 1.0
    spread = float(np.log(longest[1:] / longest[0]).mean())
    tail = len(longest) - 1
    order = np.argsort(after_t, kind="stable")
    t, value = after_t[order], after[order]
    chance, eighth = 1.0, float(np.sort(value)[-_MANY:][0])  # the eighth longest
    very_far = max(_VERY_FAR, _JUST * eighth / float(longest[-1]))
    for times in (*_FAR, very_far):
        limit = float(longest[-1]) * times
        apart = math.log(limit / float(longest[0])) / spread
        share = tail / count * (1 + apart / tail) ** -tail
        waits = _waits(t, value, limit)
        if waits >= _WAITS or (times == very_far and _lasts(t, value, limit)):
            chance = min(chance, poisson_tail(waits, share * len(t)))
    return min(1.0, chance * (len(_FAR) + 1))


def _lasts(t: Floats, value: Floats, limit: float) -> bool:
    """Return whether many requests exceed a limit, over a good part of the time."""
    far = value > limit
    if far.sum() < _MANY:
        return False
    begun, ended = t[far], np.maximum.accumulate(t[far] + value[far])
    held = (ended - np.maximum(begun, np.append(-np.inf, ended[:-1]))).clip(0.0).sum()
    return bool(held >= _LONG * float(np.ptp(t)))


def _waits(t: Floats, value: Floats, limit: float) -> int:
    """Count the waits beyond a limit, merging those that overlap or follow one another."""
    places = np.flatnonzero(value > limit)
    ends = np.maximum.accumulate(t[places] + value[places])
    new = (np.diff(places) > 1) & (t[places[1:]] > ends[:-1])
    return int(np.count_nonzero(new)) + bool(len(places))
