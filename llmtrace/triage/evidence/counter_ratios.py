"""Compare the ratio of two counters between windows: hits over queries, accepted over drafted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from llmtrace.dataset.case import Window
from llmtrace.triage.evidence.changes import z_among_stretches
from llmtrace.triage.evidence.evidence import Evidence, count_in, memoized
from llmtrace.triage.evidence.request_rates import stretches_of
from llmtrace.triage.evidence.signals import Series

# Gauges that some engines report in place of both counters, by the counter below the line.
_GAUGES: Final = {
    "spec_drafted": ("spec_accept_ratio", "spec_accept_length"),
    "prefix_queries": ("prefix_hit_ratio",),
}
_MIN_COUNTED: Final = 20.0  # below the line, in each window
_MIN_STRETCHES: Final = 3
_MIN_SPREAD: Final = 0.01  # of stretches, relative to the ratio before


@dataclass(frozen=True, slots=True)
class Ratio:
    """One counter over another, before and after, of one instance or (`None`) of all."""

    before: float
    after: float
    instance: str | None = None


@memoized
def ratio_of(e: Evidence, above: str, below: str) -> Ratio | None:
    """Return one counter's increase over another's, of all instances; `None` = not reported."""
    return _ratio(e, above, below, _MIN_COUNTED, None)


def worst_ratio(e: Evidence, above: str, below: str) -> Ratio | None:
    """Return the ratio of the instance where it fell most."""
    high, low = _counters(e, above, below)
    names = sorted(high.keys() & low.keys())
    found = [_ratio(e, above, below, _MIN_COUNTED, name) for name in names]
    known = [one for one in found if one is not None]
    return min(known, key=lambda one: one.after - one.before, default=None)


def ratio_z(e: Evidence, above: str, below: str, instance: str | None) -> float | None:
    """Return how far a ratio after is from those of stretches before, as a z.

    `None` = not counted, or scraped too rarely to cut the time before into stretches.
    """
    window, now = e.before.window, _ratio(e, above, below, 0.0, instance)
    count, longer = stretches_of(window, e.after.window)
    edges = np.linspace(window.start, window.end, count + 1).tolist()
    both = [
        [count_in([one for name, one in counted.items() if instance in (None, name)],
                  Window(*part)) for part in pairwise(edges)]
        for counted in _counters(e, above, below)
    ]  # fmt: skip
    stretches = np.array([high / low for high, low in zip(*both, strict=True) if low > 0])
    if now is None or len(stretches) < _MIN_STRETCHES:
        return None
    return z_among_stretches(stretches, now.after, _MIN_SPREAD * abs(now.before), longer)


def _counters(e: Evidence, above: str, below: str) -> tuple[Mapping[str, Series], ...]:
    """Return the rates of both counters; if only a gauge of the ratio is reported, it and 1."""
    high, low = e.rates(above), e.rates(below)
    gauge = next(filter(None, map(e.series, _GAUGES.get(below, ()))), {})
    if (high and low) or not gauge:
        return high, low
    return gauge, {name: Series(one.t, np.ones(len(one.t))) for name, one in gauge.items()}


def _ratio(
    e: Evidence, above: str, below: str, min_counted: float, instance: str | None
) -> Ratio | None:
    both = []
    for window in (e.before.window, e.after.window):
        sums = []
        for counted in _counters(e, above, below):
            chosen = [one for name, one in counted.items() if instance in (None, name)]
            if not chosen:
                return None  # a counter that is not reported has not stayed at 0
            sums.append(count_in(chosen, window))
        if sums[1] < min_counted:
            return None
        both.append(sums[0] / sums[1])
    return Ratio(both[0], both[1], instance)
