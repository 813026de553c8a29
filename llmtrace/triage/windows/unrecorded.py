"""Find the times of which nothing was recorded: they are no quiet, and no requests stopped then.

Metrics pages are read every few seconds whether requests come or not. Where neither a sample nor a
request is known for much longer than that, nothing was recorded. Rows alone cannot show that: time
without requests is then time in which none came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from llmtrace.dataset.case import Signals, Window
from llmtrace.stats.arrays import Floats

_LONG: Final = 10.0  # times as long as it usually is between two samples of one signal
_FEWEST: Final = 20  # times of samples, from which "usually" is known


def unrecorded(t: Floats, signals: Signals) -> tuple[Window, ...]:
    """Return the times of which nothing was recorded, in order."""
    samples = np.unique(signals.t)
    if len(samples) < _FEWEST or not len(t):
        return ()
    known = np.unique(np.concatenate([t, samples[(samples >= t[0]) & (samples <= t[-1])]]))
    of = signals.instance.codes * len(signals.signal.names) + signals.signal.codes
    order = np.argsort(of, kind="stable")
    between = np.diff(signals.t[order])[np.diff(of[order]) == 0]
    usual = float(np.median(between[between > 0])) if between.any() else np.inf
    long = np.flatnonzero(np.diff(known) > _LONG * usual)
    return tuple(Window(float(known[i]), float(known[i + 1])) for i in long)


def recorded_part(window: Window, gaps: Sequence[Window], t: Floats) -> Window:
    """Return the part of a window between gaps that has the most requests."""
    inside = [gap for gap in gaps if gap.start < window.end and gap.end > window.start]
    if not inside:
        return window
    starts = [window.start, *(max(gap.end, window.start) for gap in inside)]
    ends = [*(min(gap.start, window.end) for gap in inside), window.end]
    parts = [Window(a, b + 1e-3) for a, b in zip(starts, ends, strict=True) if b >= a]
    return max(parts, key=lambda one: int(np.diff(np.searchsorted(t, (one.start, one.end)))[0]))


def from_gap(before: Window, after: Window, gaps: Sequence[Window]) -> Window:
    """Return the window after from the last gap on, where that is all that parts it from before.

    What happened may have begun while nothing was recorded.
    """
    ends = [gap.end for gap in gaps if before.end <= gap.start + 1.0 and gap.end < after.start]
    return Window(max(ends), after.end) if ends else after


def closed_up(t: Floats, gaps: Sequence[Window]) -> Floats:
    """Return times as if nothing had passed during the gaps."""
    moved = np.asarray(t, np.float64).copy()
    for gap in gaps:
        moved -= np.clip(t - gap.start, 0.0, gap.end - gap.start)
    return moved


def opened(t: float, gaps: Sequence[Window]) -> float:
    """Return the time that `closed_up` moved here; at the edge of a gap, that after it."""
    for gap in gaps:
        if t >= gap.start:
            t += gap.end - gap.start
    return t
