"""Decide whether requests wait far longer than any before: few of them, but beyond chance.

Where one request in ten takes four times the longest before, no quantile of sixty requests moves
beyond chance. How far the longest of the quiet time lie apart says how seldom chance goes further.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats
from llmtrace.stats.significance import poisson_tail
from llmtrace.triage.attribution.components import Values

_FAR: Final = (2.0, 4.0)  # times the longest before
_FEWEST: Final = 30  # requests before
_TAIL: Final = 0.2  # of the requests before, from which their tail is known
_WAITS: Final = 3  # apart in time, that are no single mishap
_VERY_FAR: Final = 10.0  # times the longest before ...
_MANY: Final = 8  # ... by so many requests, over so much of the time: one outage is enough
_LONG: Final = 1 / 3
_JUST: Final = 0.99  # of what so many wait for


def far_beyond(before: Values, after: Values) -> float:
    """Return the chance of so many waits that are so much longer than the longest before.

    The logarithms of the longest fifth before are taken to be exponential, as heavy as they are
    (Hill), and their spread to be known no better than from so many. Requests that wait at the
    same time wait for the same thing, and count once, as those that follow one another do.
    """
    count = len(before)
    if count < _FEWEST or not len(after):
        return 1.0
    longest = np.sort(before.value)[-int(_TAIL * count) - 1 :]
    if longest[0] <= 0 or longest[-1] <= longest[0]:
        return 1.0
    spread = float(np.log(longest[1:] / longest[0]).mean())
    tail = len(longest) - 1
    t = np.concatenate([after.t, after.censored_t])
    order = np.argsort(t, kind="stable")
    t, value = t[order], np.concatenate([after.value, after.at_least])[order]
    chance, several = 1.0, float(np.sort(value)[-_MANY:][0])
    very_far = max(_VERY_FAR, _JUST * several / float(longest[-1]))
    for times in (*_FAR, very_far):
        limit = float(longest[-1]) * times
        apart = math.log(limit / float(longest[0])) / spread
        share = tail / count * (1 + apart / tail) ** -tail
        waits = _waits(t, value, limit)
        if waits >= _WAITS or (times == very_far and _lasts(t, value, limit)):
            chance = min(chance, poisson_tail(waits, share * len(t)))
    return min(1.0, chance * (len(_FAR) + 1))


def _lasts(t: Floats, value: Floats, limit: float) -> bool:
    """Return whether many wait beyond a limit, for a good part of the time."""
    far = value > limit
    if far.sum() < _MANY:
        return False
    begun, ended = t[far], np.maximum.accumulate(t[far] + value[far])
    held = (ended - np.maximum(begun, np.append(-np.inf, ended[:-1]))).clip(0.0).sum()
    return bool(held >= _LONG * float(np.ptp(t)))


def _waits(t: Floats, value: Floats, limit: float) -> int:
    """Count the waits beyond a limit that do not overlap or follow one another."""
    places = np.flatnonzero(value > limit)
    ends = np.maximum.accumulate(t[places] + value[places])
    new = (np.diff(places) > 1) & (t[places[1:]] > ends[:-1])
    return int(np.count_nonzero(new)) + bool(len(places))
