"""Compare how many requests come a second, with how much that varies by itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from llmtrace.dataset.case import Window
from llmtrace.stats.arrays import Floats
from llmtrace.triage.evidence import changes

_PARTS: Final = 8  # of a window, by which requests' bursts are counted
_QUARTERS: Final = 4
_EXPECTED: Final = 12.0  # requests: chance leaves a tenth of so many to one in ten thousand
_STEP: Final = 0.5  # of a change: where less of it is at its beginning, it has none


def stretches_of(before: Window, after: Window) -> tuple[int, float]:
    """Return into how many stretches the time before is cut, and how much longer that after is."""
    count = max(changes.STRETCHES, int(before.seconds / after.seconds))
    return count, after.seconds * count / before.seconds


@dataclass(frozen=True, slots=True)
class Counted:
    """When requests of one window came, and how many each row stands for."""

    window: Window
    t: Floats
    weights: Floats

    @property
    def rate(self) -> float:
        """How many requests come a second."""
        return float(self.weights.sum()) / max(self.window.seconds, 1e-9)

    def rates(self, count: int) -> Floats:
        """Return the requests a second in so many stretches of the window."""
        within = (self.window.start, self.window.end)
        counts = np.histogram(self.t, count, within, weights=self.weights)[0]
        found: Floats = counts * count / self.window.seconds
        return found


@dataclass(frozen=True)
class Arrivals:
    """Requests that came in both windows: all, or those of one kind."""

    before: Counted
    after: Counted

    @cached_property
    def z(self) -> float:
        """Standard errors between the rates, by the unrest of a few stretches of either window.

        Requests come in bursts: it is their number that counts, not that of the requests.
        """
        b, a = (side.rates(_PARTS) for side in (self.before, self.after))
        error = math.sqrt(
            max(float(b.var(ddof=1)) / _PARTS, float(b.mean()) / self.before.window.seconds)
            + max(float(a.var(ddof=1)) / _PARTS, 1e-12)
        )
        return changes.as_z(float(a.mean() - b.mean()) / max(error, 1e-12), 2 * _PARTS - 2)

    @cached_property
    def stretches_z(self) -> float:
        """How far the requests a second are from those of stretches of the time before, as a z."""
        count, longer = stretches_of(self.before.window, self.after.window)
        least = math.sqrt(self.before.rate * count / self.before.window.seconds)  # by chance
        return changes.one_more_z(self.before.rates(count), self.after.rate, least, longer)

    def stopped(self, share: float) -> bool:
        """Return whether at most this share of requests that came all along still comes."""
        many = self.before.rate * self.after.window.seconds >= _EXPECTED
        came = many and self.before.rates(_PARTS).min() > 0
        return bool(came and self.after.rate <= share * self.before.rate)

    @cached_property
    def change_slowly(self) -> bool:
        """Whether the requests a second differ little where the windows meet, for what they do."""
        last, first = self.before.rates(_QUARTERS)[-1], self.after.rates(_QUARTERS)[0]
        return bool(abs(first - last) < _STEP * abs(self.after.rate - self.before.rate))
