"""Hold the workload of two runs equal: by its hash, else by weights, else not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from llmtrace.core.errors import DataError
from llmtrace.dataset.columns import Columns, Words, concatenate
from llmtrace.stats.arrays import Floats
from llmtrace.stats.significance import effective_count
from llmtrace.triage.attribution.workload_mix import KINDS, Cells, cells

_MIN_EFFECTIVE: Final = 0.3  # of the requests after, once they are weighted
_MAX_UNMATCHED: Final = 0.2
_NAMED: Final = 3  # kinds
_LENGTH: Final = "prompt_tokens"
_SHIFTED: Final = 0.05  # of the requests are of another length or kind than before


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Whether both runs had the same work to do.

    Attributes:
        same: the runs say so themselves, by the hash of their workload.
        reweighted: requests after count so that their mix is that before.
        matched_on: fields that were held equal.
        reported_by_one: kinds and lengths that the other run does not report: not held equal.
        left_out: requests before and after of a kind that the other run lacks.
    """

    same: bool
    reweighted: bool = False
    matched_on: tuple[str, ...] = ()
    reported_by_one: tuple[str, ...] = ()
    left_out: tuple[int, int] = (0, 0)


def unweighted(sides: Sequence[Columns]) -> list[Floats]:
    """Return the weights that the rows have by themselves."""
    return [side.weights for side in sides]


def _comparable(table: Columns, n: int) -> tuple[Columns, list[str]]:
    """Return the rows of two runs without the kinds and lengths that only one of them reports.

    `n` is the number of rows of the first. The names of what is left out are returned, too.
    """
    known = {name: table.words[name].codes >= 0 for name in KINDS}
    known[_LENGTH] = np.isfinite(table.numbers[_LENGTH])
    alone = [name for name, rows in known.items() if rows[:n].any() != rows[n:].any()]
    words, numbers = dict(table.words), dict(table.numbers)
    for name in alone:
        if name == _LENGTH:
            numbers[name] = np.full(table.n, np.nan)
        else:
            words[name] = Words(np.full(table.n, -1, np.int32), ())
    return replace(table, words=words, numbers=numbers), alone


def _why_nothing(found: Cells, sides: Sequence[Columns]) -> str:
    """Say why no request of one run can be compared with any of the other."""
    if found.new:
        return f"only the run after has {', '.join(kind for kind, _ in found.new[:_NAMED])}"
    return f"{sides[0].n} and {sides[1].n} requests are too few of any one kind"


def matched(sides: Sequence[Columns]) -> tuple[Workload, list[Floats]]:
    """Weigh the requests after so that their kinds and prompt lengths are as often as before."""
    n = sides[0].n
    table, alone = _comparable(concatenate(sides), n)  # a word has another code in each file
    first, second = table.take(slice(None, n)), table.take(slice(n, None))
    index = (np.arange(first.n), np.arange(second.n))
    found = cells((first, second), index, "ttft")
    weights = unweighted(sides)
    kept = [weights[0] * (found.before >= 0), weights[1] * (found.after >= 0)]
    if not all(side.sum() > 0 for side in kept):
        raise DataError(f"nothing can be compared: {_why_nothing(found, (first, second))}")
    shares = [
        np.bincount(cell[cell >= 0], side[cell >= 0], minlength=found.count) / side.sum()
        for cell, side in zip((found.before, found.after), kept, strict=True)
    ]
    unmatched = found.unmatched_share
    if np.abs(shares[0] - shares[1]).sum() / 2 + unmatched < _SHIFTED:
        return Workload(same=False, reported_by_one=tuple(alone)), weights
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
    left_out = int((found.before < 0).sum()), int((found.after < 0).sum())
    held = Workload(
        same=False, reweighted=True, matched_on=found.matched_on, reported_by_one=tuple(alone),
        left_out=left_out,
    )  # fmt: skip
    return held, kept
