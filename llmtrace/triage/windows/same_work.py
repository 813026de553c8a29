"""Divide each request's metric by what requests of the same work usually take.

A long document takes ten times as long as a short question on the best of days: in the metric
itself that hides all but the largest faults, and makes stretches out of nothing but chance in who
sent what. Divided by the median of its kind, a request shows only what the system did to it.
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
from llmtrace.triage.windows.highest_stretch import CERTAIN, MIN_INSIDE, SURE, Spike
from llmtrace.triage.windows.spike import find_failures, find_slow

# What a request's work is measured by, as its client chose it (the length of its own response
# included); not by what the system made of it.
_SIZE: Final[dict[Metric, str]] = {
    "ttft": "prompt_tokens",
    "tpot": "prompt_tokens",
    "e2e": "output_tokens",
    "render": "output_tokens",
}
_KIND: Final = ("model", "operation")
_PER_CELL: Final = 20  # requests, at least: a median of fewer follows each of them
_MAX_CELLS: Final = 16  # of a kind
_UNEVEN: Final = ("queue", "unattributed")
_MATTERS: Final = 0.1  # of the usual time to first content


Series = tuple[Floats, Floats]  # of requests by time: when, and how long


def searched_series(rows: Columns, one: Values) -> Iterator[Series]:
    """Yield the series in which a change of a metric is searched.

    The metric itself, in which a change of the work shows, and where it can be known, the metric
    relative to the work, in which one of the system does.
    """
    if one.metric == "render" and np.count_nonzero(one.value > felt(rows)) < MIN_INSIDE:
        return
    for found in (one, relative_to_work(rows, one)):
        if found is not None and len(found.t) + len(found.censored_t):
            t = np.concatenate([found.t, found.censored_t])
            order = np.argsort(t, kind="stable")
            yield t[order], np.concatenate([found.value, found.at_least])[order]


def find_in_parts(rows: Columns) -> Spike | None:
    """Find the surest stretch of what metrics and failures are the sum of; `None` = none is sure.

    Each stage of the time to first content is searched alone: one that is short and even shows
    what the unrest of the others hides in their sum. A queue has bursts of its own, and is left
    out. Requests are counted that were issued again or not streamed.
    """
    one, t = values(rows, "ttft"), rows.start / 1e9
    bins = bins_for(t)
    if bins is None or not len(one):
        return None
    usual = float(np.median(one.value))
    found = []
    for name, part in zip(PARTITION, split(rows, "ttft", one.index).T, strict=True):
        if name not in _UNEVEN and part.any():
            spike = find_slow(one.t, FELT * usual + part, bins)
            found += [spike] if spike and _rise(one.t, part, spike) >= _MATTERS * usual else []
    for mask in (rows.numbers["attempts"] > 1, rows.numbers["stream"] == 0):
        spike = find_failures(t, mask, bins) if mask.any() else None
        found += [spike] if spike else []
    sure = [spike for spike in found if spike.p_value <= SURE and spike.start > t[0]]
    return max(sure, key=lambda spike: spike.score, default=None)


def _rise(t: Floats, part: Floats, found: Spike) -> float:
    inside = (t >= found.start) & (t < (found.end or np.inf))
    sides = (part[inside], part[~inside])
    return float(sides[0].mean() - sides[1].mean()) if all(map(len, sides)) else 0.0


def find_other_work(rows: Columns) -> Spike | None:
    """Find the clearest stretch in which prompts or responses are longer than otherwise.

    `None` where none stands out.
    """
    best: Spike | None = None
    for name in ("prompt_tokens", "output_tokens"):
        size = rows.numbers[name]
        known = np.isfinite(size)
        bins = bins_for(rows.start[known] / 1e9)
        found = bins and find_slow(rows.start[known] / 1e9, size[known], bins)
        if found and found.score >= max(CERTAIN, best.score if best else 0.0):
            best = found
    return best


def relative_to_work(rows: Columns, one: Values) -> Values | None:
    """Return a metric with each value divided by the median of its kind and size.

    The result is scaled to the median of all, so that it reads as seconds of usual work.

    Args:
        rows: that `one` is of.
        one: the metric.

    Returns:
        The same requests; `None` where nothing distinguishes them.
    """
    size = rows.numbers[_SIZE[one.metric]]
    index = np.concatenate([one.index, one.censored])
    if not len(one.value) or not np.isfinite(size[one.index]).any():
        return None
    kinds = np.zeros(len(index), np.int64)
    for words in (rows.words[name] for name in _KIND):
        kinds = kinds * (len(words.names) + 1) + words.codes[index] + 1
    cells = _cells(kinds, size[index])
    n = len(one.index)
    if len(np.unique(cells[:n])) <= 1:
        return None
    logs = np.log(np.maximum(one.value, 1e-9))
    usual = np.full(int(cells.max()) + 1, np.median(logs))
    order = np.argsort(cells[:n], kind="stable")
    for mine in np.split(order, np.flatnonzero(np.diff(cells[order])) + 1):
        usual[cells[mine[0]]] = np.median(logs[mine])
    factor = np.exp(np.median(logs) - usual[cells])
    return replace(one, value=one.value * factor[:n], at_least=one.at_least * factor[n:])


def _cells(kinds: NDArray[np.int64], size: Floats) -> NDArray[np.intp]:
    """Number cells of one kind and of about one size; of what has no size each kind has one."""
    cells = np.zeros(len(kinds), np.intp)
    used = 0
    for kind in np.unique(kinds):
        for mine in (
            np.flatnonzero((kinds == kind) & np.isfinite(size)),
            np.flatnonzero((kinds == kind) & ~np.isfinite(size)),
        ):
            if not len(mine):
                continue
            bounds = _bounds(size[mine])
            cells[mine] = used + np.searchsorted(bounds, size[mine], side="right")
            used += len(bounds) + 1
    return cells


def _bounds(size: Floats) -> Floats:
    """Return the sizes between cells of as many requests each; requests of one size share one."""
    count = min(len(size) // _PER_CELL, _MAX_CELLS)
    if count < 2 or not np.isfinite(size).all():  # noqa: PLR2004
        return np.empty(0)
    return np.unique(np.quantile(size, np.arange(1, count) / count))
