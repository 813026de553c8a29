"""What users lose over time, in few enough points to draw: latency, failures or requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from llmtrace.core.row_fields import FAILED
from llmtrace.dataset.columns import Columns
from llmtrace.stats.arrays import Floats
from llmtrace.triage.attribution.components import values
from llmtrace.triage.report.naming import METRIC_NAMES, of_latency
from llmtrace.triage.result import Result
from llmtrace.triage.windows.bins import bins_for

_MIN_COUNT: Final = 5  # requests in a bin, or its percentiles say nothing
_SLOTS: Final = 80  # of equal time, in which requests are counted


@dataclass(frozen=True, slots=True)
class Timeline:
    """Values bin by bin; NaN where a bin has too few requests.

    Attributes:
        title: what they are of.
        unit: `s`, `%` or none.
        t: the middle of each bin, unix seconds.
        lines: by name, the most important first.
    """

    title: str
    unit: str
    t: Floats
    lines: Mapping[str, Floats]


def timeline(rows: Columns, result: Result) -> Timeline | None:
    """Make the timeline of all rows, of what a result is about; `None` if there are too few."""
    if result.metric is None:
        return None
    series = values(rows, result.metric)
    bins = bins_for(series.t)
    if bins is None:
        return None
    if of_latency(result):
        p50, p95 = _percentiles(series.t, series.value, bins.edges)
        title = METRIC_NAMES[result.metric]
        return Timeline(title, "s", _middle(bins.edges), {"p95": p95, "p50": p50})
    edges = np.linspace(bins.edges[0], bins.edges[-1], _SLOTS + 1)
    n, _ = np.histogram(rows.start / 1e9, edges)
    if result.verdict == "traffic":
        rates = {"requests a second": n / np.diff(edges)}
        return Timeline("requests a second", "", _middle(edges), rates)
    shares = {
        name: 100 * _counts(rows, edges, *outcomes) / np.maximum(n, 1)
        for name, outcomes in (("failed", FAILED), ("cancelled", ("cancelled",)))
    }
    return Timeline("failed and cancelled requests", "%", _middle(edges), shares)


def _middle(edges: Floats) -> Floats:
    return (edges[:-1] + edges[1:]) / 2


def _counts(rows: Columns, edges: Floats, *outcomes: str) -> Floats:
    """Count the requests that ended so in each bin."""
    counts, _ = np.histogram(rows.start[rows.words["outcome"].where(*outcomes)] / 1e9, edges)
    return counts.astype(float)


def _percentiles(t: Floats, value: Floats, edges: Floats) -> tuple[Floats, Floats]:
    """Return the p50 and the p95 of each bin."""
    count = len(edges) - 1
    where = np.clip(np.searchsorted(edges, t, "right") - 1, 0, count - 1)
    p50, p95 = np.full(count, np.nan), np.full(count, np.nan)
    order = np.argsort(where, kind="stable")
    borders = np.searchsorted(where[order], np.arange(count + 1))
    for i in range(count):
        inside = value[order[borders[i] : borders[i + 1]]]
        if len(inside) >= _MIN_COUNT:
            p50[i], p95[i] = np.quantile(inside, (0.5, 0.95))
    return p50, p95
