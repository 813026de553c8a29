"""Correct the spike that a search found, or replace it, by other stretches of the same rows.

Other stretches are gradual rises, improvements, changes of the workload or of traffic, incidents
that hit more requests, and further bursts of the same incident.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats
from llmtrace.triage.comparison.outcomes import ENDINGS
from llmtrace.triage.over_time import Incident
from llmtrace.triage.windows.highest_stretch import MIN_SCORE, SURE_P, Spike

_PASSING: Final = 1e-4  # an improvement that is over needs a p-value this much smaller
_OUTWEIGHS: Final = 3.0  # times as many requests
_SMALLEST: Final = 1e-9
_BIN: Final = 0.02  # of the time searched: how exactly an incident is dated
_AT_ONCE: Final = 3.0  # bins
_SOON: Final = 0.05  # of the time searched
_ENOUGH: Final = 200  # requests, for a window before
_MAX_QUIET: Final = 0.5  # of the quiet time before the incident: bursts further apart are separate
_MOSTLY: Final = 0.5  # of the shorter of two stretches
_AS_FAR: Final = 0.5  # of the rise of the same metric in the incident
_SIMILAR_LENGTH: Final = 20.0  # ratio of lengths up to which bursts may be one incident


def other_change(incidents: Sequence[Incident], t: Floats, workload: Spike | None) -> Spike | None:
    """Return the clearest other stretch if no spike was found; of traffic only if no other.

    Args:
        incidents: every stretch that stands out.
        t: when requests started, unix seconds, ascending.
        workload: the stretch in which prompts or responses were longer; it is returned if it is
            clearer than the incidents.
    """
    for of_traffic in (False, True):
        candidates = [one for one in incidents if (one.metric == "traffic") is of_traffic]
        if candidates:
            best = min(candidates, key=_rank)
            return workload if workload and workload.p_value < _rank(best) else _as_spike(best, t)
    return workload


def _rank(one: Incident) -> float:
    """Return what to rank an incident by, the smallest first: its p-value.

    An improvement that is over ranks lower: the metric is as it was before.
    """
    over = one.direction == "down" and one.end is not None
    return one.p_value / _PASSING if over else one.p_value


def weightier(incidents: Sequence[Incident], spike: Spike, t: Floats) -> Spike | None:
    """Return an incident at another time that is sure and hit many more requests than the spike.

    A blip may stand out more clearly than a smaller rise that has hit a fifth of the requests ever
    since. `None` = there is no such incident, or the spike lasts.
    """
    if spike.end is None:
        return None
    start, end = spike.start, spike.end
    rises = [one for one in incidents if one.direction == "up" and one.metric != "traffic"]
    apart = [one for one in rises if one.start >= end or (one.end or math.inf) <= start]
    hit = max((_requests_hit(one) for one in rises if one not in apart), default=0.0)
    larger = [one for one in apart
              if one.p_value <= SURE_P and _requests_hit(one) >= _OUTWEIGHS * hit > 0]  # fmt: skip
    best = max(larger, key=_requests_hit, default=None)
    return None if best is None else _as_spike(best, t)


def _requests_hit(one: Incident) -> float:
    """Estimate how many requests a rise hit: all of them if the metric has doubled."""
    return one.requests * min(max(_rise(one), 0.0), 1.0)


def _rise(one: Incident) -> float:
    """Return how far a metric rose, relative to its usual level; of failures, their share."""
    level, usual = one.level or 0.0, one.usual or 0.0
    return level - usual if one.metric in ENDINGS else level / max(usual, _SMALLEST) - 1


def since_others_rose(incidents: Sequence[Incident], spike: Spike, t: Floats) -> Spike:
    """If the data begin with a spike that ends when others begin, return the time of the others.

    Requests that are refused, or no longer come, leave room for others, whose tokens then come
    faster. The incident is that, and not that tokens were slower before.
    """
    if spike.start > float(t[0]) or spike.end is None:
        return spike
    near = max(_AT_ONCE * spike.bin_s, _SOON * float(t[-1] - t[0]))

    def requests_stopped(one: Incident) -> bool:
        return one.direction == "down" and one.end is None

    began_then = [
        one
        for one in incidents
        if (one.direction == "up" if one.metric != "traffic" else requests_stopped(one))
        and abs(one.start - spike.end) <= near
    ]
    best = min(began_then, key=lambda one: one.p_value, default=None)
    return spike if best is None else replace(spike, start=best.start, end=best.end)


def with_bursts(incidents: Sequence[Incident], spike: Spike, t: Floats) -> Spike:
    """Extend a spike until all metrics are back, and by further bursts of the same incident.

    A spike within a longer and surer stretch of a metric is a part of that stretch.

    A burst belongs to the incident if the quiet time up to it is at most half of the quiet time
    before the incident: an engine that pauses again and again, a pool that is full now and then.
    Failures and the slow requests that follow from them belong together as well. A blip followed
    by a quiet time longer than itself is no part of what lasts, and neither is an earlier stretch
    in which the metric rose by far less.
    """
    first, last = float(t[0]), float(t[-1])
    start, end = spike.start, last if spike.end is None else spike.end
    seconds = end - start
    steps = [one for one in incidents if one.direction == "up" and one.shape == "step"]
    during = [one for one in steps if one.start < end and (one.end or last) > start]
    around = [one for one in during if one.metric != "traffic" and one.p_value < spike.p_value
              and (one.end or last) >= end]  # fmt: skip
    start = min([start, *(one.start for one in around)])
    metrics = {one.metric for one in during} - {"traffic"}
    bursts = [one for one in steps if one.metric in metrics]
    for one in steps:
        gap = one.start - end
        recurs = (one in bursts and gap <= _MAX_QUIET * (start - first)
                  and _similar_length(one, gap, seconds, last))  # fmt: skip
        if start <= one.start and (recurs or (one.start <= end and one.metric != "traffic")):
            end = max(end, last if one.end is None else one.end)
    for one in reversed(bursts):
        if not first < one.start < start or one.end is None or one.end > end:
            continue
        gap = start - one.end
        short_overlap = -gap < _MOSTLY * min(one.end - one.start, end - start)
        if gap <= 0 and (short_overlap or one.p_value > max(spike.p_value, SURE_P)):
            continue  # dated to a bin, its end may seem to overlap; or it is the same, less clear
        as_far = any(one.metric == other.metric and _rise(one) >= _AS_FAR * _rise(other)
                     for other in during)  # fmt: skip
        near = gap <= _MAX_QUIET * (one.start - first)
        if as_far and near and _similar_length(one, gap, seconds, last):
            start = one.start
    return replace(spike, start=start, end=None if end >= last else end)


def _similar_length(one: Incident, gap: float, seconds: float, last: float) -> bool:
    """Return whether a burst may belong to an incident of `seconds`, with a gap between them."""
    length = (last if one.end is None else one.end) - one.start
    shorter, longer = min(length, seconds), max(length, seconds)
    return gap <= shorter or longer <= _SIMILAR_LENGTH * shorter


def since_workload_changed(spike: Spike, workload: Spike | None) -> Spike:
    """Return the stretch in which the workload was another, if the spike is a part of it.

    A stretch that is slow by chance among longer prompts is no incident of its own.
    """
    if workload is None or workload.p_value >= spike.p_value or workload.start > spike.start:
        return spike
    if workload.end is not None and (spike.end is None or spike.end > workload.end):
        return spike
    return replace(workload, bin_s=spike.bin_s)


def _as_spike(one: Incident, t: Floats) -> Spike:
    """Return an incident as a spike; a gradual rise starts when half of it was reached.

    The first half of the rise is in neither window, unless too few requests came before the rise.
    """
    bin_s, half = _BIN * float(t[-1] - t[0]), one.rise_s / 2
    enough = int(np.searchsorted(t, one.start)) >= _ENOUGH
    return Spike(one.start + half, one.end, max(bin_s, half) if enough else bin_s, MIN_SCORE)
