"""Divide the change of one metric by kinds of work, as finely as the rows allow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from llmtrace.core.stages import PARTITION
from llmtrace.dataset.columns import Columns
from llmtrace.stats.quantiles import least_values
from llmtrace.triage.attribution import attribute as division
from llmtrace.triage.attribution.components import Values, split, values
from llmtrace.triage.attribution.shapley import Index
from llmtrace.triage.attribution.workload_mix import MIN_COUNT, Cells, Codes, cells
from llmtrace.triage.result import Metric, Q

_MIN_EFFECTIVE: Final = 100
_MAX_STRETCHES: Final = 4
_FEWEST: Final = 5  # rows of a cell, when only some of the requests are drawn
_OUTSIDE: Final = ("network", "gateway", "render")
_MIN_SHARE: Final = 0.5  # of the smaller window, if it is smaller than `_MIN_EFFECTIVE`


@dataclass(frozen=True, slots=True)
class Divided:
    """A metric's requests in both windows, in cells of the same work, and its change by parts.

    Attributes:
        found: the change by parts; `None` = the windows have no work in common.
        cut: assigns drawn requests to cells, in the same way as these.
    """

    before: division.Requests
    after: division.Requests
    cells: Cells
    found: division.Attribution | None
    cut: division.Cut

    @property
    def outside_engines(self) -> float:
        """Share of the mean's growth that is in stages outside engines."""
        before, after = (one.weight @ one.staged.parts / max(float(one.weight.sum()), 1e-9)
                         for one in (self.before, self.after))  # fmt: skip
        grown = after - before
        outside = sum(grown[PARTITION.index(name)] for name in _OUTSIDE)
        return float(outside / grown.sum()) if grown.sum() > 0 else 0.0


def divide(sides: tuple[Columns, Columns], both: tuple[Values, Values]) -> Divided:
    """Divide the change of a metric's quantile between the windows before and after.

    Cells are made coarser until the requests, weighted to a common mix, are worth at least a
    hundred equally weighted ones.
    """
    fewest = MIN_COUNT
    enough = min(_MIN_EFFECTIVE, _MIN_SHARE * min(len(both[0]), len(both[1])))
    while True:
        made = _divide(sides, both, fewest)
        if made.found is None or made.found.effective_n >= enough or made.cells.count == 1:
            return made
        fewest *= 2


def usual_parts(sides: tuple[Columns, Columns], metric: Metric) -> tuple[float, float]:
    """Return the largest mix and same-work parts between stretches of one window, in seconds.

    Each window, before and after, is cut into stretches, and neighbours are compared as the
    windows are. Nothing happened between them, so what is found is chance. Infinite if there are
    too few requests to cut. Rows are by start.
    """
    parts = []
    for rows in sides:
        count = min(_MAX_STRETCHES, len(values(rows, metric)) // least_values(Q))
        edges = [len(rows) * i // max(count, 1) for i in range(count + 1)]
        cut = [rows.take(slice(low, high)) for low, high in pairwise(edges)]
        for pair in pairwise(cut):
            found = divide(pair, (values(pair[0], metric), values(pair[1], metric))).found
            if found is not None:
                parts.append((abs(float(found.seconds[0])), abs(found.same_work)))
    if not parts:
        return math.inf, math.inf
    mix, same = zip(*parts, strict=True)
    return max(mix), max(same)


def _divide(sides: tuple[Columns, Columns], both: tuple[Values, Values], fewest: int) -> Divided:
    name = both[0].metric
    made = cells(sides, (both[0].index, both[1].index), name, fewest)
    before, after = (
        division.requests(
            rows.start[one.index], one.value, split(rows, name, one.index), one.weight, cell
        )
        for rows, one, cell in zip(sides, both, (made.before, made.after), strict=True)
    )
    found = division.attribute(before, after, Q) if len(before) and len(after) else None

    def cut(*rows: Index) -> tuple[Codes, Codes]:
        of_all = max(map(len, both)) / max(*map(len, rows), 1)
        some = max(round(fewest / max(of_all, 1.0)), _FEWEST)
        index = (both[0].index[rows[0]], both[1].index[rows[1]])
        again = cells(sides, index, name, some, made.matched_on)
        return again.before, again.after

    return Divided(before, after, made, found, cut)
