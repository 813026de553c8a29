"""Match requests of the same workload in two windows, and measure how much of it is new.

Workload is what the client requests: model, operation, route, region, tenant, prompt and output
lengths. Requests are put into cells of the same work, as fine as both windows can fill. Properties
of the system (cache hits, replica, retries, batch, streaming) are never part of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.dataset.columns import Columns
from llmtrace.stats.arrays import Floats, Mask, median
from llmtrace.triage.result import Metric

Codes = NDArray[np.int64]

MIN_COUNT: Final = 20  # rows of a cell, in the window that has more
_MIN_OF_LESS: Final = 8  # in the other window
_MAX_CELLS: Final = 512
_MAX_KEYS: Final = 1 << 40
# Fields of a kind; dropped from the end if a cell would have too few rows.
KINDS: Final = ("model", "operation", "route", "region", "tenant")
_ALWAYS: Final = frozenset({"model", "operation"})
_SHIFTED: Final = 4.0  # standard deviations of chi square
_LENGTHS: Final[dict[Metric, tuple[str, ...]]] = {
    "ttft": ("prompt_tokens",),
    "tpot": ("output_tokens", "prompt_tokens"),
    "e2e": ("output_tokens", "prompt_tokens"),
    "render": ("output_tokens",),
}
_NEW: Final = 5  # rows that would be expected of a value that is hardly there
_HARDLY: Final = 0.1  # of the expected rows
_STEPS_AN_OCTAVE: Final = 2
_GOLDEN: Final = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class Cells:
    """Requests by their workload.

    Attributes:
        before, after: each row's cell; -1 = of a kind that the other window lacks.
        count: number of cells.
        matched_on: the fields that distinguish them.
        new: kinds in the window after that were not there before, with their share of requests.
    """

    before: Codes
    after: Codes
    count: int
    matched_on: tuple[str, ...]
    new: tuple[tuple[str, float], ...]

    @property
    def unmatched_share(self) -> float:
        """Share of the requests after without a cell."""
        return float((self.after < 0).mean()) if len(self.after) else 0.0


def lengths_unknown(sides: tuple[Columns, Columns], metric: Metric) -> bool:
    """Return whether no row of a window reports the lengths that matter for this metric."""
    return any(
        all(np.isnan(rows.numbers[name]).all() for name in _LENGTHS[metric]) for rows in sides
    )


def cells(
    sides: tuple[Columns, Columns],
    index: tuple[NDArray[np.intp], NDArray[np.intp]],
    metric: Metric,
    fewest: int = MIN_COUNT,
    among: Collection[str] | None = None,
) -> Cells:
    """Put requests into cells of the same work; exchanging the windows changes nothing.

    Args:
        sides: the rows of the windows before and after, of one table.
        index: which of them report the metric.
        metric: decides which lengths matter.
        fewest: rows of a cell, in the window that has more.
        among: the fields that may distinguish kinds; `None` = those whose shares have shifted.
    """
    n = len(index[0])
    is_after = np.arange(n + len(index[1])) >= n
    kinds, lengths = _kinds_and_lengths(sides, index, metric, is_after)
    left, new = _in_both(kinds, lengths, is_after, sides[0])
    cell = np.full(len(is_after), -1, np.int64)
    count = 0
    # A field with the same shares as before cannot explain a change; without it, cells can be
    # finer in length.
    names = [
        n
        for n in kinds
        if n in _ALWAYS
        or (_shifted(kinds[n][left], is_after[left]) if among is None else n in among)
    ]
    used: set[str] = set()
    for depth in range(len(names), -1, -1):
        for group in _groups([kinds[name] for name in names[:depth]], np.flatnonzero(left)):
            if not _fills(int(is_after[group].sum()), len(group), fewest):
                continue
            left[group] = False
            used.update(names[:depth])
            for leaf in _leaves(group, lengths, is_after, fewest, used):
                cell[leaf] = count
                count += 1
    return Cells(
        before=cell[:n],
        after=cell[n:],
        count=count,
        matched_on=tuple(name for name in (*KINDS, *lengths) if name in used),
        new=tuple(sorted(new, key=lambda kind: (-kind[1], kind[0]))),
    )


def _kinds_and_lengths(
    sides: tuple[Columns, Columns],
    index: tuple[NDArray[np.intp], NDArray[np.intp]],
    metric: Metric,
    is_after: Mask,
) -> tuple[dict[str, Codes], dict[str, Floats]]:
    """Return the fields that may distinguish the rows of both windows: kinds, and log2 lengths."""

    def number(name: str) -> Floats:
        both = [rows.numbers[name][i] for rows, i in zip(sides, index, strict=True)]
        return np.concatenate(both)

    def codes(name: str) -> Codes:
        both = [rows.words[name].codes[i] for rows, i in zip(sides, index, strict=True)]
        return np.concatenate(both).astype(np.int64)

    kinds = {name: codes(name) for name in KINDS}
    kinds = {name: found for name, found in kinds.items() if found.size and np.ptp(found) > 0}
    hit = number("cache_hit") == 1
    lengths = {
        name: np.log2(_with_hits(number(name), hit, is_after) + 1) for name in _LENGTHS[metric]
    }
    lengths = {
        name: np.nan_to_num(found, nan=-1.0)
        for name, found in lengths.items()
        if not np.isnan(found).all()
    }
    return kinds, lengths


def _in_both(
    kinds: Mapping[str, Codes], lengths: Mapping[str, Floats], is_after: Mask, rows: Columns
) -> tuple[Mask, list[tuple[str, float]]]:
    """Return which rows are of kinds that both windows have, and the kinds that are new.

    A value that is not reported, as for failed requests, is no kind.
    """
    left = np.ones(len(is_after), bool)
    new: list[tuple[str, float]] = []
    for name, codes in kinds.items():
        appeared, gone = _only_in_one(codes, is_after)
        left &= ~np.isin(codes, [*appeared, *gone])
        new += [
            (f"{name}={rows.words[name].names[code]}", _share(codes == code, is_after))
            for code in appeared
            if code >= 0
        ]
    for name, column in lengths.items():
        steps = np.maximum(np.floor(column * _STEPS_AN_OCTAVE), -1).astype(np.int64)
        appeared, gone = _only_in_one(steps, is_after)
        left &= ~np.isin(steps, [*appeared, *gone])
        mine = np.isin(steps, appeared) & is_after & (column >= 0)
        if mine.any():
            low, high = (2 ** float(bound(column[mine])) - 1 for bound in (np.min, np.max))
            new.append((f"{name} {low:,.0f} to {high:,.0f}", _share(mine, is_after)))
    return left, new


def _with_hits(column: Floats, hit: Mask, is_after: Mask) -> Floats:
    """Fill in a length that responses from a cache did not report.

    Whether a response came from a cache is no property of the work, so these must not be a kind of
    their own. They get the lengths of the other requests of their window, or of both windows if
    too few report theirs.
    """
    unknown = hit & ~(column > 0)
    reported = ~unknown & ~np.isnan(column)
    if not unknown.any() or not reported.any():
        return column
    column = column.copy()
    for side in (is_after, ~is_after):
        pool = reported & side if (reported & side).sum() >= MIN_COUNT else reported
        index = np.flatnonzero(unknown & side)
        places = np.arange(1, len(index) + 1) * _GOLDEN % 1.0  # evenly spread, in no order
        column[index] = np.quantile(column[pool], places, method="nearest")
    return column


def _only_in_one(codes: Codes, is_after: Mask) -> tuple[list[int], list[int]]:
    """Return the codes that one window hardly has, though the other's share makes one expect some.

    Returns:
        Those that appeared, and those that are gone.
    """
    sizes = (int((~is_after).sum()), int(is_after.sum()))
    if min(sizes) == 0:
        return [], []
    counts = _counts(codes, is_after)
    found = []
    for here, there in ((1, 0), (0, 1)):
        expected = counts[here] * sizes[there] / sizes[here]
        lacks = (counts[there] <= _HARDLY * expected) & (counts[there] < _MIN_OF_LESS)
        lacks &= (expected >= _NEW) & (counts[here] >= _NEW)
        found.append([int(i) - 1 for i in np.flatnonzero(lacks)])
    return found[0], found[1]


def _fills(after: int, size: int, fewest: int) -> bool:
    """Return whether a cell has enough rows of both windows."""
    less, more = sorted((after, size - after))
    return more >= fewest and less * MIN_COUNT >= _MIN_OF_LESS * fewest


def _shifted(codes: Codes, is_after: Mask) -> bool:
    """Return whether the shares of codes changed beyond chance (chi square)."""
    table = np.array(_counts(codes, is_after))
    table = table[:, table.any(axis=0)]
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0) / max(table.sum(), 1.0)
    free = max(table.shape[1] - 1, 0)
    chi = float(((table - expected) ** 2 / np.maximum(expected, 1.0)).sum())
    return bool(chi > free + _SHIFTED * np.sqrt(2 * free))


def _counts(codes: Codes, is_after: Mask) -> list[Floats]:
    """Return how often each code occurs before and after; the first count is of -1, unknown."""
    size = int(codes.max(initial=-1)) + 2
    return [
        np.bincount(codes[mask] + 1, minlength=size).astype(np.float64)
        for mask in (~is_after, is_after)
    ]


def _share(mask: Mask, is_after: Mask) -> float:
    return float(mask[is_after].mean())


def _groups(codes: list[Codes], index: NDArray[np.intp]) -> Iterator[NDArray[np.intp]]:
    """Yield the rows of each combination of codes."""
    if not index.size:
        return
    key = np.zeros(len(index), np.int64)
    for column in codes:
        key = key * (int(column.max()) + 2) + column[index] + 1
        if int(key.max()) > _MAX_KEYS:
            _, key = np.unique(key, return_inverse=True)
    order = np.argsort(key, kind="stable")
    edges = np.flatnonzero(np.diff(key[order])) + 1
    yield from np.split(index[order], edges)


def _leaves(
    group: NDArray[np.intp],
    lengths: dict[str, Floats],
    is_after: Mask,
    fewest: int,
    used: set[str],
) -> Iterator[NDArray[np.intp]]:
    """Halve a group by length as long as both windows fill both halves."""
    after = is_after[group]
    smaller = after if 2 * int(after.sum()) <= len(group) else ~after
    if len(group) > len(is_after) // _MAX_CELLS:
        for name in _by_difference(group, lengths, after):
            column = lengths[name][group]
            middle = median(column[smaller])
            # If most rows have the maximum length, cut below it.
            for low in (~(column > middle), ~(column >= middle)):
                size, here = np.count_nonzero(low), np.count_nonzero(low & after)
                rest, there = len(group) - size, np.count_nonzero(after) - here
                if min(here, size - here, there, rest - there) < fewest:
                    continue
                used.add(name)
                yield from _leaves(group[low], lengths, is_after, fewest, used)
                yield from _leaves(group[~low], lengths, is_after, fewest, used)
                return
    yield group


def _by_difference(group: NDArray[np.intp], lengths: dict[str, Floats], after: Mask) -> list[str]:
    """Return the lengths, beginning with the one that differs most between the windows."""
    if len(lengths) == 1:
        return list(lengths)
    scores = {}
    for name, column in lengths.items():
        values = column[group]
        spread = float(values.std())
        if spread > 0:
            apart = abs(float(values[after].mean()) - float(values[~after].mean()))
            scores[name] = apart / spread
    return sorted(scores, key=lambda name: -scores[name])
