"""Put rows in order of time, each once, and thin out very many."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.dataset.columns import Columns

_MAX_ROWS: Final = 100_000  # of a time, looked at: beyond, every second, third, ... row


def in_order(rows: Columns) -> tuple[Columns, int]:
    """Return the rows by start, each once, and how many were there twice."""
    start = rows.start
    if len(start) > 1 and (np.diff(start) < 0).any():
        e2e = np.nan_to_num(rows.numbers["e2e_s"], nan=-1.0)
        ttft = np.nan_to_num(rows.numbers["ttft_s"], nan=-1.0)
        rows = rows.take(np.lexsort((ttft, e2e, start)))
    again = _repeated(rows)
    return (rows.take(~again), int(again.sum())) if again.any() else (rows, 0)


def _repeated(rows: Columns) -> NDArray[np.bool_]:
    """Return which rows are there already: of one start and one id."""
    again = np.zeros(len(rows), bool)
    near = np.flatnonzero(np.diff(rows.start) == 0)
    seen: set[tuple[int, bytes, bytes]] = set()
    for i in sorted({*near.tolist(), *(near + 1).tolist()}):
        key = (int(rows.start[i]), bytes(rows.ids["request_id"][i]), bytes(rows.ids["span_id"][i]))
        again[i] = key in seen and bool(key[1] or key[2])
        seen.add(key)
    return again


def thinned(rows: Columns, most: int = _MAX_ROWS) -> Columns:
    """Return every second, third, ... row of more than that many, standing for the others."""
    step = -(-len(rows) // most)
    if step <= 1:
        return rows
    kept = rows.take(slice(None, None, step))
    return replace(kept, numbers={**kept.numbers, "weight": kept.weights * step})
