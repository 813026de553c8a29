"""Divide the change of a p95 between the workload, each stage and their interaction.

Both windows are weighted to a common mix of work, half way between theirs. What that changes in
each p95 is the mix. What remains between them is the same work taking longer, which is divided by
swapping stages (`shapley.py`). The parts add up to the change exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.core.stages import PARTITION
from llmtrace.stats.arrays import Floats
from llmtrace.stats.significance import quantile
from llmtrace.triage.attribution.shapley import Index, Staged, staged, swap
from llmtrace.triage.attribution.workload_mix import Codes

NAMES: Final = ("mix", *PARTITION, "co_occurrence")

_BLOCK_S: Final = (10.0, 60.0)
_BLOCKS: Final = 24
_MIN_BLOCKS: Final = 5
_SMALL: Final = 4_000
_MAX_RESAMPLED: Final = 6_000


@dataclass(frozen=True, slots=True)
class Requests:
    """One window's requests of a metric, sorted once, however often samples are drawn from them.

    Attributes:
        start: unix nanoseconds.
        value: the metric, seconds.
        weight: how many requests each row stands for.
        cell: number of the cell of the same work, as in the other window; -1 = none.
        staged: the metric's stages, a column for each of `PARTITION`.
        by_value: indices in ascending order of the metric.
        by_cell: the same within each cell, cell by cell; without requests of no cell.
    """

    start: NDArray[np.int64]
    value: Floats
    weight: Floats
    cell: Codes
    staged: Staged
    by_value: Index
    by_cell: Index

    def __len__(self) -> int:
        return len(self.value)


def requests(
    start: NDArray[np.int64], value: Floats, parts: Floats, weight: Floats, cell: Codes
) -> Requests:
    """Make requests ready to be compared; the order in which they come does not matter."""
    by_value = np.lexsort((start, value))
    found = Requests(
        start=start, value=value, weight=weight, cell=cell, staged=staged(parts, start, value),
        by_value=by_value, by_cell=by_value,
    )  # fmt: skip
    return in_cells(found, cell)


def in_cells(one: Requests, cell: Codes) -> Requests:
    """Return the same requests in other cells."""
    order = one.by_value[np.argsort(cell[one.by_value], kind="stable")]
    return replace(one, cell=cell, by_cell=order[cell[order] >= 0])


@dataclass(frozen=True, slots=True)
class Attribution:
    """A change of a quantile, in parts.

    Attributes:
        before, after: the quantile, seconds.
        seconds: by `NAMES`; they add up to `after - before`.
        effective_n: equally weighted requests that the weighted ones are worth; of the lower
            window.
    """

    before: float
    after: float
    seconds: Floats
    effective_n: float

    @property
    def delta(self) -> float:
        """Change of the quantile, seconds."""
        return self.after - self.before

    @property
    def same_work(self) -> float:
        """Part of it because the same work takes longer, seconds."""
        return float(self.seconds[1:].sum())


def attribute(
    before: Requests, after: Requests, q: float, drawn: tuple[Floats, Floats] | None = None
) -> Attribution | None:
    """Divide the change of the quantile `q`, 0 to 1; `None` = the windows have no work in common.

    Both sides are in the same cells. `drawn` says how many times each request of either counts;
    once, if not given.
    """
    sides = (before, after)
    weights = [
        one.weight if drawn is None else one.weight * drawn[i] for i, one in enumerate(sides)
    ]
    low, high = (_quantile(one, weight, q) for one, weight in zip(sides, weights, strict=True))
    common = _to_common_mix(sides, weights)
    if common is None:
        return None
    (index_b, effective_b), (index_a, effective_a) = common
    same_b, same_a = before.value[index_b], after.value[index_a]
    at_b, at_a = quantile(same_b, q), quantile(same_a, q)
    found = swap(before.staged, after.staged, (index_b, index_a), q)
    mix = (at_b - low) + (high - at_a)
    seconds = np.array([mix, *found.stages, found.together])
    # Correct the rounding error: parts are added up in another order than values.
    seconds[-1] += (high - low) - seconds.sum()
    return Attribution(low, high, seconds, min(effective_b, effective_a))


def _quantile(one: Requests, weight: Floats, q: float) -> float:
    """Return the smallest value that a share `q` of the weight does not exceed."""
    reached = np.cumsum(weight[one.by_value])
    rank = int(np.searchsorted(reached, q * reached[-1] * (1 - 1e-12)))
    return float(one.value[one.by_value[min(rank, len(one) - 1)]])


def _to_common_mix(
    sides: tuple[Requests, Requests], weights: list[Floats]
) -> tuple[tuple[Index, float], tuple[Index, float]] | None:
    """Choose rows of both windows so that each cell has the same share in both.

    Rows are taken at even steps of weight through each cell, in order of their value: the choice
    has the distribution of the weighted rows, without randomness.
    """
    count = int(max(one.cell.max(initial=-1) for one in sides)) + 1
    shares = [
        np.bincount(one.cell[one.by_cell], weight[one.by_cell], minlength=count)
        for one, weight in zip(sides, weights, strict=True)
    ]
    both = (shares[0] > 0) & (shares[1] > 0)
    if not both.any():
        return None
    shares = [np.where(both, share, 0.0) / share[both].sum() for share in shares]
    target = (shares[0] + shares[1]) / 2
    chosen = []
    for one, own, share in zip(sides, weights, shares, strict=True):
        ratio = np.divide(target, share, out=np.zeros(count), where=both)
        weight = ratio[one.cell[one.by_cell]] * own[one.by_cell]
        reached = np.cumsum(weight)
        used = int(np.count_nonzero(weight))
        size = used * (2 if used < _SMALL else 1)
        steps = (np.arange(size) + 0.5) * (reached[-1] / size)
        place = np.minimum(np.searchsorted(reached, steps), len(reached) - 1)
        effective = float(reached[-1] ** 2 / (weight**2).sum())
        chosen.append((one.by_cell[place], effective))
    return chosen[0], chosen[1]


# Assigns chosen rows of the windows before and after to cells of the same work.
Cut = Callable[[Index, Index], tuple[Codes, Codes]]


@dataclass(frozen=True, slots=True)
class Spread:
    """Bootstrap intervals of an attribution: 95 %, by `NAMES`, and of the same work's sum."""

    low: Floats
    high: Floats
    same_work: tuple[float, float]


def bootstrap(
    before: Requests,
    after: Requests,
    q: float,
    found: Attribution,
    *,
    times: int,
    seed: int,
    progress: Callable[[float], None],
    cut: Cut | None = None,
) -> Spread | None:
    """Return how much an attribution would vary with other requests of the same kind.

    Blocks of 10 to 60 s are drawn from each window, since requests close in time are alike, and
    drawn requests are assigned to cells anew, since the cells depend on chance as well. Windows of
    more than 6,000 rows are thinned first, which only widens the intervals. `None` = too few
    blocks, or draws that could not be attributed.
    """
    rng = np.random.default_rng(seed)
    kept = [_thinned(one) for one in (before, after)]
    sides = [
        requests(one.start[i], one.value[i], one.staged.parts[i], one.weight[i], one.cell[i])
        for one, i in zip((before, after), kept, strict=True)
    ]
    blocks = [_blocks(one) for one in sides]
    if min(int(block[-1]) + 1 for block in blocks) < _MIN_BLOCKS:
        return None  # draws from so few blocks would hardly differ
    draws = []
    for i in range(times):
        counts = []
        for block in blocks:
            n = int(block[-1]) + 1
            counts.append(np.bincount(rng.integers(0, n, n), minlength=n)[block])
        if cut is not None:
            drawn_rows = [np.repeat(np.arange(len(count)), count) for count in counts]
            cells = cut(*(which[rows] for which, rows in zip(kept, drawn_rows, strict=True)))
            for side, (rows, cell) in enumerate(zip(drawn_rows, cells, strict=True)):
                of_all = np.full(len(sides[side]), -1, np.int64)
                of_all[rows] = cell
                sides[side] = in_cells(sides[side], of_all)
        drawn = attribute(
            sides[0], sides[1], q, (counts[0].astype(float), counts[1].astype(float))
        )
        if drawn is not None:
            draws.append(drawn.seconds)
        progress((i + 1) / times)
    if len(draws) < max(times // 2, 2):
        return None
    table = np.array(draws)
    sums = np.column_stack([table, table[:, 1:].sum(axis=1)])
    at = np.array([*found.seconds, found.same_work])
    # Draws show the spread, not the centre: centre them on the attribution itself. Weibull's
    # quantile, because with a hundred draws the usual one leaves 3.4 % beyond each end.
    ends = np.quantile(sums, (0.025, 0.975), axis=0, method="weibull")
    off = ends - np.median(sums, axis=0)
    low, high = at + off[0], at + off[1]
    return Spread(low[:-1], high[:-1], same_work=(float(low[-1]), float(high[-1])))


def _thinned(one: Requests) -> Index:
    """Return the rows of a window that samples are drawn from, in order of time."""
    step = -(-len(one) // _MAX_RESAMPLED)
    return np.lexsort((one.value, one.start))[::step]


def _blocks(one: Requests) -> Index:
    """Return each request's block of time, numbered without gaps."""
    t = (one.start - one.start[0]) / 1e9
    width = min(max(float(t[-1]) / _BLOCKS, _BLOCK_S[0]), _BLOCK_S[1])
    _, block = np.unique((t // width).astype(np.int64), return_inverse=True)
    return block.astype(np.intp)
