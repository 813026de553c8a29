"""Find times at which an incident may have begun: by events, signals, and everything in the rows.

A search of the metrics alone finds nothing where requests are few: thirty requests date nothing.
But an incident also shows in how requests end, in which kinds of them come, in the stages of their
time and in the signals of engines, and a deploy has a date. Each gives windows worth comparing.
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
from llmtrace.triage.windows.highest_stretch import MIN_SCORE, SURE_P, Spike, highest_stretch
from llmtrace.triage.windows.same_work import Series
from llmtrace.triage.windows.spike import find_failures, find_slow, find_traffic
from llmtrace.triage.windows.unrecorded import with_gaps, without_gaps

TRAFFIC: Final = "the number of requests"
TOOLS: Final = "what turns waited for tools that could have overlapped"
GAP: Final = "a gap in the recording"
_MAX_CANDIDATES: Final = 8
_STANDS_OUT: Final = 0.6  # score: noise reaches it in one search of ten
_NEAR: Final = 0.05  # of the time searched: edges that differ by less are the same
_SOON: Final = 0.1  # of the time searched: what an event causes begins by then
_MIN_BEFORE: Final = 20  # requests
# Of the requests, or as many as a p95 needs: with fewer before it, the data begin with a stretch.
_HEAD: Final = 0.02
_FELT: Final = 0.02  # of the usual e2e: smaller changes of a stage do not matter
_COMMON: Final = (0.05, 0.95)  # share of the requests that are of a kind whose share may rise
_MAX_RESETS: Final = 1  # of a counter: its engine was restarted


@dataclass(frozen=True, slots=True)
class Candidate:
    """A time in which something may have been wrong.

    Attributes:
        shown_by: what shows it, in words.
        spike: its stretch and score.
        sure: whether it is dated by an event, or too clear for noise in everything searched.
    """

    shown_by: str
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
    pauses: Sequence[Window] = (),
) -> list[Candidate]:
    """Return the times worth comparing: those of events, then the others by score.

    Args:
        rows: to search, by start.
        series: returns the series in which a change of a metric is searched.
        span: the time that the rows cover.
        signals: samples of engines, GPUs and gateways.
        events: what was deployed, scaled or configured.
        gaps: times for which nothing was recorded.
        pauses: times without any request, far longer than any other.
    """
    t = rows.start / 1e9
    shown = Window(span.start, min(span.end, float(t[-1]) + 1e-3))
    values = _by_values(rows, series)
    others = [*_by_kinds(rows), *_by_signals(signals, shown)]
    others += [(TRAFFIC, one) for one in _by_traffic(t, span, gaps)]
    searches = len(values) + len(others)
    # Drift always makes a highest stretch: one that has an end must be clearer than drift.
    clear = [one for one in values if one[1].score >= MIN_SCORE or one[1].end is None]
    found = [
        Candidate(shown_by, _after_beginning(one, span), sure=one.p_value * searches <= SURE_P)
        for shown_by, one in (*clear, *others)
        if one.score >= _STANDS_OUT
    ]
    found.sort(key=lambda one: -one.spike.score)
    min_before = max(_MIN_BEFORE, min(_HEAD * len(t), least_values(Q)))
    kept: list[Candidate] = []
    for one in (*_by_events(events, found, shown), *_by_gaps([*gaps, *pauses], shown), *found):
        before = int(np.searchsorted(t, one.spike.start))
        seconds = (one.spike.end or span.end) - one.spike.start
        repeated = any(_same_stretch(one.spike, other.spike, span) for other in kept)
        if before >= min_before and seconds > 0 and not repeated:
            kept.append(one)
    return kept[:_MAX_CANDIDATES]


def _same_stretch(one: Spike, other: Spike, span: Window) -> bool:
    """Return whether both edges of two stretches are about the same."""
    ends = abs((one.end or span.end) - (other.end or span.end))
    return max(abs(one.start - other.start), ends) < _NEAR * span.seconds


def _after_beginning(spike: Spike, span: Window) -> Spike:
    """If the data begin with a stretch, return the time after it: the change was at its end."""
    if spike.start > span.start or spike.end is None:
        return spike
    return replace(spike, start=spike.end, end=None)


def _by_events(
    events: Sequence[Event], found: Sequence[Candidate], span: Window
) -> Iterator[Candidate]:
    """Yield for each event the time since it, or the first stretch that began soon after it."""
    for event in events:
        if not span.start < event.t < span.end - _NEAR * span.seconds:
            continue
        begun = (one.spike for one in found
                 if -_NEAR <= (one.spike.start - event.t) / span.seconds < _SOON)  # fmt: skip
        first = next(begun, Spike(event.t, None, _NEAR * span.seconds, 0.0))
        since = replace(first, start=max(first.start, event.t))
        yield Candidate(f"an event, {event.kind}", since, sure=True)


def _by_gaps(gaps: Sequence[Window], span: Window) -> Iterator[Candidate]:
    """Yield the time since the last gap: its date does not depend on anything in the data."""
    for gap in gaps[-1:]:
        yield Candidate(GAP, Spike(gap.end, None, _NEAR * span.seconds, 0.0), sure=True)


def _by_values(
    rows: Columns, series: Callable[[Metric], Sequence[Series]]
) -> list[tuple[str, Spike]]:
    """Return the clearest stretch of each metric, each stage, tool waits, and each size.

    Metrics and sizes are searched for high and for low values.
    """
    t, e2e = rows.start / 1e9, rows.numbers["e2e_s"]
    felt = _FELT * (float(np.nanmedian(e2e)) if np.isfinite(e2e).any() else 0.0)
    searched: list[tuple[str, Floats, Floats]] = []
    for name in METRICS:
        for when, value in series(name):
            searched += [(name, when, value), (name, when, 1 / np.maximum(value, 1e-9))]
    for stage in PARTITION:
        value = rows.numbers[f"{stage}_s"]
        known = np.isfinite(value)
        if (value[known] > 0).any():
            searched.append((stage, t[known], felt + value[known]))
    lost = rows.numbers["tool_wall_s"] - rows.numbers["tool_critical_path_s"]
    known = np.isfinite(lost)
    searched.append((TOOLS, t[known], felt + np.maximum(lost[known], 0.0)))
    for kind in ("prompt_tokens", "output_tokens", "cached_tokens"):
        known = np.isfinite(rows.numbers[kind])
        size = rows.numbers[kind][known] + 1
        searched += [(kind, t[known], size), (kind, t[known], 1 / size)]
    found: list[tuple[str, Spike]] = []
    for what, when, value in searched:
        bins = bins_for(when) if len(when) else None
        spike = find_slow(when, value, bins) if bins else None
        if spike is not None:
            found.append((what if what == TOOLS else f"the requests' {what}", spike))
    return found


def _by_kinds(rows: Columns) -> list[tuple[str, Spike]]:
    """Return the clearest stretch with a larger share of each kind of request."""
    t = rows.start / 1e9
    bins = bins_for(t)
    if bins is None:
        return []
    found = ((name, find_failures(t, mask, bins)) for name, mask in _kinds(rows) if mask.any())
    return [(f"the requests' {name}", spike) for name, spike in found if spike is not None]


def _kinds(rows: Columns) -> Iterator[tuple[str, Mask]]:
    """Yield kinds of requests: failed, cancelled, retried, not streamed, and by attribute."""
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
    """Yield the clearest stretch with more requests, and with fewer; gaps are left out."""
    start, end = without_gaps(np.array([span.start, span.end]), gaps)
    for more in (True, False):
        found = find_traffic(without_gaps(t, gaps), float(start), float(end), more=more)
        if found is not None:
            stop = None if found.end is None else with_gaps(found.end, gaps)
            yield replace(found, start=with_gaps(found.start, gaps), end=stop)


def _by_signals(signals: Signals, span: Window) -> Iterator[tuple[str, Spike]]:
    """Yield the clearest stretch in which each signal is higher, and in which it is lower.

    Ranks are searched, since a signal may grow from nothing to any height.
    """
    inside = (signals.t >= span.start) & (signals.t < span.end)
    signals = signals.take(inside)
    if not len(signals):
        return
    label_sets = len(signals.label_sets) + 1
    series = signals.instance.codes.astype(np.int64) * label_sets + signals.labels
    for code in np.unique(signals.signal.codes):
        t, value = _samples(signals, series, signals.signal.codes == code)
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
            found, _ = highest_stretch(x, weight, bins, None, min_variance=1.0, min_rise=0.0)
            if found is not None:
                yield f"the signal {signals.signal.names[code]}", found


def _samples(signals: Signals, series: NDArray[np.int64], selected: Mask) -> tuple[Floats, Floats]:
    """Return times and values of the selected samples, of all series; counters become rates.

    `series` numbers the series of each sample: its engine and labels.
    """
    times, values = [], []
    for one in np.unique(series[selected]):
        index = np.flatnonzero(selected & (series == one))
        t, value = signals.t[index], signals.value[index]
        seconds, grown = np.diff(t), np.diff(value)
        resets = np.count_nonzero(grown < 0)
        if resets <= _MAX_RESETS and len(value) > 1 and value[-1] != value[0]:  # a counter
            kept = (seconds > 0) & (grown >= 0)
            t, value = t[1:][kept], grown[kept] / seconds[kept]
        times.append(t)
        values.append(value)
    return np.concatenate(times), np.concatenate(values)
