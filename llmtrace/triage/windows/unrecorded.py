"""Find gaps in the recording: times for which nothing was recorded.

Metrics pages are read every few seconds whether requests come or not. If there is neither a sample
nor a request for much longer than that, nothing was recorded: it was not a quiet time, and
requests did not stop. Rows alone cannot show a gap, since no requests may have come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from llmtrace.dataset.case import Signals, Window
from llmtrace.stats.arrays import Floats
from llmtrace.triage.windows.bins import count_in

_LONG: Final = 10.0  # times the usual time between two samples of one signal
_MIN_SAMPLES: Final = 20  # different times of samples, from which the usual time is known
_APART: Final = 5.0  # times the next longest time between two requests


def recording_gaps(t: Floats, signals: Signals) -> tuple[Window, ...]:
    """Return the times with neither a request (`t`) nor a sample, in order."""
    samples = np.unique(signals.t)
    if len(samples) < _MIN_SAMPLES or not len(t):
        return ()
    recorded = np.unique(np.concatenate([t, samples[(samples >= t[0]) & (samples <= t[-1])]]))
    series = signals.instance.codes * len(signals.signal.names) + signals.signal.codes
    order = np.argsort(series, kind="stable")
    intervals = np.diff(signals.t[order])[np.diff(series[order]) == 0]
    usual = float(np.median(intervals[intervals > 0])) if intervals.any() else np.inf
    long = np.flatnonzero(np.diff(recorded) > _LONG * usual)
    return tuple(Window(float(recorded[i]), float(recorded[i + 1])) for i in long)


def pauses(t: Floats) -> tuple[Window, ...]:
    """Return the time without any request (`t`, ascending), if it is far longer than any other.

    Two recordings in one file look like this, and so does a service that was out of reach.
    """
    between = np.diff(t)
    if len(between) < _MIN_SAMPLES:
        return ()
    longest = int(between.argmax())
    if between[longest] < _APART * np.delete(between, longest).max():
        return ()
    return (Window(float(t[longest]), float(t[longest + 1])),)


def recorded_part(window: Window, gaps: Sequence[Window], t: Floats) -> Window:
    """Return the part of a window between gaps that has the most requests."""
    inside = [gap for gap in gaps if gap.start < window.end and gap.end > window.start]
    if not inside:
        return window
    starts = [window.start, *(max(gap.end, window.start) for gap in inside)]
    ends = [*(min(gap.start, window.end) for gap in inside), window.end]
    parts = [Window(a, b + 1e-3) for a, b in zip(starts, ends, strict=True) if b >= a]
    return max(parts, key=lambda part: count_in(t, part), default=window)


def from_gap(before: Window, after: Window, gaps: Sequence[Window]) -> Window:
    """Extend the window after back to the end of a gap, if only the gap lies between both windows.

    The incident may have begun while nothing was recorded.
    """
    ends = [gap.end for gap in gaps if before.end <= gap.start + 1.0 and gap.end < after.start]
    return Window(max(ends), after.end) if ends else after


def without_gaps(t: Floats, gaps: Sequence[Window]) -> Floats:
    """Return times less the length of the gaps before them, as if no time had passed in a gap."""
    moved = np.asarray(t, np.float64).copy()
    for gap in gaps:
        moved -= np.clip(t - gap.start, 0.0, gap.end - gap.start)
    return moved


def with_gaps(t: float, gaps: Sequence[Window]) -> float:
    """Undo `without_gaps` for one time; at the edge of a gap, return the time after the gap."""
    for gap in gaps:
        if t >= gap.start:
            t += gap.end - gap.start
    return t
