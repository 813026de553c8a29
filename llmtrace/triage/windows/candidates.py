"""Find when something may have begun: by what was deployed, by signals, and by all that rows tell.

A search of the metrics alone is blind where requests are few: thirty of them date nothing. But an
incident is also in how requests end, in which kinds of them come, in parts of their time and in
what engines report, and a deploy is a date by itself. Each gives windows that are worth weighing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.core.stages import PARTITION
from llmtrace.dataset.case import Event, Signals, Window
from llmtrace.dataset.columns import Columns
from llmtrace.stats.arrays import Floats, Mask
from llmtrace.stats.quantiles import least_values
from llmtrace.triage.attribution.cohorts import ATTRIBUTES
from llmtrace.triage.attribution.components import METRICS
from llmtrace.triage.comparison.outcomes import ENDINGS
from llmtrace.triage.result import Metric, Q
from llmtrace.triage.windows.bins import MAX_BINS, MIN_BINS, Bins, bins_for
from llmtrace.triage.windows.highest_stretch import CERTAIN, SURE, Spike, highest_stretch
from llmtrace.triage.windows.same_work import Series
from llmtrace.triage.windows.spike import find_failures, find_slow, find_traffic
from llmtrace.triage.windows.unrecorded import closed_up, opened

TRAFFIC: Final = "the number of requests"
TOOLS: Final = "what turns waited for tools that could have overlapped"
_MAX_CANDIDATES: Final = 8  # that are weighed
_STANDS_OUT: Final = 0.6  # of a score: noise of any kind makes that in one search of ten
_NEAR: Final = 0.05  # of the time searched, by which edges that are one may differ
_SOON: Final = 0.1  # of it, after which what an event brought about has begun
_FEWEST: Final = 20  # requests before
_HEAD: Final = 0.02  # of the requests, or as many as a p95 takes: with fewer it is how data begin
_FELT: Final = 0.02  # of a typical request: what a part takes below that is no matter
_COMMON: Final = (0.05, 0.95)  # of the requests: a kind whose share may rise
_FALLS: Final = 1  # of a counter: its engine began anew


@dataclass(frozen=True, slots=True)
class Candidate:
    """A time in which something may have been wrong.

    Attributes:
        by: what shows it.
        spike: from when to when, and how far it stands out.
        sure: noise makes no such stretch, of whatever was looked at, or an event dates it.
    """

    by: str
    spike: Spike
    sure: bool


def candidates(
    rows: Columns,
    series: Callable[[Metric], Sequence[Series]],
    *,
    span: Window,
    signals: Signals,
    events: Sequence[Event],
    gaps: Sequence[Window],
) -> list[Candidate]:
    """Return the times worth weighing, those of events first, then the most certain.

    Args:
        rows: that are searched, by start.
        series: in which a change of a metric is searched.
        span: the time that they show.
        signals: of engines.
        events: what was deployed, scaled or configured.
        gaps: times of which nothing was recorded.
    """
    t = rows.start / 1e9
    shown = Window(span.start, min(span.end, float(t[-1]) + 1e-3))
    numbers, counts = _by_numbers(rows, series), [*_by_counts(rows), *_by_signals(signals, shown)]
    counts += [(TRAFFIC, one) for one in _by_traffic(t, span, gaps)]
    looked_at = len(numbers) + len(counts)
    # A level that wanders has a highest stretch in any case: one with an end must be beyond that.
    clear = [one for one in numbers if one[1].score >= CERTAIN or one[1].end is None]
    found = [
        Candidate(by, _turned(one, span), sure=one.p_value * looked_at <= SURE)
        for by, one in (*clear, *counts)
        if one.score >= _STANDS_OUT
    ]
    found.sort(key=lambda one: -one.spike.score)
    near, fewest = _NEAR * span.seconds, max(_FEWEST, min(_HEAD * len(t), least_values(Q)))
    kept: list[Candidate] = []
    for one in (*_by_events(events, found, shown), *found):
        before = int(np.searchsorted(t, one.spike.start))
        lasts = (one.spike.end or span.end) - one.spike.start
        again = any(_alike(one.spike, other.spike, span, near) for other in kept)
        if before >= fewest and lasts > 0 and not again:
            kept.append(one)
    return kept[:_MAX_CANDIDATES]


def _alike(one: Spike, other: Spike, span: Window, near: float) -> bool:
    ends = abs((one.end or span.end) - (other.end or span.end))
    return max(abs(one.start - other.start), ends) < near


def _turned(spike: Spike, span: Window) -> Spike:
    """Return what followed on a stretch that the data begin with: that is when it changed."""
    if spike.start > span.start or spike.end is None:
        return spike
    return replace(spike, start=spike.end, end=None)


def _by_events(
    events: Sequence[Event], clear: Sequence[Candidate], span: Window
) -> Iterator[Candidate]:
    """Yield the time since each event, or since what began soon after, until that ended."""
    for event in events:
        if not span.start < event.t < span.end - _NEAR * span.seconds:
            continue
        begun = (one.spike for one in clear
                 if -_NEAR <= (one.spike.start - event.t) / span.seconds < _SOON)  # fmt: skip
        first = next(begun, Spike(event.t, None, _NEAR * span.seconds, 0.0))
        since = replace(first, start=max(first.start, event.t))
        yield Candidate(f"an event, {event.kind}", since, sure=True)


def _by_numbers(
    rows: Columns, series: Callable[[Metric], Sequence[Series]]
) -> list[tuple[str, Spike]]:
    """Return the clearest stretch of each metric, of each part of it and of each size."""
    t, e2e = rows.start / 1e9, rows.numbers["e2e_s"]
    usual = float(np.nanmedian(e2e)) if np.isfinite(e2e).any() else 0.0
    looked_at: list[tuple[str, Floats, Floats]] = []
    for name in METRICS:
        for when, value in series(name):
            looked_at += [(name, when, value), (name, when, 1 / np.maximum(value, 1e-9))]
    for part in PARTITION:
        value = rows.numbers[f"{part}_s"]
        known = np.isfinite(value)
        if (value[known] > 0).any():
            looked_at.append((part, t[known], _FELT * usual + value[known]))
    lost = rows.numbers["tool_wall_s"] - rows.numbers["tool_critical_path_s"]
    known = np.isfinite(lost)
    looked_at.append((TOOLS, t[known], _FELT * usual + np.maximum(lost[known], 0.0)))
    for kind in ("prompt_tokens", "output_tokens", "cached_tokens"):
        known = np.isfinite(rows.numbers[kind])
        size = rows.numbers[kind][known] + 1
        looked_at += [(kind, t[known], size), (kind, t[known], 1 / size)]
    stretches = ((by, bins_for(when), when, value) for by, when, value in looked_at if len(when))
    found = ((by, find_slow(when, value, bins)) for by, bins, when, value in stretches if bins)
    return [(by if by == TOOLS else f"the requests' {by}", one)
            for by, one in found if one is not None]  # fmt: skip


def _by_counts(rows: Columns) -> list[tuple[str, Spike]]:
    """Return the clearest stretch in which there are more requests of each kind."""
    t = rows.start / 1e9
    bins = bins_for(t)
    if bins is None:
        return []
    found = ((by, find_failures(t, mask, bins)) for by, mask in _masks(rows) if mask.any())
    return [(f"the requests' {by}", one) for by, one in found if one is not None]


def _masks(rows: Columns) -> Iterator[tuple[str, Mask]]:
    """Yield which requests ended otherwise, were sent again, not streamed, or are of a kind."""
    for ending, outcomes in ENDINGS.items():
        yield ending, rows.words["outcome"].where(*outcomes)
    yield "attempts", rows.numbers["attempts"] > 1
    yield "stream", rows.numbers["stream"] == 0
    for name in ATTRIBUTES:
        codes = rows.words[name].codes
        shares = np.bincount(codes[codes >= 0]) / max(len(codes), 1)
        for code in np.flatnonzero((shares >= _COMMON[0]) & (shares <= _COMMON[1])):
            yield name, codes == code


def _by_traffic(t: Floats, span: Window, gaps: Sequence[Window]) -> Iterator[Spike]:
    closed, (start, end) = closed_up(t, gaps), closed_up(np.array([span.start, span.end]), gaps)
    for more in (True, False):
        found = find_traffic(closed, float(start), float(end), more=more)
        if found is not None:
            stop = None if found.end is None else opened(found.end, gaps)
            yield Spike(opened(found.start, gaps), stop, found.bin_s, found.score)


def _by_signals(signals: Signals, span: Window) -> Iterator[tuple[str, Spike]]:
    """Yield the clearest stretch in which each signal is higher, and in which it is lower.

    Ranks are compared: what a signal counts may grow from nothing to any height.
    """
    inside = (signals.t >= span.start) & (signals.t < span.end)
    signals = signals.take(inside)
    if not len(signals):
        return
    each = signals.instance.codes.astype(np.int64) * (len(signals.label_sets) + 1) + signals.labels
    for code in np.unique(signals.signal.codes):
        t, value = _together(signals, each, signals.signal.codes == code)
        if len(t) < MIN_BINS or np.ptp(value) == 0:
            continue
        edges = np.linspace(span.start, span.end, min(len(np.unique(t)), MAX_BINS) + 1)
        place = np.clip(np.searchsorted(edges, t, side="right") - 1, 0, len(edges) - 2)
        count = np.bincount(place, minlength=len(edges) - 1).astype(np.float64)
        mean = np.bincount(place, value, len(count)) / np.maximum(count, 1.0)
        ordered = np.sort(mean[count > 0])
        rank = (np.searchsorted(ordered, mean) + np.searchsorted(ordered, mean, side="right")) / 2
        weight = (count > 0).astype(np.float64)
        bins = Bins(edges, float(edges[1] - edges[0]))
        for x in (rank, -rank):
            found, _ = highest_stretch(x, weight, bins, None, floor=1.0, least=0.0)
            if found is not None:
                yield f"the signal {signals.signal.names[code]}", found


def _together(signals: Signals, each: NDArray[np.int64], mine: Mask) -> tuple[Floats, Floats]:
    """Return the samples of a signal of all engines, a counter's as its rate."""
    times, values = [], []
    for one in np.unique(each[mine]):
        index = np.flatnonzero(mine & (each == one))
        t, value = signals.t[index], signals.value[index]
        width, grown = np.diff(t), np.diff(value)
        if np.count_nonzero(grown < 0) <= _FALLS and len(value) > 1 and value[-1] != value[0]:
            kept = (width > 0) & (grown >= 0)
            t, value = t[1:][kept], grown[kept] / width[kept]
        times.append(t)
        values.append(value)
    return np.concatenate(times), np.concatenate(values)
