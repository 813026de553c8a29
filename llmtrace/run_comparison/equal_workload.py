"""Hold the workload of two runs equal: by its hash, else by weights, else not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from llmtrace.core.errors import DataError
from llmtrace.dataset.columns import Columns, concatenate
from llmtrace.stats.arrays import Floats
from llmtrace.stats.significance import effective_count
from llmtrace.triage.attribution.workload_mix import cells

_MIN_EFFECTIVE: Final = 0.3  # of the requests after, once they are weighted
_MAX_UNMATCHED: Final = 0.2
_SHIFTED: Final = 0.05  # of the requests are of another length or kind than before


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Whether both runs had the same work to do.

    Attributes:
        same: the runs say so themselves, by the hash of their workload.
        reweighted: requests after count so that their mix is that before.
        matched_on: fields that were held equal.
    """

    same: bool
    reweighted: bool = False
    matched_on: tuple[str, ...] = ()


def unweighted(sides: Sequence[Columns]) -> list[Floats]:
    """Return the weights that the rows have by themselves."""
    return [side.weights for side in sides]


def matched(sides: Sequence[Columns]) -> tuple[Workload, list[Floats]]:
    """Weigh the requests after so that their kinds and prompt lengths are as often as before."""
    table, n = concatenate(sides), sides[0].n  # a word has another code in each file
    first, second = table.take(slice(None, n)), table.take(slice(n, None))
    index = (np.arange(first.n), np.arange(second.n))
    found = cells((first, second), index, "ttft")
    weights = unweighted(sides)
    kept = [weights[0] * (found.before >= 0), weights[1] * (found.after >= 0)]
    if not all(side.sum() > 0 for side in kept):
        raise DataError("the runs have no kind of request in common; nothing can be compared")
    shares = [
        np.bincount(cell[cell >= 0], side[cell >= 0], minlength=found.count) / side.sum()
        for cell, side in zip((found.before, found.after), kept, strict=True)
    ]
    unmatched = found.unmatched_share
    if np.abs(shares[0] - shares[1]).sum() / 2 + unmatched < _SHIFTED:
        return Workload(same=False), weights
    ratio = np.divide(shares[0], shares[1], out=np.zeros(found.count), where=shares[1] > 0)
    kept[1] = np.where(found.after >= 0, kept[1] * ratio[found.after], 0.0)
    too_few = effective_count(kept[1]) < _MIN_EFFECTIVE * second.n
    if unmatched > _MAX_UNMATCHED or too_few:
        new = (
            f"{unmatched:.0%} of the requests after are of a kind that was not there before, and "
        )
        raise DataError(
            f"the runs had different work to do: {new if unmatched else ''}weights would leave "
            f"{effective_count(kept[1]):.0f} of {second.n}; run the same workload twice"
        )
    held = Workload(same=False, reweighted=True, matched_on=found.matched_on)
    return held, kept
