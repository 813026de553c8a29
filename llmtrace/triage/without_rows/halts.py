"""Find engines that ended nothing although requests ran or waited, or that were not scraped.

Requests that never end are in no mean: without this, engines that are stuck or gone would look as
if nothing had moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from llmtrace.dataset.case import Signals, Window
from llmtrace.stats.arrays import Floats, Mask
from llmtrace.triage.evidence.other_clients import GAP
from llmtrace.triage.evidence.signals import Series, gauges, rates
from llmtrace.triage.without_rows.intervals import ended

_MIN_S: Final = 120.0
_LONGER: Final = 3.0  # times the longest such time before
_REPLACED_S: Final = 300.0  # between the last sample of an engine and the first of its successor


@dataclass(frozen=True, slots=True)
class Halt:
    """An engine that did nothing. Times in Unix seconds.

    Attributes:
        instance: the engine.
        since: its last scrape, or the last one before which a request ended.
        until: when a request ended again; `None` = not by the end of the data.
        running: at most, of requests meanwhile; `None` = not known.
        waiting: the same.
        scraped: whether it answered scrapes.
    """

    instance: str
    since: float
    until: float | None
    running: float | None = None
    waiting: float | None = None
    scraped: bool = True


def halts(signals: Signals, end: float) -> tuple[Halt, ...]:
    """Return the halts of all engines by time; `end` is that of the data."""
    every = ended(signals)
    busy = {name: gauges(signals, name) for name in ("running", "waiting")}
    made, found = rates(signals, "generation_tokens", {}), []
    for name, one in every.items():
        has_work = np.logical_or.reduce([_at(of.get(name), one.t) > 0 for of in busy.values()])
        # One that makes tokens, where it counts them, works on long responses.
        for first, last, until in _stuck(one, has_work & ~(_at(made.get(name), one.t) > 0)):
            during = Window(float(one.t[first]), float(one.t[last]) + 1e-3)
            running, waiting = (_most(of.get(name), during) for of in busy.values())
            found.append(Halt(name, float(one.t[first - 1]), until, running, waiting))
    stuck = {one.instance for one in found if one.until is None}
    found += [one for one in _gone(every, end) if one.instance not in stuck]
    return tuple(sorted(found, key=lambda one: one.since))


def _stuck(series: Series, held: Mask) -> Iterator[tuple[int, int, float | None]]:
    """Yield first and last place of the times in which nothing ended, and when they were over."""
    idle = (series.value == 0) & held
    edges = np.flatnonzero(np.diff(idle, prepend=False, append=False))
    longest = 0.0
    usual = float(np.median(np.diff(series.t))) if len(series.t) > 1 else 0.0
    for first, after in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        if first == 0:  # whether anything ended before is not known
            continue
        took = float(series.t[after - 1] - series.t[first - 1])
        if took >= max(_MIN_S, GAP * usual, _LONGER * longest):
            over = after < len(series.t)
            yield first, after - 1, float(series.t[after]) if over else None
        longest = max(longest, took)


def _at(series: Series | None, t: Floats) -> Floats:
    """Return a signal's last sample at each time; NaN = none."""
    if series is None or not len(series.t):
        return np.full(len(t), np.nan)
    place = np.searchsorted(series.t, t, side="right") - 1
    return np.where(place >= 0, series.value[place], np.nan)


def _most(gauge: Series | None, window: Window) -> float | None:
    value = np.empty(0) if gauge is None else gauge.within(window).value
    return float(value.max()) if len(value) else None


def _gone(every: Mapping[str, Series], end: float) -> Iterator[Halt]:
    """Yield the engines without samples at the end, unless another took their place."""
    widths = np.concatenate([np.empty(0), *(np.diff(one.t) for one in every.values())])
    if not len(widths):
        return
    silent = max(GAP * float(np.median(widths)), _MIN_S)
    latest = max(float(one.t[-1]) for one in every.values())
    end = end if end - latest >= silent else latest
    began = min(float(one.t[0]) for one in every.values())
    started = [float(one.t[0]) for one in every.values() if one.t[0] > began + silent]
    for name, one in sorted(every.items(), key=lambda item: -item[1].t[-1]):
        last = float(one.t[-1])
        if end - last < silent:
            continue
        successor = next((t for t in started if abs(t - last) <= _REPLACED_S), None)
        if successor is None:
            yield Halt(name, last, None, scraped=False)
        else:
            started.remove(successor)
