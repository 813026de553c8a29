"""Choose the window of the incident, and the quiet window before it to compare it with.

Windows that the user gives are used as they are. Others are found: the window after is the spike
in the rows. The window before is a quiet time, with a gap up to the spike so that a start dated
some seconds too late or too early spoils neither window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from llmtrace.dataset.case import Window
from llmtrace.dataset.columns import Columns
from llmtrace.dataset.rows_in_order import thinned
from llmtrace.display.summary_tables import date_and_zone
from llmtrace.stats.arrays import Floats
from llmtrace.triage.attribution.components import METRICS
from llmtrace.triage.comparison.outcomes import ENDINGS
from llmtrace.triage.over_time import Incident
from llmtrace.triage.result import Metric
from llmtrace.triage.windows import other_changes
from llmtrace.triage.windows.bins import bins_for, count_in, max_bins
from llmtrace.triage.windows.candidates import Candidate
from llmtrace.triage.windows.highest_stretch import MIN_SCORE, Spike
from llmtrace.triage.windows.same_work import Series, find_in_stages, find_workload_change
from llmtrace.triage.windows.spike import find_failures, find_slow
from llmtrace.triage.windows.unrecorded import from_gap, recorded_part

_LONGER: Final = 8.0  # times the window after that the window before may be long
_HOUR_S: Final = 3600.0
_DAY_S: Final = 86_400.0
_EARLIER_DAYS: Final = (1, 7)
_ENOUGH: Final = 200  # requests, for a window
_FOR_A_P95: Final = 72  # requests that a p95 with an interval needs
_AROUND_S: Final = (300.0, 900.0, 1800.0)  # on either side of a given time
_LAST_SHARE: Final = 0.2  # of the time searched
_SPLITS: Final = (0.5, 0.4, 0.6, 0.25, 0.75)  # of the time searched
_MOSTLY: Final = 0.5  # of the time searched
_HEAD: Final = 0.05  # of the requests: with fewer before it, the data begin with the spike
_NEAR_BINS: Final = 3.0
_MUCH_CLEARER: Final = 1.5  # times the score
TRUSTED_SEARCH: Final = 1000  # rows; with more, a search that finds nothing is believed


@dataclass(frozen=True, slots=True)
class Chosen:
    """The windows to compare, and how they were chosen.

    Attributes:
        spike: what a search found; `None` = nothing, or the window after was given.
        searched: whether the window after was searched for. Then chance had many attempts.
        alarm_share: the part of the allowed chance of a false alarm that these windows have, if
            they are one of several pairs, each compared as if given; `None` = they are the only.
        dated: whether the time of the incident is sure, or given.
        dated_by: what dates it other than a metric; empty = a metric, or given.
    """

    before: Window
    after: Window
    spike: Spike | None
    searched: bool
    warnings: tuple[str, ...] = ()
    alarm_share: float | None = None
    dated: bool = True
    dated_by: str = ""

    @property
    def given_or_surely_dated(self) -> bool:
        """Whether the windows are given, or surely dated by something other than a metric."""
        return not self.searched or (bool(self.dated_by) and self.dated)

    def is_near(self, at: float) -> bool:
        """Return whether a time is in the incident, or as near to it as its edges are exact."""
        slack = _NEAR_BINS * (self.after.seconds if self.spike is None else self.spike.bin_s)
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
    all_starts: Floats | None = None,
    gaps: Sequence[Window] = (),
) -> Chosen:
    """Choose the windows.

    Args:
        rows: to search, by start.
        series: returns the series in which a change of a metric is searched.
        before: as the user gave it; `None` = to be found.
        after: the same.
        at: a time inside the incident, unix seconds.
        metric: to look for the spike in; `None` = any metric, and failures.
        incidents: every stretch of these rows that stands out.
        all_starts: start of all requests, with those of earlier days; `None` = only these rows.
        gaps: times for which nothing was recorded; no window that is found contains one.
    """
    if before is not None and after is not None:
        return Chosen(before, after, None, searched=False)
    t = rows.start / 1e9
    all_starts = t if all_starts is None else all_starts
    if after is not None:
        found, warnings = _quiet_window(t, all_starts, after, 0.0)
        return Chosen(found, after, None, searched=False, warnings=warnings)
    end = float(t[-1]) + 1e-3 if len(t) else 1.0
    spike = _clearest_spike(rows, series, None if before is None else before.end, at, metric)
    spike = spike if spike is not None and spike.score >= MIN_SCORE else None
    if before is None and at is None:
        spike = _with_other_changes(rows, spike, incidents)
        if spike is None:
            workload = find_workload_change(thinned(rows))
            spike = other_changes.other_change(incidents, t, workload)
        if spike is None and metric in (None, "ttft"):
            spike = find_in_stages(thinned(rows))
    spike = spike and _after_high_beginning(spike, t)
    after, guard_s, warnings = _window_after(t, end, spike=spike, before=before, at=at)
    after = recorded_part(after, gaps, t)
    if before is None:
        before, more = _quiet_window(t, all_starts, after, guard_s, incidents)
        before = recorded_part(before, gaps, t)
        after = from_gap(before, after, gaps)
        warnings += more
    return Chosen(before, after, spike, searched=True, warnings=warnings)


def _with_other_changes(
    rows: Columns, spike: Spike | None, incidents: Sequence[Incident]
) -> Spike | None:
    """Correct the spike that a search found by the other stretches of the same rows."""
    if spike is None:
        return None
    t = rows.start / 1e9
    spike = other_changes.weightier(incidents, spike, t) or spike
    spike = other_changes.since_others_rose(incidents, spike, t)
    spike = other_changes.with_bursts(incidents, spike, t)
    return other_changes.since_workload_changed(spike, find_workload_change(thinned(rows)))


def choose_at(at: float, t: Floats, choose_for: Callable[..., Chosen]) -> Chosen:
    """Choose the windows for a time inside the incident.

    What stands out from all the data is preferred if the time is in it. It is also used if nothing
    stands out at that time, or if too few requests came before. `choose_for` chooses the windows
    for a time `at`, or for `None`.
    """
    anywhere = choose_for(at=None)
    if anywhere.spike is not None and anywhere.is_near(at):
        return anywhere
    then = choose_for(at=at)
    stands_out = then.spike is not None and then.after.seconds_with(anywhere.after) <= 0
    if stands_out or (anywhere.spike is None and count_in(t, then.before) >= _FOR_A_P95):
        return then
    said = f"nothing stands out at {date_and_zone(at)}; all of the time was searched"
    return replace(anywhere, warnings=(said, *anywhere.warnings))


def windows_of(
    t: Floats, candidate: Candidate, gaps: Sequence[Window], end: float, *, among: int
) -> Chosen:
    """Return the windows for a time that something other than a metric points to.

    Each of `among` candidates has an equal share of the allowed chance of a false alarm. One that
    is not sure was chosen as the clearest of many stretches, so its share is divided by their
    number: a stretch up to the end of the data can begin in any bin, and any other stretch can
    have any two bins as its edges.
    """
    spike = candidate.spike
    after = recorded_part(Window(spike.start, spike.end or end), gaps, t)
    longest = max(_LONGER * after.seconds, _HOUR_S)
    before = recorded_part(Window(max(after.start - longest, float(t[0])), after.start), gaps, t)
    bins = max_bins(len(t))
    stretches = bins if spike.end is None else bins**2 / 2
    share = 1 / among / (1 if candidate.sure else stretches)
    said = f"no spike of a metric explains it; the windows are dated by {candidate.shown_by}"
    return Chosen(before, after, spike, searched=True, warnings=(said,), alarm_share=share,
                  dated=candidate.sure, dated_by=candidate.shown_by)  # fmt: skip


def splits_of(t: Floats, gaps: Sequence[Window]) -> Iterator[Chosen]:
    """Yield a few splits of the time searched into before and after, at fixed shares of it.

    Some incidents have no date: they come and go, or grow little by little. They still show in
    later requests. As these windows do not depend on the data, they are compared as if given.
    """
    first, last = float(t[0]), float(t[-1]) + 1e-3
    middles = (first + share * (last - first) for share in _SPLITS)
    pairs = [tuple(recorded_part(window, gaps, t)
                   for window in (Window(first, middle), Window(middle, last)))
             for middle in middles]  # fmt: skip
    distinct = dict.fromkeys(pairs)  # several may fall in one gap
    for before, after in distinct:
        since = date_and_zone(after.start)
        said = f"nothing dates a change; the time since {since} is compared with the time before"
        yield Chosen(before, after, None, searched=False, warnings=(said,),
                     alarm_share=1 / len(distinct), dated=False)  # fmt: skip


def _window_after(
    t: Floats,
    end: float,
    *,
    spike: Spike | None,
    before: Window | None,
    at: float | None,
) -> tuple[Window, float, tuple[str, ...]]:
    """Return the window after, the gap to leave before it in seconds, and warnings."""
    if spike is not None:
        return Window(spike.start, spike.end or max(end, spike.start + 1)), spike.bin_s, ()
    if before is not None:
        return Window(before.end, max(end, before.end + 1)), 0.0, ()
    if at is not None:
        said = "no spike stands out at this time; the time around it is compared"
        return _window_around(t, at), 0.0, (said,)
    said = "no spike stands out; the last fifth is compared with the time before it"
    return _last_fifth(t, end), 0.0, (said,)


def _after_high_beginning(spike: Spike, t: Floats) -> Spike | None:
    """If the data begin with the spike and it lasts for most of the time, return what follows it.

    A level that most requests have is the usual one, and the change is that it improved. `None` =
    the spike is all of the data.
    """
    if count_in(t, Window(-math.inf, spike.start)) >= min(_HEAD * len(t), _FOR_A_P95):
        return spike
    if spike.end is None:
        return None if spike.start > float(t[0]) else spike
    if spike.end - spike.start < _MOSTLY * float(t[-1] - t[0]):
        return spike
    return replace(spike, start=spike.end, end=None)


def quiet_time(t: Floats, incidents: Sequence[Incident], end: float, wanted: int) -> Window:
    """Return the latest time before `end` in which nothing rose and enough requests started.

    `wanted` requests are enough. An incident with too few requests before it is ignored: there is
    nothing else to compare with.
    """
    ends = {
        one: math.inf if one.end is None else one.end
        for one in incidents
        if one.direction == "up" and one.metric != "traffic"
    }
    for one in sorted(ends, key=ends.__getitem__, reverse=True):
        if ends[one] < end and count_in(t, Window(ends[one], end)) >= wanted:
            return Window(ends[one], end)
        if one.start < end and count_in(t, Window(-math.inf, one.start)) >= _ENOUGH:
            end = one.start
    return Window(-math.inf, end)


def _clearest_spike(
    rows: Columns,
    series: Callable[[Metric], Sequence[Series]],
    since: float | None,
    at: float | None,
    metric: Metric | None,
) -> Spike | None:
    """Return the clearest spike of any metric and of failures, or of one `metric` alone.

    It begins at `since` or later, and contains the time `at`, if they are not `None`.
    """
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
    """Return the clearer of two spikes, or the first if both are about as clear.

    The first says more: requests that fail are also fast or slow, and a longer response also has a
    longer e2e. One that noise can make does not hide one that counts.
    """
    if spike is None:
        return best
    if best is None or spike.score > _MUCH_CLEARER * best.score:
        return spike
    return spike if spike.score >= MIN_SCORE > best.score else best


def _last_fifth(t: Floats, end: float) -> Window:
    """Return the last fifth of the time, extended for a p95 up to half of the requests."""
    if not len(t):
        return Window(end - 1.0, end)
    first = float(t[0])
    start = end - _LAST_SHARE * (end - first)
    wanted = min(_FOR_A_P95, len(t) // 2)
    return Window(min(start, float(t[len(t) - max(wanted, 1)])), end)


def _quiet_window(
    t: Floats,
    all_starts: Floats,
    after: Window,
    guard_s: float,
    incidents: Sequence[Incident] = (),
) -> tuple[Window, tuple[str, ...]]:
    """Choose the quiet window to compare with, and return warnings about it.

    The first with enough requests of: the hours before; the same hours a day or a week ago; all of
    the time before; the time afterwards.
    """
    wanted = min(_ENOUGH, max(count_in(t, after), 1))
    quiet = quiet_time(t, incidents, after.start - guard_s, wanted)
    end = quiet.end
    longest = max(_LONGER * after.seconds, _HOUR_S)
    first = float(t[0]) if len(t) else end
    near = Window(max(end - longest, first, quiet.start), end) if end > first else None
    if near is not None and count_in(t, near) >= wanted:
        return near, ()
    for days, back in same_hours_earlier(after):
        if count_in(all_starts, back) >= wanted:
            return back, (f"too few requests just before: compared with {days} d earlier",)
    all_before = Window(first, end) if end > first else None
    if all_before is not None and count_in(t, all_before) >= wanted:
        return all_before, ()
    last = float(t[-1]) + 1e-3 if len(t) else after.end
    later = Window(after.end + guard_s, min(last, after.end + guard_s + longest))
    if later.seconds > 0 and count_in(t, later) >= wanted:
        return later, ("no quiet time before: compared with the time afterwards",)
    return all_before or Window(
        min(max(after.start - longest, first), after.start - 1), after.start
    ), ()


def same_hours_earlier(window: Window) -> Iterator[tuple[int, Window]]:
    """Yield the same hours of a day and a week ago, each with how many days ago.

    A window longer than that is skipped, since it would overlap itself.
    """
    for days in _EARLIER_DAYS:
        if window.seconds <= days * _DAY_S:
            yield days, Window(window.start - days * _DAY_S, window.end - days * _DAY_S)


def _window_around(t: Floats, at: float) -> Window:
    """Return the shortest of a few windows around a time that has enough requests."""
    first, end = (float(t[0]), float(t[-1]) + 1e-3) if len(t) else (-math.inf, math.inf)
    at = min(max(at, first), end)  # an alert may be older than all rows that its labels select
    for half in _AROUND_S:
        window = Window(max(at - half, first), min(at + half, end))
        if count_in(t, window) >= _ENOUGH:
            break
    return window
