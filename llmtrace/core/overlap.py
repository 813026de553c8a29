"""Add up intervals of time that may overlap."""

from __future__ import annotations

from collections.abc import Iterable


def covered(intervals: Iterable[tuple[int, int]]) -> int:
    """Return how long any of the intervals lasts: where several do, time counts once.

    They have a start, 0 or later, and an end, and are in any order.

    Example:
        >>> covered([(0, 10), (5, 12), (20, 21)])
        13
    """
    total = until = 0
    for start, end in sorted(intervals):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total
