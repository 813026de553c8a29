"""Date when the change began, and decide whether it is over."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from llmtrace.dataset.case import Window
from llmtrace.dataset.columns import Columns
from llmtrace.stats.arrays import Floats, Mask
from llmtrace.stats.significance import more_than
from llmtrace.triage.attribution.components import METRICS, Values
from llmtrace.triage.comparison.outcomes import failed_mask
from llmtrace.triage.comparison.p95_change import Compared
from llmtrace.triage.over_time import Incident, Onset, State
from llmtrace.triage.result import Metric
from llmtrace.triage.windows.choose import Chosen
from llmtrace.triage.windows.date_change import date_change

_SLACK_S: Final = 60.0
_SLACK: Final = 0.1  # of the window after
_BINS: Final = 3
_SHARED: Final = 0.5
_LAST: Final = 20  # requests by which it is judged whether it is over
_STILL: Final = 0.05  # chance of as many slow ones, if nothing were left of it


def overlapping(incidents: Sequence[Incident], after: Window) -> list[Incident]:
    """Return the stretches that share half of the window after or half of themselves with it.

    The most certain comes first.
    """
    found = []
    for one in incidents:
        end = max(after.end, one.start) if one.end is None else one.end
        common = min(end, after.end) - max(one.start, after.start)
        if common >= _SHARED * min(end - one.start, after.seconds):
            found.append(one)
    return sorted(found, key=lambda one: one.p_value)


def date_onset(
    rows: Columns,
    values: Callable[[Metric], Values],
    compared: Mapping[Metric, Compared],
    about: Metric,
    *,
    chosen: Chosen,
    incidents: Sequence[Incident],
) -> Onset | None:
    """Date the change on the clearest metric; `None` where nothing rises near its start.

    Args:
        rows: that were searched, by start.
        values: a metric of them.
        compared: each metric in both windows.
        about: the metric the triage is about.
        chosen: the windows, and how they were come by.
        incidents: all stretches.
    """
    before, after = chosen.before, chosen.after
    found = overlapping(incidents, after)
    rising = [one for one in found if one.direction == "up" and one.metric != "traffic"]
    slack = max(_SLACK * after.seconds, _SLACK_S)
    if chosen.found is not None:
        slack = _BINS * chosen.found.bin_s
    near = [one for one in rising if abs(one.start - after.start) <= slack]
    clearest: str = near[0].metric if near else about
    end = _end(rising, about, chosen)
    low, high = after.start - slack, min(after.start + slack, after.end)
    for metric in dict.fromkeys((clearest, about)):
        t, slow = _slow(rows, values, compared, metric)
        inside = (t >= min(before.start, low)) & (t < after.end)
        dated = date_change(t[inside], slow[inside], low, high)
        if dated is not None:
            return Onset(earliest=dated.earliest, best=dated.best, latest=dated.latest, end=end,
                         metric=metric)  # fmt: skip
    if chosen.found is None:
        return None
    off = chosen.found.bin_s
    return Onset(earliest=after.start - off, best=after.start, latest=after.start + off, end=end,
                 metric=about)  # fmt: skip


def _slow(
    rows: Columns,
    values: Callable[[Metric], Values],
    compared: Mapping[Metric, Compared],
    metric: str,
) -> tuple[Floats, Mask]:
    """Return when requests began, and which of them were slow, or failed."""
    if metric not in METRICS:
        return rows.start / 1e9, failed_mask(rows)
    name = next(one for one in METRICS if one == metric)
    one = values(name)
    return one.t, one.value > compared[name].threshold


def _end(rising: Sequence[Incident], about: Metric, chosen: Chosen) -> float | None:
    """Return when the metric was back; `None` = not within the data."""
    mine = [one for one in rising if one.metric == about] or list(rising)
    if mine:
        ends = [one.end for one in mine]
        return None if None in ends else max(end for end in ends if end is not None)
    return chosen.found.end if chosen.found is not None else None


def state_of(
    one: Values, threshold: float, chosen: Chosen, onset: Onset | None,
    incidents: Sequence[Incident],
) -> tuple[State | None, float | None]:  # fmt: skip
    """Return whether the incident is over at the end of the data, and since when.

    Args:
        one: the metric of all rows searched.
        threshold: above which a request is slow.
        chosen: the windows.
        onset: of the incident, if dated.
        incidents: all stretches.
    """
    mine = [found for found in overlapping(incidents, chosen.after) if found.direction == "up"]
    if any(found.began_before for found in mine):
        ends = [found.end for found in mine]
        return "began_before_the_data", None if None in ends else max(e for e in ends if e)
    if onset is None:
        return None, None
    if onset.end is not None:
        return "over", onset.end
    if mine:
        return "ongoing", None
    return _by_the_last(one, threshold, chosen, onset)


def _by_the_last(
    one: Values, threshold: float, chosen: Chosen, onset: Onset
) -> tuple[State | None, float | None]:
    """Judge by the last requests, where the search found no stretch in the window."""
    later = one.t >= onset.best
    t, slow = one.t[later], one.value[later] > threshold
    before = (one.t >= chosen.before.start) & (one.t < chosen.before.end)
    if len(t) < 2 * _LAST or not before.any() or not math.isfinite(threshold):
        return "ongoing", None
    last = slow[-max(_LAST, len(slow) // 5) :]
    usual = one.value[before] > threshold
    chance = more_than(float(last.sum()), len(last), float(usual.sum()), len(usual))
    if chance < _STILL:
        return "ongoing", None
    back = date_change(t, ~slow, float(t[0]), float(t[-1]))
    return "over", None if back is None else back.best
