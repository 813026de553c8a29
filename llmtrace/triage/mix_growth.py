"""Find which kinds of request grew, and what each adds to the mean of the metric."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from llmtrace.dataset.columns import Columns
from llmtrace.stats.arrays import Floats, Mask
from llmtrace.triage.attribution.components import Values
from llmtrace.triage.over_time import Growth

_KINDS: Final = ("model", "route", "tenant", "operation", "region")
_LENGTHS: Final = {"prompt_tokens": "prompt", "output_tokens": "output"}
_MOST: Final = 5
_SURE: Final = 4.0  # standard errors between the shares
_MATTERS: Final = 0.1  # of what the first kind adds
_FEWEST: Final = 20


def growth_of(
    sides: tuple[Columns, Columns], both: tuple[Values, Values], design: float
) -> tuple[Growth, ...]:
    """Return the kinds of request that grew and take longer than average, largest effect first.

    A kind's effect is the growth of its share times how much longer than average its requests took
    before (or after, if there were none before).
    """
    before, after = both
    if min(len(before), len(after)) < _FEWEST:
        return ()
    usual = float(np.average(before.value, weights=before.weight))
    found = []
    for attributes, mine in _kinds(sides):
        low, high = (float(np.average(mask, weights=rows.weights))
                     for mask, rows in zip(mine, sides, strict=True))  # fmt: skip
        counts = [len(rows) for rows in sides]
        pooled = (low * counts[0] + high * counts[1]) / sum(counts)
        spread = pooled * (1 - pooled) * (1 / counts[0] + 1 / counts[1]) * max(design, 1.0)
        if high <= low or spread <= 0 or (high - low) / math.sqrt(spread) < _SURE:
            continue
        takes = _mean(before, mine[0][before.index]) or _mean(after, mine[1][after.index])
        if takes is not None and takes > usual:
            found.append(
                Growth(
                    attributes=attributes,
                    share_before=low,
                    share_after=high,
                    seconds=round((high - low) * (takes - usual), 9),
                )
            )
    found.sort(key=lambda one: -one.seconds)
    least = _MATTERS * found[0].seconds if found else 0.0
    return tuple(one for one in found if one.seconds >= least)[:_MOST]


def _mean(one: Values, mine: Mask) -> float | None:
    if np.count_nonzero(mine) < _FEWEST:
        return None
    return float(np.average(one.value[mine], weights=one.weight[mine]))


def _kinds(sides: Sequence[Columns]) -> Iterator[tuple[dict[str, str], tuple[Mask, Mask]]]:
    for name in _KINDS:
        words = [rows.words[name] for rows in sides]
        for value in dict.fromkeys((*words[0].names, *words[1].names)):
            masks = [column.where(value) for column in words]
            if masks[1].any() and not masks[1].all():
                yield {name: value}, (masks[0], masks[1])
    for name, word in _LENGTHS.items():
        yield from _lengths(name, word, *(rows.numbers[name] for rows in sides))


def _lengths(
    name: str, word: str, before: Floats, after: Floats
) -> Iterator[tuple[dict[str, str], tuple[Mask, Mask]]]:
    """Yield the requests longer than the p75, and than the p95, before."""
    known = before[~np.isnan(before)]
    if len(known) < _FEWEST:
        return
    for share in (0.75, 0.95):
        bound = float(np.quantile(known, share))
        with np.errstate(invalid="ignore"):
            yield {name: f"{word} over {bound:,.0f} tokens"}, (before > bound, after > bound)
