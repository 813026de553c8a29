"""Add to a result when the incident began and ended, its impact, and events near the onset."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from llmtrace.dataset.case import Case, Window
from llmtrace.dataset.columns import Columns
from llmtrace.triage.attribution.components import METRICS, values
from llmtrace.triage.comparison.p95_change import LEAST, Compared, compare, measured
from llmtrace.triage.comparison.within_groups import of_kind
from llmtrace.triage.impact import impact_of, last_requests
from llmtrace.triage.near_events import events_near
from llmtrace.triage.over_time import Impact, Onset
from llmtrace.triage.result import NAMED, NOTHING_FOUND, Metric, Result
from llmtrace.triage.windows.changepoint import Dated
from llmtrace.triage.windows.moved import Moved, what_moved
from llmtrace.triage.windows.onset import date_onset, state_at_the_end
from llmtrace.triage.windows.ramp import date_ramp
from llmtrace.triage.windows.search_rows import Search

_NEARLY_ALL: Final = 0.9  # of what is slow beyond expectation


def with_onset_and_impact(
    result: Result, case: Case, search: Search, compared: Mapping[Metric, Compared], about: Metric
) -> Result:
    """Return the result with onset, state, end, impact and events near the onset."""
    data = Window(search.span.start, max(search.span.end, search.chosen.after.end))
    result = replace(result, incidents=search.incidents, data=data)
    if result.verdict in NOTHING_FOUND or search.alike_days is not None:
        return result
    moved = what_moved(*_requests_that_moved(search, result, compared))
    onset = date_onset(moved, search.chosen, search.incidents_after, _ramp(search, moved))
    onset = onset and replace(onset, gap_s=_longest_gap(search.rows, onset))
    began = onset.best if onset is not None else search.chosen.after.start
    last = max(search.span.end, search.chosen.after.end)
    state, back, since = state_at_the_end(moved, search.chosen, began, search.incidents, last)
    recovered = back if since is None else None
    incident, of = Window(began, recovered or last), search.values_of(about)
    impact = None
    if result.verdict != "improvement":
        impact = impact_of(
            search.rows, of, incident, compared[about].threshold, case.budget,
            gave_up="cancelled" in result.moved, usual_rate=_usual_rate(result),
        )  # fmt: skip
    size = last_requests(of, incident)
    if size and state == "ongoing" and moved[0].metric == about and _is_as_before(result, impact):
        state, back, since = "not_known", float(of.t[-size]), size
    return replace(
        result,
        onset=onset and replace(onset, end=recovered),
        state=state,
        recovered_at=recovered,
        quiet_since=None if since is None else back,
        requests_since=since,
        events=events_near(case, search.rows, search.span, began),
        impact=impact,
    )


def _longest_gap(rows: Columns, onset: Onset) -> float:
    """Return the longest time without a request in the interval of the onset, seconds."""
    t = np.clip(rows.start / 1e9, onset.earliest, onset.latest)
    return float(np.diff(t, append=onset.latest).max(initial=0.0))


def _is_as_before(result: Result, impact: Impact | None) -> bool:
    """Return whether the last requests are as fast as before, though it seems to last."""
    rose = result.significant and (result.delta_s or 0.0) > 0
    if impact is None or impact.now_s is None or result.before.p95 is None or not rose:
        return False
    return impact.now_s <= (1 + LEAST) * result.before.p95


def _requests_that_moved(
    search: Search, result: Result, compared: Mapping[Metric, Compared]
) -> tuple[Search, Result, Mapping[Metric, Compared]]:
    """Return what to date the change on: all requests, or the one kind that moved.

    If it is of one kind nearly alone, the others only hide when it began.
    """
    first = next((one for one in result.causes if one.status == "confirmed"), None)
    group = first.group if first is not None else {}
    group = result.cohorts[0].attributes if result.cohorts else group
    alone = any(one.excess_share >= _NEARLY_ALL for one in result.cohorts[:1])
    if (result.moved and not alone) or not group or result.verdict != "regression":
        return search, result, compared
    rows = of_kind(search.rows, group)
    sides = (of_kind(search.window_rows[0], group), of_kind(search.window_rows[1], group))
    windows = (search.chosen.before, search.chosen.after)
    of_group = {name: compare(measured(sides, windows, name)) for name in METRICS}
    rose = [name for name, one in of_group.items() if one.change.rose]
    if result.moved and not rose:
        return search, result, compared
    mine = replace(search, rows=rows, values_of=lambda name: values(rows, name), incidents=())
    return mine, replace(result, moved=tuple(rose)), of_group


def _usual_rate(result: Result) -> float | None:
    """Return the requests per second before, if some are lost now; `None` = none are lost.

    Clients that wait longer send fewer requests; those are not lost.
    """
    lost = any(one.id == "traffic_lost" and one.status in NAMED for one in result.causes)
    before, after = (result.load[name].requests_per_s or 0.0 for name in ("before", "after"))
    return before if after < before and (lost or result.verdict == "traffic") else None


def _ramp(search: Search, moved: Sequence[Moved]) -> Dated | None:
    """Return when the metric that moved began to rise, if it did so gradually."""
    for one in search.incidents_after:
        if moved and one.metric == moved[0].metric and one.shape == "ramp":
            mine = next(search.values_of(name) for name in METRICS if name == one.metric)
            before = mine.t < (one.end or math.inf)
            return date_ramp(mine.t[before], mine.value[before])
    return None
