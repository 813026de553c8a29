"""Date when the change began, and decide whether it is over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from llmtrace.dataset.case import Window
from llmtrace.stats.arrays import Floats, Mask
from llmtrace.stats.significance import clustered, more_than, share_bounds
from llmtrace.triage.over_time import Incident, Onset, State
from llmtrace.triage.windows.all_stretches import overlapping
from llmtrace.triage.windows.changepoint import Dated, date_change
from llmtrace.triage.windows.choose import Chosen
from llmtrace.triage.windows.moved import Moved

_SLACK_S: Final = 60.0
_SLACK: Final = 0.1  # of the window after
_BINS: Final = 3
_CLEAR: Final = 10.0  # of a log ratio of likelihoods, from which what moved earlier did so
_AT_ONCE: Final = ("ttft", "errors", "cancelled", "traffic")
_LAST: Final = 20  # requests, from which what followed is believed
_ENDED: Final = 1e-3  # chance of as few that show it, if it went on
_STILL: Final = 1e-3  # chance of as many that show it, if nothing were left of it
_NEAR: Final = 0.25  # of the way from the share before to that of the incident
_LEFT: Final = 0.1  # of it, from which what is beyond chance is left of it


def date_onset(
    moved: Sequence[Moved], chosen: Chosen, there: Sequence[Incident], ramp: Dated | None
) -> Onset | None:
    """Date the change on what moved first, or as the `ramp` it is; `None` = no change.

    That is what moved most clearly, unless something else surely moved before it: its interval
    ends before the other's likeliest date. What fails at once, and what is slow because of it, do
    not begin together.
    """
    before, after, slack = chosen.before, chosen.after, _slack(chosen)
    first: Onset | None = None
    for one in moved:
        starts = [after.start, *(found.start for found in there if found.metric == one.metric
                                 and before.start < found.start < after.end)]  # fmt: skip
        low, high = min(starts) - slack, min(max(starts) + slack, after.end)
        span = Window(min(before.start, low), after.end)
        if chosen.found is not None:  # the stretch found may be only the clearest part
            low = span.start
        dated = ramp or _date(one, span, (low, high))
        sure = one.clear >= _CLEAR and one.metric in _AT_ONCE
        if dated and (first is None or (sure and dated.latest < first.best)):
            first = Onset(earliest=dated.earliest, best=dated.best, latest=dated.latest, end=None,
                          metric=one.metric)  # fmt: skip
    return first


def _date(one: Moved, span: Window, within: tuple[float, float]) -> Dated | None:
    """Date a change by requests of a span, somewhere within two times.

    A change while a request runs may show in it or not, so it was between the date by when
    requests began and the date by when each was known to show it. The likeliest is that of the two
    by which requests separate more clearly. A gradual rise crosses lower bounds first.
    """
    inside = (one.t >= span.start) & (one.t < span.end)
    t, known = one.t[inside], one.known[inside]
    begun = _by(t, one.shows[inside], within)
    if begun is None:
        return None
    for lower in one.sooner:
        first = _by(t, lower[inside], within, ahead_of=begun)
        if first is not None:
            begun = replace(first, latest=begun.latest)
            break
    order = np.argsort(known, kind="stable")
    longest = within[0], within[1] + float((known - t).max())
    ended = _by(known[order], one.shows[inside][order], longest) or begun
    best = ended.best if ended.clear > begun.clear else begun.best
    earliest, latest = min(begun.earliest, ended.earliest), max(begun.latest, ended.latest)
    return Dated(earliest, best, latest)


def _by(
    t: Floats, shows: Mask, within: tuple[float, float], ahead_of: Dated | None = None
) -> Dated | None:
    """Date a change by requests that come in clusters; `None` too if it is not `ahead_of` one.

    Clusters only widen the interval: without them it is soon known that it is not ahead.
    """
    dated = date_change(t, shows, *within)
    if dated is None or not _ahead(dated, ahead_of):
        return None
    design = clustered(t, shows, change=dated.best, remembers=True)
    dated = date_change(t, shows, *within, design)
    return dated if dated is not None and _ahead(dated, ahead_of) else None


def _ahead(dated: Dated, other: Dated | None) -> bool:
    return other is None or (dated.clear >= _CLEAR and dated.latest < other.earliest)


def _slack(chosen: Chosen) -> float:
    """Return how far from an edge of the window after the change itself may be."""
    if chosen.found is not None:
        return _BINS * chosen.found.bin_s
    return max(_SLACK * chosen.after.seconds, _SLACK_S)


def course(
    moved: Sequence[Moved], chosen: Chosen, began: float, incidents: Sequence[Incident],
    last: float,
) -> tuple[State | None, float | None, int | None]:  # fmt: skip
    """Return whether it is over at the end of the data, since when, and for how long perhaps.

    Over is what is shown to be: the requests since then differ from those of the incident beyond
    chance, and are shown to be nearer to those before, by what moved most clearly; and nothing
    else that moved is still there. Too few of them leave it open.
    """
    if not moved:
        return None, None, None
    first = moved[0]
    mine = [one for one in incidents if (one.direction == "up") is first.up and one.metric
            in {each.metric for each in moved}]  # fmt: skip
    there = overlapping(mine, chosen.after)
    state: State = "ongoing"
    if any(one.began_before for one in there):
        state, began = "began_before_the_data", min(began, *(one.start for one in there))
    ends = [one.end for one in there if one.metric == first.metric] or [
        *(one.end for one in there), *([chosen.found.end] if chosen.found and not there else [])
    ]  # fmt: skip
    if None in ends:
        return state, None, None
    claimed = max((end for end in ends if end is not None), default=None)
    again = [one.start for one in mine if one not in there and one.start >= (claimed or last)]
    until = min(again, default=last)
    end = _end(first, chosen, began, claimed, until)
    if end is None:
        return state, None, None
    spans = Window(began, end), Window(end, until)
    judged = [_judged(one, chosen.before, spans, sure=one is first) for one in moved]
    if judged[0] == "over" and "ongoing" not in judged:
        return ("over" if state == "ongoing" else state), end, None
    if state == "ongoing" and judged[0] != "ongoing" and "ongoing" not in judged[1:]:
        return "not_known", end, round(first.of(spans[1])[1])
    return state, None, None


def _end(
    one: Moved, chosen: Chosen, began: float, claimed: float | None, until: float
) -> float | None:
    """Return when fewer requests show it again: at the end that a search found, or later.

    A search may have cut short what few requests show.
    """
    inside = (one.t >= began) & (one.t < until)
    low = began
    if claimed is not None:
        low = max(claimed - min(_slack(chosen), _SLACK * (claimed - began)), began)
    back = date_change(one.t[inside], ~one.shows[inside], low, until)
    return claimed if back is None else back.best


def _judged(one: Moved, before: Window, spans: tuple[Window, Window], *, sure: bool) -> State:
    """Judge by one that moved whether it is over, by the spans of the incident and what followed.

    It takes proof that it is over, to be `sure`, or else that it is not.
    """
    inside = (one.t >= spans[0].start) & (one.t < spans[0].end)
    (k0, n0), (k1, n1), (k2, n2) = (one.of(span) for span in (before, *spans))
    if not n0 or not n1 or not n2:
        return "ongoing" if sure else "not_known"
    usual, level = k0 / n0, k1 / n1
    design = clustered(one.t[inside], one.shows[inside], remembers=True)
    k, n = k2 / design, n2 / design
    way = (k2 / n2 - usual) / (level - usual) if level > usual else 1.0
    left = way > _LEFT and more_than(k2, n2, k0, n0) < _STILL
    if not sure:
        return "ongoing" if left and way > 1 - _NEAR else "not_known"
    if left or more_than(n - k, n, n1 - k1, n1) >= _ENDED:
        return "ongoing"
    near = way <= _NEAR and share_bounds(k, n)[1] < (usual + level) / 2
    return "over" if near and n2 >= _LAST else "not_known"
