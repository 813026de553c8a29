"""Add to a result when the incident began and ended, its impact and events near it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from llmtrace.dataset.case import Case, Window
from llmtrace.triage.comparison.p95_change import Compared
from llmtrace.triage.impact import impact_of
from llmtrace.triage.near_events import events_near
from llmtrace.triage.result import NOTHING_FOUND, Metric, Result
from llmtrace.triage.windows.onset import date_onset, state_of
from llmtrace.triage.windows.search_rows import Look


def with_onset_and_impact(
    result: Result, case: Case, look: Look, compared: Mapping[Metric, Compared], about: Metric
) -> Result:
    """Return the result with onset, state, end, impact and events near the onset."""
    result = replace(result, incidents=look.incidents)
    if result.verdict in NOTHING_FOUND or look.alike_days is not None:
        return result
    one, threshold = look.of(about), compared[about].threshold
    onset = None
    if result.significant or look.chosen.found is not None:
        onset = date_onset(
            look.rows, look.of, compared, about, chosen=look.chosen, incidents=look.incidents
        )
    state, recovered = state_of(one, threshold, look.chosen, onset, look.incidents)
    began = onset.best if onset is not None else look.chosen.after.start
    ends = recovered or max(look.span.end, look.chosen.after.end)
    return replace(
        result,
        onset=onset,
        state=state,
        recovered_at=recovered,
        events=events_near(case, look.rows, look.span, began),
        impact=impact_of(look.rows, one, Window(began, ends), threshold, case.budget)
        if result.verdict != "improvement"
        else None,
    )
