"""Date when the incident began, and decide whether it is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from llmtrace.dataset.case import Window
from llmtrace.stats.arrays import Floats, Mask
from llmtrace.stats.significance import clustered, more_than, share_bounds
from llmtrace.triage.evidence.changes import HALF
from llmtrace.triage.over_time import Incident, Onset, State
from llmtrace.triage.windows.all_stretches import overlapping
from llmtrace.triage.windows.changepoint import Dated, date_change
from llmtrace.triage.windows.choose import Chosen
from llmtrace.triage.windows.moved import Moved

_MIN_SLACK_S: Final = 60.0
_SLACK: Final = 0.1  # of the window after, or of the incident
_SLACK_BINS: Final = 3
_CLEAR: Final = 10.0  # log likelihood ratio from which an earlier change is believed
_AT_ONCE: Final = ("ttft", "errors", "cancelled", "traffic")  # what shows soon after the start
_MIN_LATER: Final = 20  # requests after the incident, to believe that it is over
_ENDED_P: Final = 1e-3  # chance of so few requests that show it, if it went on
_STILL_P: Final = 1e-3  # chance of so many requests that show it, if it were over
# Of the way from the share of requests that show it before to that in the incident:
_NEAR: Final = 0.25  # up to which it is as before
_LEFT: Final = 0.1  # up to which an excess beyond chance does not matter


def date_onset(
    moved: Sequence[Moved], chosen: Chosen, incidents: Sequence[Incident], ramp: Dated | None
) -> Onset | None:
    """Date the incident by what moved first; `None` = nothing moved.

    That is the clearest of what moved, unless something else clearly moved earlier: its interval
    ends before the likeliest date of the clearest. Failures, and the slowness that follows from
    them, do not begin together. The `incidents` are those in the window after; `ramp` is when a
    gradual rise began.

    Windows that a search chose may be only the clearest part of the incident. A date before the
    window after and any stretch in it counts only if the requests from then on were like those of
    the window after rather than like those before.
    """
    before, after, slack = chosen.before, chosen.after, _slack(chosen)
    first: Onset | None = None
    for one in moved:
        starts = [after.start, *(found.start for found in incidents if found.metric == one.metric
                                 and before.start < found.start < after.end)]  # fmt: skip
        low, high = min(starts) - slack, min(max(starts) + slack, after.end)
        span = Window(min(before.start, low), after.end)
        searched = chosen.spike is not None
        dated = ramp or _date(one, span, (span.start if searched else low, high))
        if searched and not ramp and dated is not None and dated.best < low:
            parts = (span.start, dated.best, low), (dated.best, low, after.end)
            usual, then, now = (k / max(n, 1) for k, n in map(
                one.count_in, map(Window, *parts)))  # fmt: skip
            if then - usual < HALF * (now - usual):
                dated = _date(one, span, (low, high)) or dated
        earlier = one.log_ratio >= _CLEAR and one.metric in _AT_ONCE
        if dated and (first is None or (earlier and dated.latest < first.best)):
            first = Onset(earliest=dated.earliest, best=dated.best, latest=dated.latest, end=None,
                          metric=one.metric)  # fmt: skip
    return first


def _date(one: Moved, span: Window, within: tuple[float, float]) -> Dated | None:
    """Date a change by the requests of a span; it was `within` two times.

    A request that was running when the change came may show it or not. So the interval reaches
    from the date by when requests started, which is the best, to the date by when each was known
    to show it. A gradual rise crosses the lower bounds first.
    """
    inside = (one.t >= span.start) & (one.t < span.end)
    t, known = one.t[inside], one.known[inside]
    by_start = _date_clustered(t, one.shows[inside], within)
    if by_start is None:
        return None
    for lower in one.lower:
        earlier = _date_clustered(t, lower[inside], within, ahead_of=by_start)
        if earlier is not None:
            by_start = replace(earlier, latest=by_start.latest)
            break
    order = np.argsort(known, kind="stable")
    until_known = within[0], within[1] + float((known - t).max())
    by_end = _date_clustered(known[order], one.shows[inside][order], until_known) or by_start
    return Dated(
        earliest=min(by_start.earliest, by_end.earliest),
        best=by_start.best,
        latest=max(by_start.latest, by_end.latest),
    )


def _date_clustered(
    t: Floats, shows: Mask, within: tuple[float, float], ahead_of: Dated | None = None
) -> Dated | None:
    """Date a change with an interval that is widened for clustering.

    `None` = no change, or none that is clear and surely `ahead_of` another. That is tested first
    without clustering, which is quick to compute and can only widen the interval.
    """
    dated = date_change(t, shows, *within)
    if dated is None or not _is_ahead(dated, ahead_of):
        return None
    design = clustered(t, shows, change=dated.best, remembers=True)
    dated = date_change(t, shows, *within, design)
    return dated if dated is not None and _is_ahead(dated, ahead_of) else None


def _is_ahead(dated: Dated, other: Dated | None) -> bool:
    return other is None or (dated.log_ratio >= _CLEAR and dated.latest < other.earliest)


def _slack(chosen: Chosen) -> float:
    """Return how far an edge of the window after may be from the change itself, seconds."""
    if chosen.spike is not None:
        return _SLACK_BINS * chosen.spike.bin_s
    return max(_SLACK * chosen.after.seconds, _MIN_SLACK_S)


def state_at_the_end(
    moved: Sequence[Moved], chosen: Chosen, began: float, incidents: Sequence[Incident],
    last: float,
) -> tuple[State | None, float | None, int | None]:  # fmt: skip
    """Decide whether the incident is over at the end of the data.

    It is over only if that is shown: later requests differ from those of the incident beyond
    chance and are nearer to those before, by what moved most clearly, and nothing else that moved
    still shows. With too few later requests it is open. `began` and `last` are the beginning of
    the incident and the end of the data, unix seconds.

    Returns:
        The state; when it ended, or may have ended; and, if that is open, the number of requests
        since then.
    """
    if not moved:
        return None, None, None
    first, metrics = moved[0], {one.metric for one in moved}
    related = [one for one in incidents
               if (one.direction == "up") is first.up and one.metric in metrics]  # fmt: skip
    there = overlapping(related, chosen.after)
    state: State = "ongoing"
    if any(one.began_before for one in there):
        state, began = "began_before_the_data", min(began, *(one.start for one in there))
    ends = [one.end for one in there if one.metric == first.metric] or [
        *(one.end for one in there), *([chosen.spike.end] if chosen.spike and not there else [])
    ]  # fmt: skip
    if None in ends:
        return state, None, None
    found_end = max((end for end in ends if end is not None), default=None)
    again = [one.start for one in related
             if one not in there and one.start >= (found_end or last)]  # fmt: skip
    until = min(again, default=last)
    end = _date_end(first, chosen, began, found_end, until)
    if end is None:
        return state, None, None
    incident, later = Window(began, end), Window(end, until)
    states = [
        _state_by(one, chosen.before, incident, later, clearest=one is first) for one in moved
    ]
    if "ongoing" not in states and states[0] == "over":
        return ("over" if state == "ongoing" else state), end, None
    if "ongoing" not in states and state == "ongoing":
        return "not_known", end, round(first.count_in(later)[1])
    return state, None, None


def _date_end(
    one: Moved, chosen: Chosen, began: float, found_end: float | None, until: float
) -> float | None:
    """Return from when fewer requests show the change again; `None` = they do not become fewer.

    It is about at the end that a search found (`found_end`), or later: if few requests show the
    change, a search may have cut it short.
    """
    inside = (one.t >= began) & (one.t < until)
    low = began
    if found_end is not None:
        low = max(found_end - min(_slack(chosen), _SLACK * (found_end - began)), began)
    back = date_change(one.t[inside], ~one.shows[inside], low, until)
    return found_end if back is None else back.best


def _state_by(
    one: Moved, before: Window, incident: Window, later: Window, *, clearest: bool
) -> State:
    """Decide by one thing that moved whether the incident is over.

    By the `clearest` one it is ongoing unless shown to be over or open. By any other it is open,
    unless it is shown to be ongoing.
    """
    inside = (one.t >= incident.start) & (one.t < incident.end)
    (k0, n0), (k1, n1), (k2, n2) = (one.count_in(span) for span in (before, incident, later))
    if not n0 or not n1 or not n2:
        return "ongoing" if clearest else "not_known"
    usual, level = k0 / n0, k1 / n1
    design = clustered(one.t[inside], one.shows[inside], remembers=True)
    k, n = k2 / design, n2 / design
    way = (k2 / n2 - usual) / (level - usual) if level > usual else 1.0
    left = way > _LEFT and more_than(k2, n2, k0, n0) < _STILL_P
    if not clearest:
        return "ongoing" if left and way > 1 - _NEAR else "not_known"
    if left or more_than(n - k, n, n1 - k1, n1) >= _ENDED_P:
        return "ongoing"
    near = way <= _NEAR and share_bounds(k, n)[1] < (usual + level) / 2
    return "over" if near and n2 >= _MIN_LATER else "not_known"
