"""Search the rows: every stretch that stands out, the windows to compare, and earlier days."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from typing import Final

import numpy as np

from llmtrace.dataset.case import Case, Window
from llmtrace.dataset.columns import Columns
from llmtrace.display.summary_tables import time_span
from llmtrace.triage.attribution.components import Values, values
from llmtrace.triage.comparison.earlier_days import alike_day
from llmtrace.triage.comparison.outcomes import ENDINGS, FOUND
from llmtrace.triage.comparison.p95_change import CERTAIN, LEAST, MIN_COUNT
from llmtrace.triage.over_time import Incident
from llmtrace.triage.result import Metric, Q
from llmtrace.triage.rows_in_order import thinned
from llmtrace.triage.windows.all_stretches import find_all, overlapping
from llmtrace.triage.windows.bins import max_bins
from llmtrace.triage.windows.candidates import TRAFFIC, candidates
from llmtrace.triage.windows.choose import FEW, Chosen, around, choose, choose_at, since_each_part
from llmtrace.triage.windows.highest_stretch import SURE
from llmtrace.triage.windows.same_work import Series, searched_series

_ENOUGH: Final = 20_000  # rows of a window, to see whether it explains anything
# As CERTAIN and LEAST, where windows were chosen among thousands.
_FOUND: Final = (1e-6, 0.2)


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
        series: in which a change of a metric is searched.
        gaps: times of which nothing was recorded.
    """

    rows: Columns
    of: Callable[[Metric], Values]
    span: Window
    chosen: Chosen
    whole: tuple[Columns, Columns]
    incidents: tuple[Incident, ...]
    alike_days: int | None
    series: Callable[[Metric], Sequence[Series]]
    gaps: Sequence[Window]

    @property
    def mine(self) -> list[Incident]:
        """The stretches in the window after, the most certain first."""
        return overlapping(self.incidents, self.chosen.after)

    @property
    def by_chance(self) -> float:
        """How often a search finds as much where nothing is; 0 = the windows are as if given."""
        if not self.chosen.searched or self.chosen.share is not None:
            return 0.0
        found = [one.p_value for one in self.mine if one.direction == "up"]
        return 1.0 if self.chosen.found is None else min(self.chosen.found.p_value, *found, 1.0)

    @property
    def alarm(self) -> tuple[float, float]:
        """The chance of a false alarm to stay below, and the least change that matters.

        Windows that were found, and are not sure, were chosen among thousands.
        """
        if self.by_chance <= SURE:
            return CERTAIN * (self.chosen.share or 1.0), LEAST
        certain, least = _FOUND
        if self.chosen.found is not None:  # the clearest of so many stretches
            certain = max(certain, 2 * CERTAIN / max_bins(len(self.rows)) ** 2)
        return certain, least

    def shows_rise(self, metric: Metric) -> bool:
        """Return whether the search has found beyond doubt that a metric rose in the window."""
        return self.chosen.found is not None and any(
            one.metric == metric and one.direction == "up" and one.p_value <= SURE
            for one in self.mine
        )

    @property
    def alarm_of_outcomes(self) -> float:
        """The same of failures, and of cancellations: less where none was expected to be found."""
        expected = not self.chosen.searched or any(one.metric in ENDINGS for one in self.mine)
        certain = CERTAIN / 2 if expected else FOUND
        return min(certain, CERTAIN / 2 * (self.chosen.share or 1.0))

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
    find = partial(
        choose, mine, series, before=before, after=after, metric=metric, incidents=incidents,
        every=rows.start / 1e9, gaps=gaps,
    )  # fmt: skip
    if at is None or before is not None or after is not None:
        chosen = find(at=at)
    else:
        chosen = choose_at(at, mine.start / 1e9, find)
    alike = None
    there = overlapping(incidents, chosen.after)
    if chosen.found is not None and before is None and there:
        alike = alike_day(rows, chosen.after, there)
    if alike is not None:
        chosen = replace(chosen, before=alike[1])
        incidents = tuple(replace(one, usual_then=one in there) for one in incidents)
    return Look(
        mine, of, span, chosen, _rows_of(rows, chosen), incidents, alike[0] if alike else None,
        series, gaps,
    )  # fmt: skip


def _rows_of(rows: Columns, chosen: Chosen) -> tuple[Columns, Columns]:
    before, after = (rows.within(one.start, one.end) for one in (chosen.before, chosen.after))
    return before, after


def in_full(look: Look) -> Look:
    """Return a look at all rows of its windows."""
    return replace(look, whole=_rows_of(look.rows, look.chosen))


def look_between(look: Look) -> Look | None:
    """Return a look at all that follows the window before, where another was given for after.

    What happened in between may be what it was about. `None` = no request came then.
    """
    before, after = look.chosen.before, look.chosen.after
    if look.chosen.searched or not len(look.rows.within(before.end, after.start)):
        return None
    said = (f"the time between both windows, {time_span(before.end, after.start)}, "
            "explains more: it is part of the window after")  # fmt: skip
    chosen = replace(look.chosen, after=Window(before.end, after.end),
                     warnings=(*look.chosen.warnings, said))  # fmt: skip
    return replace(look, chosen=chosen, whole=_rows_of(look.rows, chosen))


def look_elsewhere(look: Look, case: Case, *, nothing: bool) -> Iterator[Look]:
    """Yield looks at what else than the metrics dates a change, the surest date first.

    A search of many rows is to be believed that found something, unless that is `nothing` where
    windows are compared; and so it is of traffic that is not sure: it comes and goes. Where it
    found nothing, other dates that are sure are looked at. Without an end of the time searched, it
    is as long as anything was recorded. Of very many rows these are a part: see `in_full`.
    """
    many = look.rows.n > FEW
    if (many and not nothing) or not look.rows.n or look.alike_days is not None:
        return
    span = look.span
    if case.searched is None and len(case.signals):
        span = Window(span.start, max(span.end, float(case.signals.t.max()) + 1e-3))
    t = look.rows.start / 1e9
    found = candidates(
        look.rows, look.series, span=span, signals=case.signals, events=case.facts.events,
        gaps=look.gaps,
    )  # fmt: skip
    dated = (one for one in found if not many or one.by != TRAFFIC or one.sure)
    chosen = (around(t, one, look.gaps, span.end, among=len(found)) for one in dated)
    for one in chain(chosen, since_each_part(t, look.gaps)):
        before, after = (thinned(rows, _ENOUGH) for rows in _rows_of(look.rows, one))
        if before.n >= MIN_COUNT:
            yield replace(look, span=span, chosen=one, whole=(before, after))


def _span(rows: Columns, searched: Window | None) -> Window:
    """Return the time that the rows show: of the last requests some have not ended yet."""
    if not len(rows):
        return searched or Window(0.0, 1.0)
    first, last = rows.start[0] / 1e9, rows.start[-1] / 1e9 + 1e-3
    if searched is None:
        return Window(first, last)
    e2e = rows.numbers["e2e_s"]
    known = e2e[~np.isnan(e2e)]
    lasts = float(np.quantile(known, Q)) if len(known) else 0.0
    return Window(first, max(last, searched.end - lasts))
