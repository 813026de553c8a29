"""Choose among the changes that are no sudden rise: ramps, improvements, other work, traffic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats
from llmtrace.triage.comparison.outcomes import ENDINGS
from llmtrace.triage.over_time import Incident
from llmtrace.triage.windows.highest_stretch import CERTAIN, SURE, Spike

_SURE: Final = 1e-4
_OUTWEIGHS: Final = 3.0  # times as many requests
_SMALLEST: Final = 1e-9
_BIN: Final = 0.02  # of the time
_AT_ONCE: Final = 3.0  # bins
_SOON: Final = 0.05  # of the time
_ENOUGH: Final = 200
_RECURS: Final = 0.5  # of the quiet time before
_MOSTLY: Final = 0.5  # of the shorter of two stretches
_ALIKE: Final = 20.0  # times as long as another that a burst of the same incident may be


def other_change(
    incidents: Sequence[Incident], t: Floats, work: Spike | None, *, few: bool
) -> Spike | None:
    """Return the most certain of stretches that are no sudden rise, of traffic only if no other.

    Of few requests only a gradual rise, or what is sure, is preferred to the slowest stretch;
    to all of them, where the requests themselves became other ones (`work`), if that is clearer.
    """
    sure = [
        one
        for one in incidents
        if not few or one.p_value <= SURE or (one.metric != "traffic" and one.direction == "up")
    ]
    for of_traffic in (False, True):
        mine = [one for one in sure if (one.metric == "traffic") is of_traffic]
        if mine:
            best = min(mine, key=_worth)
            return work if work and work.p_value < _worth(best) else _as_spike(best, t)
    return work


def _worth(one: Incident) -> float:
    """Return by what stretches are ranked, the least first.

    A metric that was better for a while, and is as it was before, is no news.
    """
    over = one.direction == "down" and one.end is not None
    return one.p_value / _SURE if over else one.p_value


def weightier(incidents: Sequence[Incident], spike: Spike, t: Floats) -> Spike | None:
    """Return what is sure, at another time, and hit many more requests than a spike that is over.

    A blip may stand out more clearly than what hits a fifth of the requests ever since.
    """
    if spike.end is None:
        return None
    first, end = spike.start, spike.end
    rose = [one for one in incidents if one.direction == "up" and one.metric != "traffic"]
    apart = [one for one in rose if one.start >= end or (one.end or math.inf) <= first]
    mine = max((_hit(one) for one in rose if one not in apart), default=0.0)
    sure = [one for one in apart if one.p_value <= SURE and _hit(one) >= _OUTWEIGHS * mine > 0]
    best = max(sure, key=_hit, default=None)
    return None if best is None else _as_spike(best, t)


def _hit(one: Incident) -> float:
    """Return about how many requests a rise hit: all, where the metric has doubled."""
    level, usual = one.level or 0.0, one.usual or 0.0
    share = level - usual if one.metric in ENDINGS else level / max(usual, _SMALLEST) - 1
    return one.requests * min(max(share, 0.0), 1.0)


def since_others_rose(incidents: Sequence[Incident], spike: Spike, t: Floats) -> Spike:
    """Return the time from which others rose, where a level that the data begin with ended then.

    Requests that are refused, or that no longer come, leave room to others, whose tokens come
    faster: the news is not that these were slower before.
    """
    if spike.start > float(t[0]) or spike.end is None:
        return spike
    near = _SOON * float(t[-1] - t[0])
    rose = [
        one
        for one in incidents
        if (one.direction == "up" if one.metric != "traffic" else _lost(one))
        and abs(one.start - spike.end) <= max(_AT_ONCE * spike.bin_s, near)
    ]  # fmt: skip
    best = min(rose, key=lambda one: one.p_value, default=None)
    return spike if best is None else replace(spike, start=best.start, end=best.end)


def _lost(one: Incident) -> bool:
    return one.direction == "down" and one.end is None


def with_bursts(incidents: Sequence[Incident], spike: Spike, t: Floats) -> Spike:
    """Return a spike until all metrics are back, with those of its metric if it comes in bursts.

    One within a longer stretch of a metric that is surer is a part of that.

    What recurs after half the time that was quiet before, or sooner, is one incident: an engine
    that pauses again and again, a pool that is full now and then. So are failures, and the slow
    requests that follow on them. A blip, quiet for longer than it was, is no part of what lasts.
    """
    first, last = float(t[0]), float(t[-1])
    start, end = spike.start, last if spike.end is None else spike.end
    lasts = end - start
    same = [one for one in incidents if one.direction == "up" and one.shape == "step"]
    metrics = {one.metric for one in same if one.start < end and (one.end or last) > start}
    mine = [one for one in same if one.metric in metrics - {"traffic"}]
    around = [one for one in mine if (one.end or last) >= end and one.p_value < spike.p_value]
    start = min([start, *(one.start for one in around)])
    for one in same:
        gap = one.start - end
        recurs = one in mine and gap <= _RECURS * (start - first) and _alike(one, gap, lasts, last)
        if start <= one.start and (recurs or (one.start <= end and one.metric != "traffic")):
            end = max(end, last if one.end is None else one.end)
    for one in reversed(mine):
        if not first < one.start < start or one.end is None or one.end > end:
            continue
        gap = start - one.end
        briefly = -gap < _MOSTLY * min(one.end - one.start, end - start)
        if gap <= 0 and (briefly or one.p_value > max(spike.p_value, SURE)):
            continue  # its end is dated to a bin, as what followed; or all of it is dated worse
        if gap <= _RECURS * (one.start - first) and _alike(one, gap, lasts, last):
            start = one.start
    return replace(spike, start=start, end=None if end >= last else end)


def _alike(one: Incident, gap: float, lasts: float, last: float) -> bool:
    """Return whether a burst may be of the incident that lasts so long, so far from it."""
    mine = (last if one.end is None else one.end) - one.start
    return gap <= min(mine, lasts) or max(mine, lasts) <= _ALIKE * min(mine, lasts)


def since_other_work(spike: Spike, work: Spike | None) -> Spike:
    """Return the time in which other work was asked for, if a spike is a part of that.

    What is slow by chance among longer prompts is no incident of its own.
    """
    if work is None or work.p_value >= spike.p_value or work.start > spike.start:
        return spike
    if work.end is not None and (spike.end is None or spike.end > work.end):
        return spike
    return replace(work, bin_s=spike.bin_s)


def _as_spike(one: Incident, t: Floats) -> Spike:
    """Return a stretch as a spike; a gradual rise counts from when half of it was reached.

    The half before that is of neither window, unless too few requests are known from before it.
    """
    bin_s, half = _BIN * float(t[-1] - t[0]), one.rise_s / 2
    early = int(np.searchsorted(t, one.start)) >= _ENOUGH
    return Spike(one.start + half, one.end, max(bin_s, half) if early else bin_s, CERTAIN)
