"""A metric's percentiles over time, in few enough points to draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from llmtrace.dataset.columns import Columns
from llmtrace.stats.arrays import Floats
from llmtrace.triage.attribution.components import values
from llmtrace.triage.result import Metric
from llmtrace.triage.windows.bins import bins_for

_MIN_COUNT: Final = 5  # requests in a bin, or its percentiles say nothing


@dataclass(frozen=True, slots=True)
class Timeline:
    """Percentiles of a metric, bin by bin; NaN where a bin has too few requests.

    Attributes:
        t: the middle of each bin, unix seconds.
        p50, p95: seconds.
        n: requests in each bin.
        failed: share of requests that failed or were cut short.
    """

    metric: Metric
    t: Floats
    p50: Floats
    p95: Floats
    n: Floats
    failed: Floats


def timeline(rows: Columns, metric: Metric) -> Timeline | None:
    """Make the timeline of all rows; `None` if there are too few."""
    series = values(rows, metric)
    at = rows.start / 1e9
    bins = bins_for(series.t)
    if bins is None:
        return None
    count = len(bins.edges) - 1
    where = np.clip(np.searchsorted(bins.edges, series.t, "right") - 1, 0, count - 1)
    p50, p95 = np.full(count, np.nan), np.full(count, np.nan)
    order = np.argsort(where, kind="stable")
    borders = np.searchsorted(where[order], np.arange(count + 1))
    for i in range(count):
        inside = series.value[order[borders[i] : borders[i + 1]]]
        if len(inside) >= _MIN_COUNT:
            p50[i], p95[i] = np.quantile(inside, (0.5, 0.95))
    n, _ = np.histogram(at, bins.edges)
    bad = rows.words["outcome"].where("error", "truncated", "timeout")
    broken, _ = np.histogram(at[bad], bins.edges)
    failed = broken / np.maximum(n, 1)
    middle = bins.edges[:-1] + bins.width / 2
    return Timeline(metric, middle, p50, p95, n.astype(float), failed)
