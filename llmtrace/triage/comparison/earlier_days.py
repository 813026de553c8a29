"""Compare an incident with the same hours of earlier days: a daily pattern is no incident."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from llmtrace.dataset.case import Window
from llmtrace.dataset.columns import Columns
from llmtrace.triage.attribution.components import METRICS
from llmtrace.triage.comparison.outcomes import ENDINGS, compare_outcomes
from llmtrace.triage.comparison.p95_change import LEAST, Compared, compare, measured
from llmtrace.triage.over_time import Incident
from llmtrace.triage.windows.choose import same_hours_earlier
from llmtrace.triage.windows.spike import TRAFFIC_RATIO

_FEWEST: Final = 20  # requests in those hours


def alike_day(
    rows: Columns, after: Window, incidents: Sequence[Incident]
) -> tuple[int, Window] | None:
    """Return how many days ago the same hours were alike, and those hours; `None` = never.

    They were alike if no metric of the incidents moved beyond chance since, none is slower and no
    more requests fail, and those hours have enough requests to show such a change.
    """
    mine = rows.within(after.start, after.end)
    for days, back in same_hours_earlier(after):
        then = rows.within(back.start, back.end)
        if len(then) < _FEWEST:
            continue
        sides, windows = (then, mine), (back, after)
        worse = compare_outcomes(*sides).significant or any(
            compare(measured(sides, windows, name)).change.rose for name in METRICS)  # fmt: skip
        if not worse and all(_alike(one, sides, windows) for one in incidents):
            return days, back
    return None


def _alike(one: Incident, sides: tuple[Columns, Columns], windows: tuple[Window, Window]) -> bool:
    """Return whether an incident's metric did not move between the hours then and now."""
    if one.metric == "traffic":
        then, now = (float(rows.weights.sum()) for rows in sides)
        return then / TRAFFIC_RATIO <= now <= then * TRAFFIC_RATIO
    if one.metric in ENDINGS:
        outcomes = compare_outcomes(*sides)
        return not (outcomes.significant if one.metric == "errors" else outcomes.gave_up)
    metric = next(name for name in METRICS if name == one.metric)
    found = compare(measured(sides, windows, metric))
    rose = (found.change.delta_s or 0.0) > 0
    if found.change.significant and rose is (one.direction == "up"):
        return False
    return _would_show(one, found)


def _would_show(one: Incident, found: Compared) -> bool:
    """Return whether a change as large as the incident would be seen, or does not matter."""
    if not one.usual or not one.level:
        return False
    change = max(one.level / one.usual, one.usual / one.level) - 1
    return change < LEAST or (found.visible is not None and found.visible <= change)
