"""Build the result of a triage from the analysis of the windows that were chosen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from llmtrace.dataset.case import Case, Window
from llmtrace.display.summary_tables import date_and_zone, time_span
from llmtrace.stats.quantiles import least_values
from llmtrace.triage.analyse_windows import Analysis
from llmtrace.triage.attribution.components import METRICS, Values
from llmtrace.triage.attribution.exemplars import exemplars
from llmtrace.triage.attribution.result_parts import anatomy_of, contributions_of, estimates_of
from llmtrace.triage.comparison.which_moved import all_moved
from llmtrace.triage.mix_growth import growth_of
from llmtrace.triage.quality import quality_of
from llmtrace.triage.report.naming import number_of, utc
from llmtrace.triage.result import Q, Quality, Result
from llmtrace.triage.windows.search_rows import Search

_BY_WORK: Final = ("regression", "improvement", "drift")  # verdicts that token counts may change
_MARGIN: Final = 1.1  # of the length of a window before that is proposed


def build_result(
    found: Analysis, case: Case, *, duplicates: int, intervals: bool, seed: int
) -> Result:
    """Build the result; `with_onset_and_impact` then adds the course over time.

    `intervals` = they were computed, or not requested.
    """
    comparison, parts, judged = found.comparison, found.divided, found.judged
    change, compared = comparison.change, comparison.of_metric
    both = comparison.values(comparison.metric)
    p95s = (change.before.p95, change.after.p95)
    quality = _quality(found, case, duplicates=duplicates, intervals=intervals)
    return Result(
        verdict=judged.verdict,
        reason=judged.reason,
        metric=comparison.metric if change.before.n or change.after.n else None,
        quantile=Q,
        before=change.before,
        after=change.after,
        delta_s=change.delta_s,
        significant=change.significant,
        contributions=contributions_of(
            change.delta_s, parts.found, found.spread, significant=comparison.has_p95
        ),
        cohorts=found.cohorts,
        localised=bool(found.cohorts),
        causes=found.causes,
        exemplars=exemplars(comparison.rows, both, *p95s),
        quality=quality,
        changes=tuple(
            comparison.compared[name].change
            for name in METRICS
            if any(map(len, comparison.values(name)))
        ),
        moved=all_moved(comparison.compared, comparison.outcomes),
        outcomes=comparison.outcomes,
        load=comparison.load,
        anatomy=anatomy_of(parts, *p95s),
        estimates=estimates_of(comparison.rows, seed),
        smallest_visible=compared.visible,
        smallest_visible_share=compared.visible_share,
        settle=_settle(found, sized="mix" not in quality.unreported),
        grew=growth_of(comparison.rows, both, max(compared.design)),
    )


def _quality(found: Analysis, case: Case, *, duplicates: int, intervals: bool) -> Quality:
    search, comparison = found.search, found.comparison
    return quality_of(
        comparison.values(comparison.metric), comparison.of_metric, found.divided,
        rows=comparison.rows,
        there=sum(map(len, search.window_rows)),
        stands_for=float(sum(rows.weights.sum() for rows in search.window_rows)),
        duplicates=duplicates,
        warnings=(*([case.note] if case.note else []), *search.chosen.warnings,
                  *_without_rows(search), *case.warnings),
        intervals=intervals,
    )  # fmt: skip


def _without_rows(search: Search) -> Iterator[str]:
    """Yield where the rows are, for each window in which no request starts."""
    windows = zip(("before", "after"), (search.chosen.before, search.chosen.after), strict=True)
    for (name, window), rows in zip(windows, search.window_rows, strict=True):
        if not len(rows) and len(search.rows):
            first, last = (date_and_zone(search.rows.start[i] / 1e9) for i in (0, -1))
            span = time_span(window.start, window.end)
            where = f"in the window {name} ({span})"
            yield f"no request starts {where}: they start from {first} to {last}"


def _settle(found: Analysis, *, sized: bool) -> tuple[str, ...]:
    """Say which data would settle what the verdict leaves open.

    `sized` = rows have token counts.
    """
    verdict, comparison = found.judged.verdict, found.comparison
    if verdict == "not_enough_data":
        before, after = comparison.values(comparison.metric)
        earlier = _longer_before(before, comparison.windows, found.search.span.start)
        return tuple(
            f"{number_of(least_values(Q) - len(one), 'more request')} {when} that report "
            f"{one.metric}{how}"
            for when, one, how in (("before", before, earlier), ("after", after, ""))
            if len(one) < least_values(Q)
        )
    if verdict in _BY_WORK and not sized:
        return ("token counts of requests, to distinguish more work from slower work",)
    if verdict == "new_workload":
        return ("a window before in which the same kinds of request were made",)
    return ()


def _longer_before(values: Values, windows: tuple[Window, Window], first: float) -> str:
    """Say how to compare with a longer window before that has enough requests, at the same rate.

    `values` are those before; `first` is the start of the data, unix seconds.
    """
    before, after = windows
    if not len(values):
        return ": give a time with requests by `--before START/END`"
    start = before.end - _MARGIN * before.seconds * least_values(Q) / len(values)
    if start < first:
        return ": no earlier data were read"
    span, span_after = (f"{utc(one.start)}/{utc(one.end)}"
                        for one in (Window(start, before.end), after))  # fmt: skip
    return f": `--before {span} --after {span_after}`"
