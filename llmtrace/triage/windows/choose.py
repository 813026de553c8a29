"""Choose the window of the incident and the one before it to compare it with.

What the user gives is taken as given. What is left open is found: the spike in the rows, and for
it the quiet stretch before, with a gap between them so that a date off by seconds spoils neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from llmtrace.dataset.case import Window
from llmtrace.dataset.columns import Columns
from llmtrace.display.summary_tables import date_and_zone
from llmtrace.stats.arrays import Floats
from llmtrace.triage.attribution.components import METRICS
from llmtrace.triage.comparison.outcomes import ENDINGS
from llmtrace.triage.over_time import Incident
from llmtrace.triage.result import Metric
from llmtrace.triage.rows_in_order import thinned
from llmtrace.triage.windows import other_changes as others
from llmtrace.triage.windows.bins import bins_for, max_bins
from llmtrace.triage.windows.candidates import Candidate
from llmtrace.triage.windows.highest_stretch import CERTAIN, Spike
from llmtrace.triage.windows.same_work import Series, find_in_parts, find_other_work
from llmtrace.triage.windows.spike import find_failures, find_slow
from llmtrace.triage.windows.unrecorded import from_gap, recorded_part

_LONGER: Final = 8.0  # times the incident that the window before may be long
_HOUR_S: Final = 3600.0
_DAY_S: Final = 86_400.0
_ENOUGH: Final = 200
_AT_S: Final = (300.0, 900.0, 1800.0)
_QUIET_SHARE: Final = 0.2
_FOR_A_P95: Final = 72
_PARTS: Final = (0.5, 0.4, 0.6, 0.25, 0.75)  # of the time searched
_MOSTLY: Final = 0.5  # of the time
_HEAD: Final = 0.05  # of the requests: with fewer before it a level is what the data begin with
_NEAR: Final = 3.0  # bins
_CLEARER: Final = 1.5  # times the score from which on another is clearer by far
EARLIER_DAYS: Final = (1, 7)
FEW: Final = 1000  # rows, from which a search that finds nothing is to be believed


@dataclass(frozen=True, slots=True)
class Chosen:
    """The windows to compare, and how they were come by.

    Attributes:
        found: the spike, where the windows were searched for and one was there.
        searched: whether they were; then chance had many attempts, and must be trusted less.
        share: what part of the chance of a false alarm is theirs, where several were weighed, each
            as if it had been given; `None` = these alone.
        dated: they are sure, or as if given,
        by: and what dates them, where it is no metric.
    """

    before: Window
    after: Window
    found: Spike | None
    searched: bool
    warnings: tuple[str, ...] = ()
    share: float | None = None
    dated: bool = True
    by: str = ""

    @property
    def known(self) -> bool:
        """Whether the windows are given, or dated for sure by something else than a metric."""
        return not self.searched or (bool(self.by) and self.dated)

    def near(self, at: float) -> bool:
        """Return whether a time is of the incident, or as near as an edge may be off."""
        slack = _NEAR * (self.after.seconds if self.found is None else self.found.bin_s)
        return self.after.start - slack <= at <= self.after.end + slack


def choose(
    rows: Columns,
    series: Callable[[Metric], Sequence[Series]],
    *,
    before: Window | None,
    after: Window | None,
    at: float | None,
    metric: Metric | None,
    incidents: Sequence[Incident] = (),
    every: Floats | None = None,
    gaps: Sequence[Window] = (),
) -> Chosen:
    """Choose the windows.

    Args:
        rows: that are searched, by start.
        series: in which a change of a metric is searched.
        before: as the user gave it; `None` = to be found.
        after: the same.
        at: a time inside the incident, unix seconds.
        metric: the metric the spike is looked for in; `None` = any, and failures.
        incidents: all stretches of these rows.
        every: when all requests began, those of earlier days included; `None` = as of `rows`.
        gaps: times of which nothing was recorded; no window that is found holds one.
    """
    if before is not None and after is not None:
        return Chosen(before, after, None, searched=False)
    t = rows.start / 1e9
    every = t if every is None else every
    if after is not None:
        found, warning = _before(t, every, after, 0.0)
        return Chosen(found, after, None, searched=False, warnings=warning)
    since = None if before is None else before.end
    highest = _search(rows, series, since, at, metric)
    spike = highest if highest is not None and highest.score >= CERTAIN else None
    fewer = thinned(rows)
    if spike is not None and since is None and at is None:
        spike = others.weightier(incidents, spike, t) or spike
        spike = others.since_others_rose(incidents, spike, t)
        spike = others.with_bursts(incidents, spike, t)
        spike = others.since_other_work(spike, find_other_work(fewer))
    if spike is None and since is None and at is None:
        end = float(t[-1]) + 1e-3 if len(t) else 1.0
        few = highest is not None and _carries(t, highest, end)
        spike = others.other_change(incidents, t, find_other_work(fewer), few=few)
        if spike is None and metric in (None, "ttft"):
            spike = find_in_parts(fewer)
    spike = spike and _since_it_fell(spike, t)
    after, guard, warnings = _after(t, (spike, highest), before, at, gaps)
    after = recorded_part(after, gaps, t)
    if before is None:
        before, more = _before(t, every, after, guard, incidents)
        before = recorded_part(before, gaps, t)
        after = from_gap(before, after, gaps)
        warnings += more
    return Chosen(before, after, spike, searched=True, warnings=warnings)


def choose_at(at: float, t: Floats, found: Callable[..., Chosen]) -> Chosen:
    """Choose the windows for a time inside the incident, of what `found` finds for a time or none.

    What stands out of all that there is is preferred, if it is of that time; and so it is where
    nothing is that stands out by itself then, or nothing came before.
    """
    alone = found(at=None)
    if alone.found is not None and alone.near(at):
        return alone
    mine = found(at=at)
    stands_out = mine.found is not None and mine.after.seconds_with(alone.after) <= 0
    if stands_out or (alone.found is None and _count(t, mine.before) >= _FOR_A_P95):
        return mine
    said = f"nothing stands out at {date_and_zone(at)}; all of the time was searched"
    return replace(alone, warnings=(said, *alone.warnings))


def around(
    t: Floats, found: Candidate, gaps: Sequence[Window], end: float, *, among: int
) -> Chosen:
    """Choose the windows of a time that something else than the metrics points to.

    One that is not sure is the clearest of all that there are: of those that last to the end of
    the data each bin may be the first, and of others each two may be the edges.
    """
    spike = found.spike
    after = recorded_part(Window(spike.start, spike.end or end), gaps, t)
    long = max(_LONGER * after.seconds, _HOUR_S)
    before = recorded_part(Window(max(after.start - long, float(t[0])), after.start), gaps, t)
    bins = max_bins(len(t))
    stretches = bins if spike.end is None else bins**2 / 2
    share = 1 / among / (1 if found.sure else stretches)
    said = f"no spike of a metric explains it; the windows are dated by {found.by}"
    return Chosen(before, after, spike, searched=True, warnings=(said,), share=share,
                  dated=found.sure, by=found.by)  # fmt: skip


def since_each_part(t: Floats, gaps: Sequence[Window]) -> Iterator[Chosen]:
    """Yield what followed on a part of the time searched, and that part to compare it with.

    Where nothing dates a change, as of what comes and goes, or grows little by little, it is still
    in all that came later. These windows are a few that could be any, as if given.
    """
    first, last = float(t[0]), float(t[-1]) + 1e-3
    for part in _PARTS:
        middle = first + part * (last - first)
        before, after = (recorded_part(one, gaps, t)
                         for one in (Window(first, middle), Window(middle, last)))  # fmt: skip
        since = date_and_zone(middle)
        said = f"nothing dates a change; the time since {since} is compared with the one before"
        yield Chosen(before, after, None, searched=False, warnings=(said,),
                     share=1 / len(_PARTS), dated=False)  # fmt: skip


def _after(
    t: Floats,
    found: tuple[Spike | None, Spike | None],
    before: Window | None,
    at: float | None,
    gaps: Sequence[Window],
) -> tuple[Window, float, tuple[str, ...]]:
    """Return the window of the incident, the gap to leave before it, and what to warn of."""
    spike, highest = found
    end = float(t[-1]) + 1e-3 if len(t) else 1.0
    if spike is not None:
        return Window(spike.start, spike.end or max(end, spike.start + 1)), spike.bin_s, ()
    if gaps and before is None and at is None:
        later = Window(gaps[-1].end, end)
        if min(inside := _count(t, later), len(t) - inside) >= _FOR_A_P95:
            said = "no spike stands out; what was recorded last is compared with what was before"
            return later, 0.0, (said,)
    if highest is not None and before is None and at is None and _carries(t, highest, end):
        said = "no spike stands out; the slowest stretch is compared with what was before"
        return Window(highest.start, highest.end or end), 0.0, (said,)
    if before is not None:
        return Window(before.end, max(end, before.end + 1)), 0.0, ()
    if at is not None:
        said = "no spike stands out at this time; the time around it is compared"
        return _around(t, at), 0.0, (said,)
    said = "no spike stands out; the last fifth is compared with what was before"
    return _last(t, end), 0.0, (said,)


def _since_it_fell(spike: Spike, t: Floats) -> Spike | None:
    """Return the time after a high level that the data begin with, if that lasted longer.

    What most requests met with is the usual: the news is that it is better now. `None` = it is all
    that there is.
    """
    if _count(t, Window(-math.inf, spike.start)) >= min(_HEAD * len(t), _FOR_A_P95):
        return spike
    if spike.end is None:
        return None if spike.start > float(t[0]) else spike
    if spike.end - spike.start < _MOSTLY * float(t[-1] - t[0]):
        return spike
    return replace(spike, start=spike.end, end=None)


def quiet_time(t: Floats, incidents: Sequence[Incident], end: float, wanted: int) -> Window:
    """Return the latest time before `end` in which nothing rose, if enough requests are of it.

    Stretches before which too few requests came count for none: there is nothing else to compare
    with.
    """
    ends = {
        one: math.inf if one.end is None else one.end
        for one in incidents
        if one.direction == "up" and one.metric != "traffic"
    }
    for one in sorted(ends, key=ends.__getitem__, reverse=True):
        if ends[one] < end and _count(t, Window(ends[one], end)) >= wanted:
            return Window(ends[one], end)
        if one.start < end and _count(t, Window(-math.inf, one.start)) >= _ENOUGH:
            end = one.start
    return Window(-math.inf, end)


def _search(
    rows: Columns,
    series: Callable[[Metric], Sequence[Series]],
    since: float | None,
    at: float | None,
    metric: Metric | None,
) -> Spike | None:
    """Find the most certain spike of any metric; one of first tokens or tokens goes first."""
    best: Spike | None = None
    bins = bins_for(rows.start / 1e9)
    if bins is None:
        return None
    if since is not None:
        at = max(since, at or since)
    if metric is None:
        for outcomes in ENDINGS.values():
            ended = rows.words["outcome"].where(*outcomes)
            best = _clearer(best, find_failures(rows.start / 1e9, ended, bins, at))
    for name in METRICS if metric is None else (metric,):
        for t, value in series(name):
            best = _clearer(best, find_slow(t, value, bins, at))
    if best is None:
        return None
    if since is not None and best.start < since:
        return Spike(since, best.end, best.bin_s, best.score)
    return best


def _clearer(best: Spike | None, spike: Spike | None) -> Spike | None:
    """Return the more certain of two spikes; one that noise can make shadows none.

    Of two as certain the one that says more is taken, which is the earlier one: what fails is
    also quick or slow, and a longer response is a longer e2e.
    """
    if spike is None:
        return best
    if best is None or spike.score > _CLEARER * best.score:  # scores are logarithms of chances
        return spike
    return spike if spike.score >= CERTAIN > best.score else best


def _carries(t: Floats, spike: Spike, end: float) -> bool:
    """Return whether a stretch is worth comparing though noise may have made it.

    It is where the search had few requests to go by, and stretch and rest have as many as a p95
    needs.
    """
    inside = _count(t, Window(spike.start, spike.end or end))
    if len(t) > FEW:
        return False  # the search has seen enough to be believed
    return min(inside, len(t) - inside) >= _FOR_A_P95


def _last(t: Floats, end: float) -> Window:
    """Return the last fifth, or as much as a p95 needs, and half at most."""
    if not len(t):
        return Window(end - 1.0, end)
    first = float(t[0])
    start = end - _QUIET_SHARE * (end - first)
    wanted = min(_FOR_A_P95, len(t) // 2)
    return Window(min(start, float(t[len(t) - max(wanted, 1)])), end)


def _before(
    t: Floats, every: Floats, after: Window, guard: float, incidents: Sequence[Incident] = ()
) -> tuple[Window, tuple[str, ...]]:
    """Choose the quiet window: the hours before, else the same hours a day or a week ago."""
    wanted = min(_ENOUGH, max(_count(t, after), 1))
    quiet = quiet_time(t, incidents, after.start - guard, wanted)
    end = quiet.end
    long = max(_LONGER * after.seconds, _HOUR_S)
    first = float(t[0]) if len(t) else end
    near = Window(max(end - long, first, quiet.start), end) if end > first else None
    if near is not None and _count(t, near) >= wanted:
        return near, ()
    for days, back in earlier(after):
        if _count(every, back) >= wanted:
            return back, (f"too few requests just before: compared with {days} d earlier",)
    all_before = Window(first, end) if end > first else None
    if all_before is not None and _count(t, all_before) >= wanted:
        return all_before, ()
    last = float(t[-1]) + 1e-3 if len(t) else after.end
    later = Window(after.end + guard, min(last, after.end + guard + long))
    if later.seconds > 0 and _count(t, later) >= wanted:
        return later, ("nothing quiet before: compared with what came afterwards",)
    return all_before or Window(
        min(max(after.start - long, first), after.start - 1), after.start
    ), ()


def earlier(window: Window) -> Iterator[tuple[int, Window]]:
    """Yield the same hours of earlier days, over when these begin, and how many days ago."""
    for days in EARLIER_DAYS:
        if window.seconds <= days * _DAY_S:
            yield days, Window(window.start - days * _DAY_S, window.end - days * _DAY_S)


def _around(t: Floats, at: float) -> Window:
    first, end = (float(t[0]), float(t[-1]) + 1e-3) if len(t) else (-math.inf, math.inf)
    for half in _AT_S:
        window = Window(max(at - half, first), min(at + half, end))
        if _count(t, window) >= _ENOUGH:
            break
    return window


def _count(t: Floats, window: Window) -> int:
    return int(np.diff(np.searchsorted(t, (window.start, window.end)))[0])
