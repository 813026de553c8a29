"""Divide time into bins that hold about the same number of requests."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from llmtrace.dataset.case import Window
from llmtrace.stats.arrays import Floats

MIN_BINS: Final = 8  # with fewer there is no search
PER_BIN: Final = 5  # requests, at least
MAX_BINS: Final = 200


@dataclass(frozen=True, slots=True)
class Bins:
    """Bins of time: bin i is from `edges[i]` to before `edges[i + 1]`, unix seconds.

    `width` is the median width of a bin, seconds.
    """

    edges: Floats
    width: float


def max_bins(count: int) -> int:
    """Return the largest number of bins that a search uses for `count` requests."""
    return min(max(count // PER_BIN, 2), MAX_BINS)


def bins_for(t: Floats) -> Bins | None:
    """Choose bins of five requests each, or of more if that would be over `MAX_BINS` bins.

    `t` is ascending. `None` = there are too few requests to search.
    """
    per = max(PER_BIN, math.ceil(len(t) / MAX_BINS))
    if len(t) < MIN_BINS * PER_BIN or t[-1] <= t[0]:
        return None
    last = float(np.nextafter(t[-1], np.inf))
    edges = np.unique(np.append(t[: len(t) - per + 1 : per], last))
    return Bins(edges, float(np.median(np.diff(edges))))


def count_in(t: Floats, window: Window) -> int:
    """Count the requests that start in a window; `t` is ascending."""
    first, last = np.searchsorted(t, (window.start, window.end))
    return int(last - first)


def p50_and_p95(t: Floats, value: Floats, edges: Floats) -> tuple[Floats, Floats]:
    """Return the p50 and the p95 of each bin; NaN if it has fewer than five requests."""
    count = len(edges) - 1
    where = np.clip(np.searchsorted(edges, t, "right") - 1, 0, count - 1)
    p50, p95 = np.full(count, np.nan), np.full(count, np.nan)
    order = np.argsort(where, kind="stable")
    borders = np.searchsorted(where[order], np.arange(count + 1))
    for i in range(count):
        inside = value[order[borders[i] : borders[i + 1]]]
        if len(inside) >= PER_BIN:
            p50[i], p95[i] = np.quantile(inside, (0.5, 0.95))
    return p50, p95
