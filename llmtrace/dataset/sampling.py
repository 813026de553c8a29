"""Draw a bounded sample from any number of rows, so that they fit into memory.

The sample is made as rows come, in any number of blocks. Which rows are in it follows from their
content, not from chance or order, and each stands for those left out: its `weight` counts them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.dataset.columns import Columns, concatenate

MAX: Final = 2_000_000  # about 1 GiB of columns


class Sample:
    """The rows seen so far, or every second, fourth, eighth, ... of them.

    A quantile of k rows is off by about the share sqrt(q (1 - q) / k) of ranks: at the p95 of a
    million rows, 0.02 percentage points.
    """

    def __init__(self, most: int = MAX) -> None:
        self._most = most
        self._parts: list[Columns] = []
        self._kept = 0
        self._halvings = 0

    def add(self, rows: Columns) -> None:
        """Add rows; of too many, half are dropped and the others count double."""
        self._parts.append(self._chosen(rows))
        self._kept += self._parts[-1].n
        while self._kept > self._most:
            self._halvings += 1
            self._parts = [self._chosen(part) for part in self._parts]
            self._kept = sum(part.n for part in self._parts)

    def rows(self) -> Columns:
        """Return the sample; each row's weight is multiplied by the rows it stands for."""
        rows = concatenate(self._parts)
        self._parts = [rows]
        if not self._halvings:
            return rows
        each = 2**self._halvings
        weight = rows.weights * each
        note = f"more than {self._most:,} rows: about one in {each} looked at, by its time"
        return replace(
            rows, numbers={**rows.numbers, "weight": weight}, warnings=(*rows.warnings, note)
        )

    def _chosen(self, rows: Columns) -> Columns:
        if not self._halvings:
            return rows
        mask = np.uint64((1 << self._halvings) - 1)
        chosen: NDArray[np.bool_] = _mixed(rows) & mask == 0
        return rows.take(chosen)


def _mixed(rows: Columns) -> NDArray[np.uint64]:
    """Return a number a row that follows from its times, and looks like chance."""
    bits = rows.start.astype(np.uint64)
    bits = bits ^ np.ascontiguousarray(rows.numbers["e2e_s"]).view(np.uint64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
