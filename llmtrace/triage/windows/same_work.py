"""Divide each request's metric by the usual time of requests with the same work.

A long document takes ten times as long as a short question. In the metric itself such differences
hide all but the largest faults, and make stretches by chance in who sent what. Divided by the
median of its kind and size, a request shows only how the system handled it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.core.stages import PARTITION
from llmtrace.dataset.columns import Columns
from llmtrace.stats.arrays import Floats
from llmtrace.triage.attribution.components import Values, split, values
from llmtrace.triage.comparison.p95_change import FELT, felt
from llmtrace.triage.result import Metric
from llmtrace.triage.windows.bins import bins_for
from llmtrace.triage.windows.highest_stretch import MIN_REQUESTS, MIN_SCORE, SURE_P, Spike
from llmtrace.triage.windows.spike import find_failures, find_slow

# The row field that measures the work of a request, by metric. It is what the client asked for, or
# the length of the response, and nothing that depends on how the system handled the request.
_SIZE: Final[dict[Metric, str]] = {
    "ttft": "prompt_tokens",
    "tpot": "prompt_tokens",
    "e2e": "output_tokens",
    "render": "output_tokens",
}
_KIND: Final = ("model", "operation")
_PER_CELL: Final = 20  # requests, at least: the median of fewer follows each of them
_MAX_CELLS: Final = 16  # of a kind
_BURSTY: Final = ("queue", "unattributed")  # stages that vary by themselves
_MATTERS: Final = 0.1  # of the usual TTFT


Series = tuple[Floats, Floats]  # start of each request, unix seconds, and its metric, seconds


def searched_series(rows: Columns, metric: Values) -> Iterator[Series]:
    """Yield the series in which a change of a metric is searched.

    The metric itself shows a change of the work. The metric relative to the work, if sizes are
    known, shows a change of the system.
    """
    if metric.metric == "render" and np.count_nonzero(metric.value > felt(rows)) < MIN_REQUESTS:
        return
    for one in (metric, relative_to_work(rows, metric)):
        if one is not None and len(one.t) + len(one.censored_t):
            t = np.concatenate([one.t, one.censored_t])
            order = np.argsort(t, kind="stable")
            yield t[order], np.concatenate([one.value, one.at_least])[order]


def find_in_stages(rows: Columns) -> Spike | None:
    """Find the surest stretch in a single stage, or in retries or requests not streamed.

    Each stage of TTFT is searched alone: the variation of the others hides a short and steady one
    in their sum. Queueing is left out, since it has bursts of its own. `None` = none is sure.
    """
    ttft, t = values(rows, "ttft"), rows.start / 1e9
    bins = bins_for(t)
    if bins is None or not len(ttft):
        return None
    usual = float(np.median(ttft.value))
    found = []
    for name, stage in zip(PARTITION, split(rows, "ttft", ttft.index).T, strict=True):
        if name not in _BURSTY and stage.any():
            spike = find_slow(ttft.t, FELT * usual + stage, bins)
            found += [spike] if spike and _rise(ttft.t, stage, spike) >= _MATTERS * usual else []
    for mask in (rows.numbers["attempts"] > 1, rows.numbers["stream"] == 0):
        spike = find_failures(t, mask, bins) if mask.any() else None
        found += [spike] if spike else []
    sure = [spike for spike in found if spike.p_value <= SURE_P and spike.start > t[0]]
    return max(sure, key=lambda spike: spike.score, default=None)


def _rise(t: Floats, stage: Floats, spike: Spike) -> float:
    """Return how much longer a stage is inside a stretch than outside, seconds on average."""
    inside = spike.contains(t)
    sides = (stage[inside], stage[~inside])
    return float(sides[0].mean() - sides[1].mean()) if all(map(len, sides)) else 0.0


def find_workload_change(rows: Columns) -> Spike | None:
    """Find the clearest stretch with longer prompts or responses; `None` = none stands out."""
    best: Spike | None = None
    for name in ("prompt_tokens", "output_tokens"):
        size = rows.numbers[name]
        known = np.isfinite(size)
        bins = bins_for(rows.start[known] / 1e9)
        found = bins and find_slow(rows.start[known] / 1e9, size[known], bins)
        if found and found.score >= max(MIN_SCORE, best.score if best else 0.0):
            best = found
    return best


def relative_to_work(rows: Columns, metric: Values) -> Values | None:
    """Return a metric with each value divided by the median of its kind and size.

    The result is scaled to the median of all requests, so that it is in seconds of usual work.

    Args:
        rows: that the metric is from.
        metric: to divide.

    Returns:
        The same requests; `None` if all are of one kind and size, or no size is known.
    """
    size = rows.numbers[_SIZE[metric.metric]]
    index = np.concatenate([metric.index, metric.censored])
    if not len(metric.value) or not np.isfinite(size[metric.index]).any():
        return None
    kinds = np.zeros(len(index), np.int64)
    for words in (rows.words[name] for name in _KIND):
        kinds = kinds * (len(words.names) + 1) + words.codes[index] + 1
    cells = _cells(kinds, size[index])
    n = len(metric.index)
    if len(np.unique(cells[:n])) <= 1:
        return None
    logs = np.log(np.maximum(metric.value, 1e-9))
    usual = np.full(int(cells.max()) + 1, np.median(logs))
    order = np.argsort(cells[:n], kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(cells[order])) + 1):
        usual[cells[members[0]]] = np.median(logs[members])
    factor = np.exp(np.median(logs) - usual[cells])
    return replace(metric, value=metric.value * factor[:n], at_least=metric.at_least * factor[n:])


def _cells(kinds: NDArray[np.int64], size: Floats) -> NDArray[np.intp]:
    """Return the number of each request's cell: one kind, and about one size.

    The requests of a kind that have no size are a cell of their own.
    """
    cells = np.zeros(len(kinds), np.intp)
    used = 0
    for kind in np.unique(kinds):
        for members in (
            np.flatnonzero((kinds == kind) & np.isfinite(size)),
            np.flatnonzero((kinds == kind) & ~np.isfinite(size)),
        ):
            if not len(members):
                continue
            bounds = _bounds(size[members])
            cells[members] = used + np.searchsorted(bounds, size[members], side="right")
            used += len(bounds) + 1
    return cells


def _bounds(size: Floats) -> Floats:
    """Return the sizes that divide requests into cells of about equally many.

    Requests of the same size are in the same cell.
    """
    count = min(len(size) // _PER_CELL, _MAX_CELLS)
    if count < 2 or not np.isfinite(size).all():  # noqa: PLR2004
        return np.empty(0)
    return np.unique(np.quantile(size, np.arange(1, count) / count))
