"""Search the rows: every stretch that stands out, the windows to compare, and earlier days."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np

from llmtrace.dataset.case import Window
from llmtrace.dataset.columns import Columns
from llmtrace.triage.attribution.components import Values, values
from llmtrace.triage.comparison.earlier_days import alike_day
from llmtrace.triage.comparison.outcomes import ENDINGS
from llmtrace.triage.over_time import Incident
from llmtrace.triage.result import Metric
from llmtrace.triage.rows_in_order import thinned
from llmtrace.triage.windows.all_stretches import find_all, overlapping
from llmtrace.triage.windows.choose import Chosen, choose
from llmtrace.triage.windows.highest_stretch import SURE
from llmtrace.triage.windows.same_work import Series, searched_series

_HIGH: Final = 0.95


@dataclass(frozen=True, slots=True)
class Look:
    """What was searched and chosen.

    Attributes:
        rows: that were searched, by start.
        of: a metric of them.
        span: the time they show.
        chosen: the windows.
        whole: the rows of the windows before and after.
        incidents: every stretch that stands out.
        alike_days: how many days ago the same hours were alike; `None` = they were not.
    """

    rows: Columns
    of: Callable[[Metric], Values]
    span: Window
    chosen: Chosen
    whole: tuple[Columns, Columns]
    incidents: tuple[Incident, ...]
    alike_days: int | None

    @property
    def mine(self) -> list[Incident]:
        """The stretches in the window after, the most certain first."""
        return overlapping(self.incidents, self.chosen.after)

    @property
    def by_chance(self) -> float:
        """How often a search finds as much where nothing is; 0 = the windows were given."""
        if not self.chosen.searched:
            return 0.0
        found = [one.p_value for one in self.mine if one.direction == "up"]
        return 1.0 if self.chosen.found is None else min(self.chosen.found.p_value, *found, 1.0)

    def shows_rise(self, metric: Metric) -> bool:
        """Return whether the search has found beyond doubt that a metric rose in the window."""
        return self.chosen.found is not None and any(
            one.metric == metric and one.direction == "up" and one.p_value <= SURE
            for one in self.mine
        )

    @property
    def expects_failures(self) -> bool:
        """Whether these windows are known to differ in outcomes, if at all: found, or given."""
        return not self.chosen.searched or any(one.metric in ENDINGS for one in self.mine)

    @property
    def blind(self) -> bool:
        """Whether the windows were searched for, and nothing was found."""
        return self.chosen.searched and self.chosen.found is None


def look_at(
    rows: Columns,
    searched: Window | None,
    *,
    before: Window | None,
    after: Window | None,
    at: float | None,
    metric: Metric | None,
    gaps: Sequence[Window] = (),
) -> Look:
    """Search the rows and choose the windows."""
    mine = rows if searched is None else rows.within(searched.start, searched.end)

    @cache
    def of(name: Metric) -> Values:
        return values(mine, name)

    span = _span(mine, searched)
    fewer = thinned(mine)

    @cache
    def series(name: Metric) -> list[Series]:
        return list(searched_series(fewer, values(fewer, name)))

    incidents = find_all(mine, series, span, metric, gaps)
    chosen = choose(
        mine, series, before=before, after=after, at=at, metric=metric, incidents=incidents,
        every=rows.start / 1e9, gaps=gaps,
    )  # fmt: skip
    alike = None
    there = overlapping(incidents, chosen.after)
    if chosen.found is not None and before is None and there:
        alike = alike_day(rows, chosen.after, there)
    if alike is not None:
        chosen = replace(chosen, before=alike[1])
        incidents = tuple(replace(one, usual_then=one in there) for one in incidents)
    whole = (
        rows.within(chosen.before.start, chosen.before.end),
        rows.within(chosen.after.start, chosen.after.end),
    )
    return Look(mine, of, span, chosen, whole, incidents, alike[0] if alike else None)


def _span(rows: Columns, searched: Window | None) -> Window:
    """Return the time that the rows show: of the last requests some have not ended yet."""
    if not len(rows):
        return searched or Window(0.0, 1.0)
    first, last = rows.start[0] / 1e9, rows.start[-1] / 1e9 + 1e-3
    if searched is None:
        return Window(first, last)
    e2e = rows.numbers["e2e_s"]
    known = e2e[~np.isnan(e2e)]
    lasts = float(np.quantile(known, _HIGH)) if len(known) else 0.0
    return Window(first, max(last, searched.end - lasts))
