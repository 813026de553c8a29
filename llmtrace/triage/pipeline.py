"""Find out why a p95 moved: choose the windows to compare, analyse them, and build the result.

Rows and signals go in, a `Result` comes out. Nothing here reads a file, a clock or an unseeded
random number, so the same case gives the same result.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, cast

from llmtrace.core.errors import ConfigError
from llmtrace.dataset.case import Case, Window
from llmtrace.dataset.columns import Columns
from llmtrace.dataset.rows_in_order import in_order, thinned
from llmtrace.display.summary_tables import date_and_zone, time_span
from llmtrace.triage.analyse_windows import Analysis, Progress, analyse
from llmtrace.triage.attribution.components import METRICS, first_content
from llmtrace.triage.build_result import build_result
from llmtrace.triage.causes.scoring import LIKELY
from llmtrace.triage.comparison.p95_change import MIN_COUNT
from llmtrace.triage.comparison.within_groups import STAGED
from llmtrace.triage.evidence.changes import HALF
from llmtrace.triage.named_causes import OF_SEVERAL, of_a_burst, of_several_windows
from llmtrace.triage.onset_and_impact import with_onset_and_impact
from llmtrace.triage.report.naming import duration
from llmtrace.triage.result import NAMED, NOTHING_FOUND, OF_TRAFFIC, Metric, Result
from llmtrace.triage.verdict import Judged
from llmtrace.triage.windows.given import within_the_data
from llmtrace.triage.windows.search_rows import (
    Search,
    search_elsewhere,
    search_rows,
    with_all_rows,
    with_time_between,
)
from llmtrace.triage.windows.spike import TRAFFIC_RATIO
from llmtrace.triage.windows.unrecorded import recording_gaps

_MAX_DRAWS: Final = 10_000
_MAX_OVERLAP: Final = 0.1  # of the shorter of two given windows
_STRONGEST: Final = "Of several windows compared, these have the strongest evidence for a cause."
_NOT_WORSE: Final = NOTHING_FOUND | {"improvement"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to triage.

    Attributes:
        before, after: windows to compare, instead of the case's; `None` = find them.
        at: a time inside the incident, unix seconds.
        metric: `ttft`, `tpot`, `e2e` or `render`; `None` = whichever moved.
        bootstrap: how often to resample for intervals; 0 = no intervals.
        seed: for resampling.
    """

    before: Window | None = None
    after: Window | None = None
    at: float | None = None
    metric: Metric | None = None
    bootstrap: int = 100
    seed: int = 1

    def __post_init__(self) -> None:
        if self.metric is not None and self.metric not in METRICS:
            raise ConfigError(f"metric: {self.metric!r} is not one of {', '.join(METRICS)}")
        if not 0 <= self.bootstrap <= _MAX_DRAWS:
            raise ConfigError(f"bootstrap: {self.bootstrap!r} is not from 0 to {_MAX_DRAWS}")
        for name in ("before", "after"):
            window = getattr(self, name)
            if window is not None and not 0 < window.seconds < math.inf:
                raise ConfigError(f"{name}: {window} does not end after it starts")
        if self.before and self.after:
            begin = max(self.before.start, self.after.start)
            overlap = self.before.seconds_with(self.after)
            if overlap > _MAX_OVERLAP * min(self.before.seconds, self.after.seconds):
                raise ConfigError(
                    f"before and after overlap by {duration(overlap)}, from {date_and_zone(begin)}"
                )


# Analyses the windows of a search for a metric (`None` = whichever moved); the number = draws.
_Analyse = Callable[[Search, Metric | None, int], Analysis]


def triage(
    case: Case, settings: Settings | None = None, progress: Progress | None = None
) -> Result:
    """Find out why a p95 moved.

    Args:
        case: what happened.
        settings: what to look at; windows and metric that they leave open are the case's.
        progress: called with each step and the share done, 0 to 1.

    Returns:
        A result, whatever rows there are; if they are too few, it says so.
    """
    settings = _with_windows_of(case, settings or Settings())
    report = progress or (lambda _what, _share: None)
    report("sorting rows", 0.0)
    rows, duplicates = in_order(case.rows)
    found = _find(case, settings, rows, report)
    given = not found.search.chosen.searched and found.search.alike_days is None
    if given and not found.names_a_cause:
        found = _search_instead(case, settings, rows, report, found)
    intervals = found.spread is not None or not settings.bootstrap
    result = build_result(
        found, case, duplicates=duplicates, intervals=intervals, seed=settings.seed
    )
    result = with_onset_and_impact(
        result, case, found.search, found.comparison.compared, found.comparison.metric
    )
    report("done", 1.0)
    return result


def _with_windows_of(case: Case, settings: Settings) -> Settings:
    """Return settings with the windows and the metric of the case where they leave them open.

    Windows are checked again, since one may be from the settings and the other from the case.
    """
    return replace(
        settings,
        before=settings.before or case.before,
        after=settings.after or case.after,
        metric=settings.metric or cast("Metric | None", case.metric),
    )


def _find(
    case: Case, settings: Settings, rows: Columns, report: Progress, mostly: Window | None = None
) -> Analysis:
    """Choose the windows and analyse them; if they explain little, try others as well.

    With `mostly`, only others whose window after lies in it for the most part.
    """
    analyse_case = partial(analyse, case, seed=settings.seed, report=report)
    report("looking for the spike", 0.1)
    search = _search(case, settings, rows)
    report("comparing", 0.2)
    found = analyse_case(search, settings.metric, settings.bootstrap)
    blip = found.is_blip and settings.at is None
    # A cause that always has proof began at some other time, and varying load makes blips.
    if not found.explains or search.found_nothing or blip:
        widely = search.found_nothing or blip
        others = _others(case, found, settings, analyse_case, mostly, widely=widely)
        weighty = (one for one in others if not (blip and (one.is_blip or found.outweighs(one))))
        best = _best_of(weighty, found)
        if best is not None:
            same_windows = best.search is search  # then it is another metric of them
            again = analyse_case(
                search if same_windows else with_all_rows(best.search),
                best.comparison.metric if same_windows else settings.metric,
                settings.bootstrap,
            )
            sure = again.explains_as_one_of_several or again.is_possible_when_dated
            found = again if sure else _at_most_possible(again, found)
    return _limited_if_over(found) if settings.at is None else found


def _search(case: Case, settings: Settings, rows: Columns) -> Search:
    """Choose the windows that are not given."""
    before, after, odd = within_the_data(settings.before, settings.after, case)
    search = search_rows(
        first_content(rows), case.searched, before=before, after=after, at=settings.at,
        metric=settings.metric, gaps=recording_gaps(rows.start / 1e9, case.signals),
    )  # fmt: skip
    warnings = (*odd, *search.chosen.warnings)
    return replace(search, chosen=replace(search.chosen, warnings=warnings))


def _search_instead(
    case: Case, settings: Settings, rows: Columns, report: Progress, found: Analysis
) -> Analysis:
    """If given windows show nothing, return what a search finds in the time of the window after.

    Causes are then at most possible, since the windows were given for a reason.
    """
    free = replace(settings, before=None, after=None, at=None, bootstrap=0)
    given = found.search.chosen.after
    other = _find(case, free, thinned(rows), report, given)
    searched = other.search.chosen.after
    first = other.causes[0]
    explains = first.status in NAMED and first.score >= LIKELY and first.id != OF_SEVERAL
    explains = explains and (found.nothing_moved or not other.nothing_moved)
    if not explains or not _share_most(given, searched):
        return found
    if settings.bootstrap:
        free = replace(free, bootstrap=settings.bootstrap)
        other = _find(case, free, thinned(rows), report, given)
    said = (f"the given windows show nothing: a search chose "
            f"{time_span(searched.start, searched.end)} instead")  # fmt: skip
    chosen = other.search.chosen
    chosen = replace(chosen, warnings=(said, *chosen.warnings))
    return _at_most_possible(replace(other, search=replace(other.search, chosen=chosen)), found)


def _limited_if_over(found: Analysis) -> Analysis:
    """Make causes of load at most possible, if a search found an incident that is over.

    Only if far more requests came in it, or it is a small part of all: load that varies does that.
    """
    before, after = (
        found.comparison.load[name].requests_per_s or 0.0 for name in ("before", "after")
    )
    if found.is_blip or (found.is_over and after >= TRAFFIC_RATIO * before):
        return replace(found, causes=of_a_burst(found.causes))
    return found


def _others(
    case: Case, found: Analysis, settings: Settings, analyse_case: _Analyse,
    mostly: Window | None, *, widely: bool,
) -> Iterator[Analysis]:  # fmt: skip
    """Yield other analyses that may explain it: of another metric that rose, or of other times.

    Given windows stay, extended by the time between them. `widely` = what the search found says
    little, so all other times are tried.
    """
    if settings.metric is None:
        for name in STAGED:
            comparison = found.comparison
            if name != comparison.metric and comparison.compared[name].change.rose:
                yield analyse_case(found.search, name, 0)
    between = with_time_between(found.search)
    if between is not None:
        yield analyse_case(between, settings.metric, 0)
    if settings.before is not None or settings.after is not None:
        return
    nothing = found.nothing_moved or widely
    for search in search_elsewhere(found.search, case, nothing=nothing):
        if mostly is not None and not _share_most(mostly, search.chosen.after):
            continue
        if settings.at is None or widely or search.chosen.is_near(settings.at):
            yield analyse_case(search, settings.metric, 0)


def _share_most(one: Window, other: Window) -> bool:
    """Return whether windows share at least half of the shorter one."""
    return one.seconds_with(other) >= HALF * min(one.seconds, other.seconds)


def _best_of(others: Iterable[Analysis], found: Analysis) -> Analysis | None:
    """Return the other analysis to report instead of what was found; `None` = none is better.

    The first that explains the incident; if that may be chance, only if no cause was found of what
    moved. Else, if nothing got worse in what was found or it has no cause, the first that surely
    is dated and has a possible cause. Else, if no cause was found, or the search found one where
    nothing moved, the one with the strongest evidence, if something moved or the cause would be
    likely in given windows: the one that most of the others name, too.
    """
    dated, possible = None, list[tuple[bool, Analysis]]()
    not_worse = found.judged.verdict in _NOT_WORSE
    moved_and_named = found.names_a_cause and not found.nothing_moved
    for one in others:
        first = one.causes[0]
        may_be_chance = not one.search.chosen.dated and first.status != "confirmed"
        if one.explains_as_one_of_several and not (may_be_chance and moved_and_named):
            return one
        if first.status not in NAMED:
            continue
        if dated is None and one.is_possible_when_dated:
            dated = one
        # Without rows after, the data may just have ended. One of several replicas stands out on
        # any day, and traffic varies.
        shows = one.search.window_rows[1].n >= MIN_COUNT and first.id != OF_SEVERAL
        moved = not one.nothing_moved
        slower = moved and first.id not in OF_TRAFFIC
        enough = slower or (moved and one.search.chosen.searched) or (
            not_worse and (moved or first.score >= LIKELY))  # fmt: skip
        if shows and enough:
            possible.append((slower, one))
    if dated is not None and (not_worse or found.came_again or not found.names_a_cause):
        return dated
    if found.names_a_cause:
        if not (found.nothing_moved and found.search.chosen.searched):
            return None
        possible.append((False, found))
    named = Counter(one.causes[0].id for _, one in possible)
    best = max(
        possible,
        key=lambda one: (one[0], named[one[1].causes[0].id], one[1].causes[0].score),
        default=(False, found),
    )[1]
    return None if best is found else best


def _at_most_possible(other: Analysis, found: Analysis) -> Analysis:
    """Return another analysis with its causes at most possible: one of several pairs of windows.

    If nothing moved in what was found first, the verdict is that there are too few data.
    """
    verdict = "not_enough_data" if found.nothing_moved else other.judged.verdict
    judged = Judged(verdict, f"{other.judged.reason} {_STRONGEST}")
    return replace(other, judged=judged, causes=of_several_windows(other.causes))
