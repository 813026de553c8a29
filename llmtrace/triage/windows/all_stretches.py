"""Find every stretch in which a metric, failures or traffic differed, not only the clearest.

The clearest stretch of a metric is taken out and the rest searched again. A stretch is slower or
faster, and a step or a ramp. One that reaches back to the first request began before the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from llmtrace.dataset.case import Window
from llmtrace.dataset.columns import Columns
from llmtrace.stats.arrays import Floats
from llmtrace.triage.attribution.components import METRICS
from llmtrace.triage.comparison.outcomes import ENDINGS
from llmtrace.triage.over_time import Incident, Searched
from llmtrace.triage.result import Metric
from llmtrace.triage.windows.bins import Bins, bins_for
from llmtrace.triage.windows.highest_stretch import MIN_REQUESTS, MIN_SCORE, Spike, p_value_of
from llmtrace.triage.windows.ramp import Ramp, find_ramp, ramp_of
from llmtrace.triage.windows.same_work import Series
from llmtrace.triage.windows.spike import find_failures, find_slow, find_traffic
from llmtrace.triage.windows.unrecorded import with_gaps, without_gaps

_MAX_STRETCHES: Final = 4  # of one metric and direction
_TOUCHES: Final = 2.0  # bins: stretches with less between them are one
_KINDS: Final = ("region", "tenant", "model", "route", "provider", "gateway", "client")
_MIN_KIND, _MAX_KIND = 0.1, 0.9  # share of the requests that are of a kind
_GONE: Final = 0.1  # of its usual rate, at most: then a kind of request has stopped
_MOSTLY: Final = 0.5  # of the time: a level that lasts longer is the usual one
_SHARED: Final = 0.5  # of the shorter of an incident and a window

Find = Callable[[Floats, Floats, Bins], Spike | None]


@dataclass(frozen=True, slots=True)
class _Searched:
    """A metric of each request, by time, and the function that finds its clearest stretch."""

    metric: Searched
    t: Floats
    value: Floats
    find: Find


def find_all(
    rows: Columns,
    series: Callable[[Metric], Sequence[Series]],
    span: Window,
    metric: Metric | None = None,
    gaps: Sequence[Window] = (),
) -> tuple[Incident, ...]:
    """Find every stretch that stands out, by start.

    Args:
        rows: to search, by start.
        series: returns the series in which a change of a metric is searched.
        span: the time that the rows cover.
        metric: the only metric to search; `None` = all, and failures and traffic.
        gaps: times for which nothing was recorded.
    """
    found: list[Incident] = []
    for name in METRICS if metric is None else (metric,):
        found += _clearest(
            _of_metric(_Searched(name, t, value, find_slow), span) for t, value in series(name)
        )
    t = rows.start / 1e9
    if metric is None and len(t):
        for ending, outcomes in ENDINGS.items():
            ended = rows.words["outcome"].where(*outcomes).astype(np.float64)
            searched = _Searched(ending, t, ended, _find_failures)
            found += [_incident(searched, one, "up", span) for one in _all_spikes(searched)]
        found += _traffic_changes(t, span, gaps) or _stopped_kind(rows, span, gaps)
    return tuple(sorted(found, key=lambda one: (one.start, one.metric)))


def _find_failures(t: Floats, failed: Floats, bins: Bins) -> Spike | None:
    return find_failures(t, failed > 0, bins)


def overlapping(incidents: Sequence[Incident], window: Window) -> list[Incident]:
    """Return the incidents that share half of a window with it, or half of themselves.

    The most certain comes first.
    """
    found = []
    for one in incidents:
        end = max(window.end, one.start) if one.end is None else one.end
        common = min(end, window.end) - max(one.start, window.start)
        if common >= _SHARED * min(end - one.start, window.seconds):
            found.append(one)
    return sorted(found, key=lambda one: one.p_value)


def _clearest(by_series: Iterable[list[Incident]]) -> list[Incident]:
    """Return the incidents of the series that has the most certain one."""
    return min(
        by_series, key=lambda found: min((one.p_value for one in found), default=1.0), default=[]
    )


def _of_metric(searched: _Searched, span: Window) -> list[Incident]:
    """Return the incidents of a metric: rises, else a ramp, else improvements."""
    slower = [_incident(searched, one, "up", span) for one in _all_spikes(searched)]
    ramp = None if slower else find_ramp(searched.t, searched.value)
    if slower:
        found = [_as_improvement(one, searched, span) for one in slower]
    elif ramp is not None and ramp.score >= MIN_SCORE:
        found = [_ramp_incident(searched, ramp)]
    else:
        inverse = replace(searched, value=1 / np.maximum(searched.value, 1e-9))
        faster = [_incident(searched, one, "down", span) for one in _all_spikes(inverse)]
        # If requests were faster from the beginning of the data, it is the rest that rose.
        found = [one for one in faster if not one.began_before]
    # A few requests are no stretch: one whose tokens came in one chunk seems infinitely fast.
    fewest = min(MIN_REQUESTS, len(searched.t) / 4)
    return [one for one in found if one.requests >= fewest]


def _all_spikes(searched: _Searched) -> list[Spike]:
    """Return all spikes by start; those that touch are joined.

    A level that falls back in two steps is one incident.
    """
    joined: list[Spike] = []
    for one in sorted(_spikes(searched), key=lambda one: one.start):
        last = joined[-1] if joined else None
        near = last is not None and one.start - (last.end or math.inf) <= _TOUCHES * one.bin_s
        if last is not None and near:
            ends = None if None in (last.end, one.end) else max(last.end or 0.0, one.end or 0.0)
            joined[-1] = replace(last, end=ends, score=max(last.score, one.score))
        else:
            joined.append(one)
    return joined


def _spikes(searched: _Searched) -> Iterator[Spike]:
    """Yield the clearest spike, then the clearest of the rest, as long as they stand out."""
    t, value = searched.t, searched.value
    found: list[Spike] = []
    for _ in range(_MAX_STRETCHES):
        bins = bins_for(t) if len(t) else None
        spike = None if bins is None else searched.find(t, value, bins)
        if spike is None or spike.score < MIN_SCORE:
            return
        later = [one.start for one in found if one.start > spike.start]
        if spike.end is None and later:
            spike = replace(spike, end=min(later))
        yield spike
        found.append(spike)
        rest = ~spike.contains(t)
        t, value = t[rest], value[rest]


def _incident(
    searched: _Searched, spike: Spike, direction: Literal["up", "down"], span: Window
) -> Incident:
    """Describe a spike: its shape, its level, and the usual level."""
    t, value = searched.t, searched.value
    inside = spike.contains(t)
    end = spike.end if spike.end is not None else span.end
    is_share = searched.metric in ENDINGS
    ramp = None
    if not is_share and direction == "up":
        ramp = ramp_of(t, value, spike.start, end)
    average = np.mean if is_share else np.median
    return Incident(
        metric=searched.metric, direction=direction,
        shape="step" if ramp is None else "ramp",
        start=spike.start if ramp is None else ramp.start, end=spike.end,
        began_before=bool(len(t)) and spike.start <= float(t[0]),
        usual=float(average(value[~inside])) if (~inside).any() else None,
        level=float(average(value[inside])) if inside.any() else None,
        requests=int(inside.sum()), p_value=spike.p_value,
        rise_s=0.0 if ramp is None else ramp.seconds,
    )  # fmt: skip


def _ramp_incident(searched: _Searched, ramp: Ramp) -> Incident:
    """Describe a gradual rise that lasts; its level is that since half of it was reached."""
    high = searched.t >= ramp.middle
    return Incident(
        metric=searched.metric, direction="up", shape="ramp", start=ramp.start, end=None,
        began_before=False,
        usual=float(np.median(searched.value[~high])),
        level=float(np.median(searched.value[high])),
        requests=int(high.sum()), p_value=p_value_of(ramp.score), rise_s=ramp.seconds,
    )  # fmt: skip


def _as_improvement(one: Incident, searched: _Searched, span: Window) -> Incident:
    """If a high level lasts from the first request for most of the time, return its end instead.

    The high level is then the usual one, and what followed is an improvement.
    """
    if not one.began_before or one.end is None:
        return one
    if one.end - span.start < _MOSTLY * span.seconds:
        return one
    later = int(np.count_nonzero(searched.t >= one.end))
    return replace(
        one, direction="down", shape="step", start=one.end, end=None, began_before=False,
        usual=one.level, level=one.usual, requests=later, rise_s=0.0,
    )  # fmt: skip


def _traffic_changes(t: Floats, whole: Window, gaps: Sequence[Window]) -> list[Incident]:
    """Return the stretches with more or fewer requests.

    The rate at the beginning of the data is the usual one. Gaps in the recording are left out, as
    if no time had passed in them.
    """
    t = without_gaps(t, gaps)
    span = Window(*without_gaps(np.array([whole.start, whole.end]), gaps))
    found: dict[float, Incident] = {}
    for more in (True, False):
        spike = find_traffic(t, span.start, span.end, more=more)
        if spike is None or spike.score < MIN_SCORE:
            continue
        start, end, up = spike.start, spike.end, more
        if start <= span.start and end is not None:
            start, end, up = end, None, not more
        stop = span.end if end is None else end
        inside = int(np.count_nonzero((t >= start) & (t < stop)))
        found.setdefault(
            start,
            Incident(
                metric="traffic", direction="up" if up else "down", shape="step",
                start=with_gaps(start, gaps), end=None if end is None else with_gaps(end, gaps),
                began_before=False, p_value=spike.p_value, requests=inside,
                usual=(len(t) - inside) / max(span.seconds - (stop - start), 1e-9),
                level=inside / max(stop - start, 1e-9),
            ),
        )  # fmt: skip
    return list(found.values())


def _stopped_kind(rows: Columns, span: Window, gaps: Sequence[Window]) -> list[Incident]:
    """Return since when all requests of one kind stopped, after they came for most of the time.

    Of several kinds the most certain; its rates are those of all requests.
    """
    t, found = rows.start / 1e9, []
    for column in _KINDS:
        words = rows.words[column]
        counts = np.bincount(words.codes[words.codes >= 0])
        for code in np.flatnonzero((counts >= _MIN_KIND * len(t)) & (counts < _MAX_KIND * len(t))):
            for one in _traffic_changes(t[words.codes == code], span, gaps):
                seconds = span.end - one.start
                gone = (one.level or 0.0) <= _GONE * (one.usual or 0.0)
                if one.end is None and gone and seconds <= _MOSTLY * span.seconds:
                    later = int(np.count_nonzero(t >= one.start))
                    usual = (len(t) - later) / (span.seconds - seconds)
                    found.append(replace(one, usual=usual, level=later / seconds, requests=later))
    return sorted(found, key=lambda one: one.p_value)[:1]
