"""Find every stretch in which a metric, failures or traffic differed, not only the clearest.

The clearest of a metric is taken out and the rest searched again. A stretch is slower or quicker,
a step or a ramp; one that reaches back to the first request began before the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from llmtrace.dataset.case import Window
from llmtrace.dataset.columns import Columns
from llmtrace.stats.arrays import Floats, Mask
from llmtrace.triage.attribution.components import METRICS
from llmtrace.triage.comparison.outcomes import ENDINGS
from llmtrace.triage.over_time import Incident, Searched
from llmtrace.triage.result import Metric
from llmtrace.triage.windows.bins import Bins, bins_for
from llmtrace.triage.windows.highest_stretch import CERTAIN, MIN_INSIDE, Spike, chance_of
from llmtrace.triage.windows.ramp import Ramp, find_ramp, ramp_of
from llmtrace.triage.windows.same_work import Series
from llmtrace.triage.windows.spike import find_failures, find_slow, find_traffic
from llmtrace.triage.windows.unrecorded import closed_up, opened

_MOST: Final = 4  # of one metric and direction
_TOUCHES: Final = 2.0  # bins between two stretches that are one
_KINDS: Final = ("region", "tenant", "model", "route", "provider", "gateway", "client")
_LARGE, _WHOLE = 0.1, 0.9  # of the requests: a kind of which there is a rest
_GONE: Final = 0.1  # of the requests of a kind that stopped, at most, still come
_MOSTLY: Final = 0.5  # of the time: what lasts longer is the usual level
_SHARED: Final = 0.5

Find = Callable[[Floats, Floats, Bins], Spike | None]


@dataclass(frozen=True, slots=True)
class _Watched:
    """A quantity of each request, by time, and how its stretches are looked for."""

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
    """Find every stretch that stands out, by start."""
    found: list[Incident] = []
    for name in METRICS if metric is None else (metric,):
        found += _clearest(
            _of_metric(_Watched(name, t, value, find_slow), span) for t, value in series(name)
        )
    t = rows.start / 1e9
    if metric is None and len(t):
        for ending, outcomes in ENDINGS.items():
            ended = rows.words["outcome"].where(*outcomes).astype(np.float64)
            watched = _Watched(ending, t, ended, _find_counted)
            found += [_described(watched, one, "up", span) for one in _merged(_each(watched))]
        found += _traffic(t, span, gaps) or _stopped(rows, span, gaps)
    return tuple(sorted(found, key=lambda one: (one.start, one.metric)))


def _find_counted(t: Floats, mask: Floats, bins: Bins) -> Spike | None:
    return find_failures(t, mask > 0, bins)


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


def _clearest(found: Iterable[list[Incident]]) -> list[Incident]:
    """Return the stretches of the series whose clearest one is the most certain."""
    return min(found, key=lambda one: min((i.p_value for i in one), default=1.0), default=[])


def _of_metric(series: _Watched, span: Window) -> list[Incident]:
    # A few requests are no stretch: one whose tokens came in one chunk seems infinitely quick.
    fewest = min(MIN_INSIDE, len(series.t) / 4)
    return [one for one in _stretches(series, span) if one.requests >= fewest]


def _stretches(series: _Watched, span: Window) -> list[Incident]:
    slower = [_described(series, one, "up", span) for one in _merged(_each(series))]
    if slower:
        return [_turned(one, series, span) for one in slower]
    ramp = find_ramp(series.t, series.value)
    if ramp is not None and ramp.score >= CERTAIN:
        return [_gradual(series, ramp)]
    quick = replace(series, value=1 / np.maximum(series.value, 1e-9))
    found = [_described(series, one, "down", span) for one in _merged(_each(quick))]
    return [one for one in found if not one.began_before]  # of those it is the rest that rose


def _each(series: _Watched) -> Iterator[Spike]:
    """Yield the clearest stretch, then that of the rest, as long as they stand out."""
    t, value = series.t, series.value
    taken: list[Spike] = []
    for _ in range(_MOST):
        bins = bins_for(t) if len(t) else None
        found = None if bins is None else series.find(t, value, bins)
        if found is None or found.score < CERTAIN:
            return
        later = [one.start for one in taken if one.start > found.start]
        if found.end is None and later:
            found = replace(found, end=min(later))
        yield found
        taken.append(found)
        inside = _inside(t, found)
        t, value = t[~inside], value[~inside]


def _merged(stretches: Iterator[Spike]) -> list[Spike]:
    """Join stretches that touch: a level that falls back in two steps is one incident."""
    joined: list[Spike] = []
    for one in sorted(stretches, key=lambda one: one.start):
        last = joined[-1] if joined else None
        near = last is not None and one.start - (last.end or math.inf) <= _TOUCHES * one.bin_s
        if last is not None and near:
            ends = None if None in (last.end, one.end) else max(last.end or 0.0, one.end or 0.0)
            joined[-1] = replace(last, end=ends, score=max(last.score, one.score))
        else:
            joined.append(one)
    return joined


def _described(series: _Watched, found: Spike, direction: str, span: Window) -> Incident:
    t, value = series.t, series.value
    inside = _inside(t, found)
    end = found.end if found.end is not None else span.end
    ramp = None
    shares = series.metric in ENDINGS
    if not shares and direction == "up":
        ramp = ramp_of(t, value, found.start, end)
    middle = np.mean if shares else np.median
    return Incident(
        metric=series.metric, direction="up" if direction == "up" else "down",
        shape="step" if ramp is None else "ramp",
        start=found.start if ramp is None else ramp.start, end=found.end,
        began_before=bool(len(t)) and found.start <= float(t[0]),
        usual=float(middle(value[~inside])) if (~inside).any() else None,
        level=float(middle(value[inside])) if inside.any() else None,
        requests=int(inside.sum()), p_value=found.p_value,
        rise_s=0.0 if ramp is None else ramp.seconds,
    )  # fmt: skip


def _gradual(series: _Watched, ramp: Ramp) -> Incident:
    """Return the incident of a rise without an edge, from when half of it was reached."""
    high = series.t >= ramp.middle
    return Incident(
        metric=series.metric, direction="up", shape="ramp", start=ramp.start, end=None,
        began_before=False,
        usual=float(np.median(series.value[~high])), level=float(np.median(series.value[high])),
        requests=int(high.sum()), p_value=chance_of(ramp.score), rise_s=ramp.seconds,
    )  # fmt: skip


def _turned(one: Incident, series: _Watched, span: Window) -> Incident:
    """Return an improvement for a high level from the first request on, for most of the time."""
    if not one.began_before or one.end is None:
        return one
    if one.end - span.start < _MOSTLY * span.seconds:
        return one
    later = int(np.count_nonzero(series.t >= one.end))
    return replace(
        one, direction="down", shape="step", start=one.end, end=None, began_before=False,
        usual=one.level, level=one.usual, requests=later, rise_s=0.0,
    )  # fmt: skip


def _traffic(t: Floats, whole: Window, gaps: Sequence[Window]) -> list[Incident]:
    """Return where requests came in other numbers; what begins with the data is the usual.

    Times of which nothing was recorded are left out, as if they had not been.
    """
    t = closed_up(t, gaps)
    span = Window(*closed_up(np.array([whole.start, whole.end]), gaps))
    found: dict[float, Incident] = {}
    for more in (True, False):
        one = find_traffic(t, span.start, span.end, more=more)
        if one is None or one.score < CERTAIN:
            continue
        start, end, up = one.start, one.end, more
        if start <= span.start and end is not None:
            start, end, up = end, None, not more
        stop = span.end if end is None else end
        inside = int(np.count_nonzero((t >= start) & (t < stop)))
        found.setdefault(
            start,
            Incident(
                metric="traffic", direction="up" if up else "down", shape="step",
                start=opened(start, gaps), end=None if end is None else opened(end, gaps),
                began_before=False, p_value=one.p_value, requests=inside,
                usual=(len(t) - inside) / max(span.seconds - (stop - start), 1e-9),
                level=inside / max(stop - start, 1e-9),
            ),
        )  # fmt: skip
    return list(found.values())


def _stopped(rows: Columns, span: Window, gaps: Sequence[Window]) -> list[Incident]:
    """Return since when all requests of one kind stopped, that had come for most of the time."""
    t, found = rows.start / 1e9, []
    for column in _KINDS:
        words = rows.words[column]
        counts = np.bincount(words.codes[words.codes >= 0])
        for code in np.flatnonzero((counts >= _LARGE * len(t)) & (counts < _WHOLE * len(t))):
            for one in _traffic(t[words.codes == code], span, gaps):
                lasts = span.end - one.start
                gone = (one.level or 0.0) <= _GONE * (one.usual or 0.0)
                if one.end is None and gone and lasts <= _MOSTLY * span.seconds:
                    later = int(np.count_nonzero(t >= one.start))
                    usual = (len(t) - later) / (span.seconds - lasts)
                    found.append(replace(one, usual=usual, level=later / lasts, requests=later))
    return sorted(found, key=lambda one: one.p_value)[:1]


def _inside(t: Floats, found: Spike) -> Mask:
    return (t >= found.start) & (t < (math.inf if found.end is None else found.end))
