"""Count requests by time, in bins of about the same number of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats

MIN_BINS: Final = 8
PER_BIN: Final = 5  # requests, at least
MAX_BINS: Final = 200


@dataclass(frozen=True, slots=True)
class Bins:
    """Requests by time: `edges[i]` to `edges[i + 1]`, half open."""

    edges: Floats
    width: float


def max_bins(count: int) -> int:
    """Return into how many bins a search divides so many requests, at most."""
    return min(max(count // PER_BIN, 2), MAX_BINS)


def bins_for(t: Floats) -> Bins | None:
    """Choose bins of five requests each, or of more where that made too many of them.

    `None` = too few requests to look for anything.
    """
    per = max(PER_BIN, math.ceil(len(t) / MAX_BINS))
    if len(t) < MIN_BINS * PER_BIN or t[-1] <= t[0]:
        return None
    last = float(np.nextafter(t[-1], np.inf))
    edges = np.unique(np.append(t[: len(t) - per + 1 : per], last))
    return Bins(edges, float(np.median(np.diff(edges))))


def p50_and_p95(t: Floats, value: Floats, edges: Floats) -> tuple[Floats, Floats]:
    """Return the p50 and the p95 of each bin; NaN where it has fewer than five requests."""
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
