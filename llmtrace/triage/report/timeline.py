"""Compute what users lose over time for a chart: latency, failures or requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from llmtrace.core.row_fields import FAILED
from llmtrace.dataset.case import Case
from llmtrace.dataset.columns import Columns
from llmtrace.dataset.rows_in_order import in_order
from llmtrace.stats.arrays import Floats
from llmtrace.triage.attribution.components import values
from llmtrace.triage.report.naming import METRIC_NAMES, losses
from llmtrace.triage.result import Result
from llmtrace.triage.windows.bins import PER_BIN, bins_for, p50_and_p95

_SLOTS: Final = 80  # of equal length, for counts of requests


@dataclass(frozen=True, slots=True)
class Timeline:
    """Values by bin; NaN = too few requests in the bin.

    Attributes:
        title: what the values are.
        unit: `s`, `%` or none.
        span: begin and end, unix seconds.
        t: the middle of each bin, unix seconds.
        lines: by name, the most important first.
    """

    title: str
    unit: str
    span: tuple[float, float]
    t: Floats
    lines: Mapping[str, Floats]


def timeline(case: Case, result: Result) -> Timeline | None:
    """Make the timeline of a result, from the window before to the end of the data.

    `None` = too few requests.
    """
    rows, _ = in_order(case.rows)
    if case.searched is not None:  # leave out earlier days
        rows = rows.within(case.searched.start, case.searched.end)
    span = _span(rows, case, result)
    if result.metric is None or span is None:
        return None
    if not losses(result):
        series = values(rows, result.metric)
        bins = bins_for(series.t)
        if bins is None:
            return None
        p50, p95 = p50_and_p95(series.t, series.value, bins.edges)
        title = METRIC_NAMES[result.metric]
        return Timeline(title, "s", span, _middle(bins.edges), {"p95": p95, "p50": p50})
    edges = np.linspace(*span, min(_SLOTS, max(rows.n // PER_BIN, 2)) + 1)
    n, _ = np.histogram(rows.start / 1e9, edges)
    if result.verdict == "traffic":
        rates = {"requests a second": n / np.diff(edges)}
        return Timeline("requests a second", "", span, _middle(edges), rates)
    with np.errstate(invalid="ignore"):  # bins without requests
        shares = {
            name: 100 * _counts(rows, edges, *outcomes) / n
            for name, outcomes in (("failed", FAILED), ("cancelled", ("cancelled",)))
        }
    return Timeline("failed and cancelled requests", "%", span, _middle(edges), shares)


def _span(rows: Columns, case: Case, result: Result) -> tuple[float, float] | None:
    """Return the time to draw: the windows compared, and everything recorded after them."""
    windows = [one.window for one in (result.before, result.after) if one.window is not None]
    if not windows or not rows.n:
        return None
    t, sampled = rows.start / 1e9, case.signals.t
    start = max(min(one.start for one in windows), float(t.min()))
    end = max([float(t.max()), windows[-1].end, *([float(sampled.max())] if len(sampled) else [])])
    return (start, end) if end > start else None


def _middle(edges: Floats) -> Floats:
    return (edges[:-1] + edges[1:]) / 2


def _counts(rows: Columns, edges: Floats, *outcomes: str) -> Floats:
    """Count the requests with these outcomes in each bin."""
    counts, _ = np.histogram(rows.start[rows.words["outcome"].where(*outcomes)] / 1e9, edges)
    return counts.astype(float)
