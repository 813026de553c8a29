"""Sort rows by time, remove repeated ones, thin out very many, and draw samples of even weight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.dataset.columns import Columns

_EXACT_NS: Final = 1_000_000
_ROUNDING_NS: Final = 1000.0
_MAX_ROWS: Final = 100_000  # with more, only every second, third, ... row is used


def in_order(rows: Columns) -> tuple[Columns, int]:
    """Return the rows by start, each once, and how many repeated rows were removed."""
    start = rows.start
    if len(start) > 1 and (np.diff(start) < 0).any():
        e2e = np.nan_to_num(rows.numbers["e2e_s"], nan=-1.0)
        ttft = np.nan_to_num(rows.numbers["ttft_s"], nan=-1.0)
        rows = rows.take(np.lexsort((ttft, e2e, start)))
    again = repeated(rows)
    return (rows.take(~again), int(again.sum())) if again.any() else (rows, 0)


def repeated(rows: Columns) -> NDArray[np.bool_]:
    """Return which rows, sorted by start, repeat another: the same id, or equal in every field.

    The latter only with a trace id, or a start or duration finer than a millisecond: with clocks
    that tick in milliseconds, two requests can have the same.
    """
    again = np.zeros(len(rows), bool)
    same = np.diff(rows.start, prepend=-1, append=-1) == 0
    near = rows.take(index := np.flatnonzero(same[1:] | same[:-1]))
    ids = near.ids
    named = (ids["request_id"] != b"") | (ids["span_id"] != b"")
    exact = (near.start % _EXACT_NS != 0) | (ids["trace_id"] != b"")
    for name in ("e2e_s", "ttft_s"):
        ns = np.nan_to_num(near.numbers[name]) * 1e9
        exact |= np.abs(np.rint(ns / _EXACT_NS) * _EXACT_NS - ns) > _ROUNDING_NS
    fields: list[NDArray[Any]] = [
        *near.numbers.values(), *(words.codes for words in near.words.values())
    ]  # fmt: skip
    mixed = np.zeros(len(near))  # a hash: rarely equal unless all fields are
    for factor, column in enumerate(fields, 1):
        mixed += factor * np.nan_to_num(column, nan=-1.0)
    whole = [ids["trace_id"], mixed, *fields, *ids.values()]
    named_by: list[NDArray[Any]] = [ids["request_id"], ids["span_id"]]
    for which, columns in ((named, named_by), (exact, whole)):
        rest = np.flatnonzero(which)
        rest = rest[np.lexsort((columns[1][rest], columns[0][rest], near.start[rest]))]
        pairs = np.stack((rest[:-1], rest[1:]))
        for column in (near.start, *columns):
            one, next_ = column[pairs]
            pairs = pairs[:, (one == next_) | ((one != one) & (next_ != next_))]  # noqa: PLR0124
        again[index[pairs[1]]] = True
    return again


def thinned(rows: Columns, most: int = _MAX_ROWS) -> Columns:
    """Return every second, third, ... row if there are more than `most`, with weights to match."""
    step = -(-len(rows) // most)
    if step <= 1:
        return rows
    kept = rows.take(slice(None, None, step))
    return replace(kept, numbers={**kept.numbers, "weight": kept.weights * step})


def evenly_weighted(rows: Columns) -> Columns:
    """Return rows of which each stands for as many requests, as for rules that count rows.

    Of rows with less weight than others, as many are drawn as their weight says.
    """
    drawn = rows.take(drawn_by_weight(rows.weights))
    even = np.full(len(drawn), rows.weights.max(initial=0.0))
    return replace(drawn, numbers={**drawn.numbers, "weight": even})


def drawn_by_weight(weight: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which rows are drawn: all of the greatest weight, of others by their weight."""
    return np.random.default_rng(1).random(len(weight)) * float(weight.max(initial=0.0)) < weight
