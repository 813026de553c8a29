"""Compare the rate at which requests arrive with how much it varies by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from llmtrace.dataset.case import Window
from llmtrace.stats.arrays import Floats
from llmtrace.triage.evidence import changes

_PARTS: Final = 8  # of a window, between which the rate varies
_QUARTERS: Final = 4
_EXPECTED: Final = 12.0  # requests; a tenth of them or fewer is a chance of one in 10,000
_SILENT: Final = 0.25  # of the window after: requests that come all along are never so long away
_STEP: Final = 0.5  # share of a change that must happen where the windows meet


def stretches_of(before: Window, after: Window) -> tuple[int, float]:
    """Return how many stretches the time before is cut into, and after's length over theirs."""
    count = max(changes.STRETCHES, int(before.seconds / after.seconds))
    return count, after.seconds * count / before.seconds


def recorded_s(edges: Sequence[float] | Floats, gaps: Sequence[Window]) -> Floats:
    """Return the seconds between each two edges that lie in no gap."""
    recorded = np.asarray(edges, np.float64)
    for gap in gaps:
        recorded = recorded - np.clip(np.asarray(edges) - gap.start, 0.0, gap.seconds)
    return np.diff(recorded)


@dataclass(frozen=True, slots=True)
class Counted:
    """Arrival times of requests in one window, and how many requests each row stands for.

    Attributes:
        gaps: times in which no request was recorded, whether or not any came.
    """

    window: Window
    t: Floats
    weights: Floats
    gaps: Sequence[Window] = ()

    @property
    def rate(self) -> float:
        """Requests per second."""
        [recorded] = recorded_s([self.window.start, self.window.end], self.gaps)
        return float(self.weights.sum()) / max(float(recorded), 1e-9)

    def rates(self, count: int) -> Floats:
        """Return the requests per second in each of `count` stretches of the window.

        Stretches of which most lies in a gap are left out.
        """
        within = (self.window.start, self.window.end)
        counts, edges = np.histogram(self.t, count, within, weights=self.weights)
        recorded = recorded_s(edges, self.gaps)
        known = recorded >= np.diff(edges) / 2
        if known.sum() < 2:  # nothing to vary between
            known, recorded = np.ones(count, bool), np.diff(edges)
        found: Floats = counts[known] / recorded[known]
        return found


@dataclass(frozen=True)
class Arrivals:
    """Arrivals in both windows, of all requests or of those of one kind."""

    before: Counted
    after: Counted

    @cached_property
    def z(self) -> float:
        """Change of the rate in standard errors, from its variation between parts of the windows.

        Requests come in bursts, so the number of bursts limits the certainty, not that of
        requests.
        """
        b, a = (side.rates(_PARTS) for side in (self.before, self.after))
        error = math.sqrt(
            max(float(b.var(ddof=1)) / _PARTS, float(b.mean()) / self.before.window.seconds)
            + max(float(a.var(ddof=1)) / _PARTS, 1e-12)
        )
        return changes.z_of_t(float(a.mean() - b.mean()) / max(error, 1e-12), 2 * _PARTS - 2)

    @cached_property
    def stretches_z(self) -> float:
        """How far the rate is from those of stretches of the time before, as a z."""
        count, longer = stretches_of(self.before.window, self.after.window)
        least = math.sqrt(self.before.rate * count / self.before.window.seconds)  # by chance
        return changes.z_among_stretches(self.before.rates(count), self.after.rate, least, longer)

    def stopped(self, share: float) -> bool:
        """Return whether the rate fell to at most this share, of requests that came all along."""
        window, after_s = self.before.window, self.after.window.seconds
        silence = np.diff((window.start, *np.sort(self.before.t), window.end)).max()
        came = self.before.rate * after_s >= _EXPECTED and silence <= _SILENT * after_s
        return bool(came and self.after.rate <= share * self.before.rate)

    @cached_property
    def is_gradual(self) -> bool:
        """Whether the rates just before and after the windows' border differ little."""
        last, first = self.before.rates(_QUARTERS)[-1], self.after.rates(_QUARTERS)[0]
        return bool(abs(first - last) < _STEP * abs(self.after.rate - self.before.rate))
