"""Search the rows for stretches that stand out, windows to compare, and earlier days alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from typing import Final

import numpy as np

from llmtrace.dataset.case import Case, Window
from llmtrace.dataset.columns import Columns
from llmtrace.dataset.rows_in_order import thinned
from llmtrace.display.summary_tables import time_span
from llmtrace.triage.attribution.components import Values, values
from llmtrace.triage.comparison.earlier_days import alike_day
from llmtrace.triage.comparison.outcomes import ENDINGS, FOUND
from llmtrace.triage.comparison.p95_change import CERTAIN, LEAST, MIN_COUNT
from llmtrace.triage.over_time import Incident
from llmtrace.triage.result import Metric, Q
from llmtrace.triage.windows.all_stretches import find_all, overlapping
from llmtrace.triage.windows.bins import max_bins
from llmtrace.triage.windows.candidates import TRAFFIC, candidates
from llmtrace.triage.windows.choose import (
    TRUSTED_SEARCH,
    Chosen,
    choose,
    choose_at,
    splits_of,
    windows_of,
)
from llmtrace.triage.windows.highest_stretch import SURE_P
from llmtrace.triage.windows.same_work import Series, searched_series
from llmtrace.triage.windows.unrecorded import pauses

_MAX_ROWS: Final = 20_000  # of a window, to see whether it explains anything
# In place of `CERTAIN` and `LEAST`, if the windows were chosen among thousands.
_CERTAIN_IF_SEARCHED: Final = 1e-6
_MIN_CHANGE_IF_SEARCHED: Final = 0.2


@dataclass(frozen=True, slots=True)
class Search:
    """The rows that were searched, and the windows chosen.

    Attributes:
        rows: that were searched, by start.
        values_of: returns a metric of these rows.
        span: the time that they cover.
        chosen: the windows.
        window_rows: the rows of the windows before and after.
        incidents: every stretch that stands out.
        alike_days: how many days ago the same hours were alike; `None` = they were not.
        series: returns the series in which a change of a metric is searched.
        gaps: times for which nothing was recorded.
    """

    rows: Columns
    values_of: Callable[[Metric], Values]
    span: Window
    chosen: Chosen
    window_rows: tuple[Columns, Columns]
    incidents: tuple[Incident, ...]
    alike_days: int | None
    series: Callable[[Metric], Sequence[Series]]
    gaps: Sequence[Window]

    @property
    def incidents_after(self) -> list[Incident]:
        """The incidents in the window after, the most certain first."""
        return overlapping(self.incidents, self.chosen.after)

    @property
    def p_value(self) -> float:
        """How often a search finds as much by chance; 0 = the windows are as good as given."""
        if not self.chosen.searched or self.chosen.alarm_share is not None:
            return 0.0
        rises = [one.p_value for one in self.incidents_after if one.direction == "up"]
        return 1.0 if self.chosen.spike is None else min(self.chosen.spike.p_value, *rises, 1.0)

    @property
    def is_sure(self) -> bool:
        """Whether to compare the windows as if given: they are, or the search was sure."""
        return self.p_value <= SURE_P

    @property
    def alarm(self) -> tuple[float, float]:
        """The allowed chance of a false alarm, and the least relative change that matters.

        Windows that a search found without being sure were chosen among thousands, so less is
        allowed.
        """
        if self.is_sure:
            return CERTAIN * (self.chosen.alarm_share or 1.0), LEAST
        certain = _CERTAIN_IF_SEARCHED
        if self.chosen.spike is not None:  # the clearest of so many stretches
            certain = max(certain, 2 * CERTAIN / max_bins(len(self.rows)) ** 2)
        return certain, _MIN_CHANGE_IF_SEARCHED

    @property
    def alarm_of_outcomes(self) -> float:
        """The allowed chance of a false alarm for failures, and for cancellations.

        Less is allowed if the windows were searched for and no stretch of them was found.
        """
        expected = not self.chosen.searched or any(
            one.metric in ENDINGS for one in self.incidents_after
        )
        certain = CERTAIN / 2 if expected else FOUND
        return min(certain, CERTAIN / 2 * (self.chosen.alarm_share or 1.0))

    def shows_rise(self, metric: Metric) -> bool:
        """Return whether the search surely found that a metric rose in the window after."""
        return self.chosen.spike is not None and any(
            one.metric == metric and one.direction == "up" and one.p_value <= SURE_P
            for one in self.incidents_after
        )

    @property
    def found_nothing(self) -> bool:
        """Whether the windows were searched for, and no spike was found."""
        return self.chosen.searched and self.chosen.spike is None


def search_rows(
    rows: Columns,
    searched: Window | None,
    *,
    before: Window | None,
    after: Window | None,
    at: float | None,
    metric: Metric | None,
    gaps: Sequence[Window] = (),
) -> Search:
    """Find every stretch that stands out, and choose the windows; see `choose`.

    The rows may include earlier days, outside the time `searched`; `None` = all is searched.
    """
    inside = rows if searched is None else rows.within(searched.start, searched.end)
    span = _span(inside, searched)
    fewer = thinned(inside)

    @cache
    def values_of(name: Metric) -> Values:
        return values(inside, name)

    @cache
    def series(name: Metric) -> list[Series]:
        return list(searched_series(fewer, values(fewer, name)))

    incidents = find_all(inside, series, span, metric, gaps)
    choose_for = partial(
        choose, inside, series, before=before, after=after, metric=metric, incidents=incidents,
        all_starts=rows.start / 1e9, gaps=gaps,
    )  # fmt: skip
    if at is None or before is not None or after is not None:
        chosen = choose_for(at=at)
    else:
        chosen = choose_at(at, inside.start / 1e9, choose_for)
    alike = None
    there = overlapping(incidents, chosen.after)
    if before is None and there and (chosen.spike is not None or after is not None):
        alike = alike_day(rows, chosen.after, there)
    if alike is not None:
        chosen = replace(chosen, before=alike[1])
        incidents = tuple(replace(one, usual_then=one in there) for one in incidents)
    return Search(
        inside, values_of, span, chosen, _rows_of(rows, chosen), incidents,
        alike[0] if alike else None, series, gaps,
    )  # fmt: skip


def _rows_of(rows: Columns, chosen: Chosen) -> tuple[Columns, Columns]:
    before, after = (rows.within(one.start, one.end) for one in (chosen.before, chosen.after))
    return before, after


def with_all_rows(search: Search) -> Search:
    """Return a search with all rows of its windows, where `search_elsewhere` used a sample."""
    return replace(search, window_rows=_rows_of(search.rows, search.chosen))


def with_time_between(search: Search) -> Search | None:
    """Add the time between two given windows to the window after.

    The incident may have happened in between. `None` = the windows were searched for, or are
    the same hours of two days, or no request started in between.
    """
    before, after = search.chosen.before, search.chosen.after
    unrelated = search.chosen.searched or search.alike_days is not None
    if unrelated or not len(search.rows.within(before.end, after.start)):
        return None
    said = (f"the time between both windows, {time_span(before.end, after.start)}, "
            "explains more: it was added to the window after")  # fmt: skip
    chosen = replace(search.chosen, after=Window(before.end, after.end),
                     warnings=(*search.chosen.warnings, said))  # fmt: skip
    return with_all_rows(replace(search, chosen=chosen))


def search_elsewhere(search: Search, case: Case, *, nothing: bool) -> Iterator[Search]:
    """Yield other windows, dated by something other than metrics, the surest date first.

    If there are many rows, a search that found something is believed unless its windows show
    `nothing`, or something other than traffic surely dates another time. Traffic that is not sure
    is left out then, since it comes and goes. The time searched extends to the last signal, unless
    the case gives its end. Very many rows are sampled: see `with_all_rows`.
    """
    many = search.rows.n > TRUSTED_SEARCH
    trusted = many and not nothing
    if not search.rows.n or search.alike_days is not None:
        return
    span = search.span
    if case.searched is None and len(case.signals):
        span = Window(span.start, max(span.end, float(case.signals.t.max()) + 1e-3))
    t = search.rows.start / 1e9
    found = candidates(
        search.rows, search.series, span=span, signals=case.signals, events=case.facts.events,
        gaps=search.gaps, pauses=(alone := pauses(t)),
    )  # fmt: skip
    left_out = [*search.gaps, *alone]
    dated = (windows_of(t, one, search.gaps if one.shown_by == TRAFFIC else left_out, span.end,
                        among=len(found))
             for one in found
             if (one.sure and one.shown_by != TRAFFIC if trusted else
                 one.sure or not (many and one.shown_by == TRAFFIC)))  # fmt: skip
    for chosen in chain(dated, () if trusted else splits_of(t, search.gaps)):
        before, after = (thinned(rows, _MAX_ROWS) for rows in _rows_of(search.rows, chosen))
        if before.n >= MIN_COUNT:
            yield replace(search, span=span, chosen=chosen, window_rows=(before, after))


def _span(rows: Columns, searched: Window | None) -> Window:
    """Return the time that the rows cover.

    If an end is given, that is until a p95 of e2e before it, unless a later request is known: of
    the last requests, some have not ended yet.
    """
    if not len(rows):
        return searched or Window(0.0, 1.0)
    first, last = rows.start[0] / 1e9, rows.start[-1] / 1e9 + 1e-3
    if searched is None:
        return Window(first, last)
    e2e = rows.numbers["e2e_s"]
    known = e2e[~np.isnan(e2e)]
    p95_s = float(np.quantile(known, Q)) if len(known) else 0.0
    return Window(first, max(last, searched.end - p95_s))
