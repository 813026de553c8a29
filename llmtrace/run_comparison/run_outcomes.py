"""Decide whether the outcomes and answers of two runs differ; durations alone do not show it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from llmtrace.dataset.columns import Columns
from llmtrace.run_comparison.effects import ALPHA, MIN_COUNT, Sample, chance_p
from llmtrace.stats.arrays import Floats, Mask
from llmtrace.stats.significance import clustered, effective_count, more_than, share_bounds

_NS: Final = 1_000_000_000


def shares_p(sides: Sequence[Columns], masks: Sequence[Mask]) -> float:
    """Return the two-sided p-value of a difference in the share of requests that masks select."""
    (k1, n1), (k2, n2) = map(_independent, sides, masks)
    return min(1.0, 2 * min(more_than(k1, n1, k2, n2), more_than(k2, n2, k1, n1)))


def share_change(sides: Sequence[Columns], masks: Sequence[Mask]) -> tuple[float, float]:
    """Return the 95 % interval of a share's change: Newcombe's, of the shares' own intervals."""
    counts = list(map(_independent, sides, masks))
    first, second = (k / max(n, 1e-9) for k, n in counts)
    (low1, high1), (low2, high2) = (share_bounds(*one) for one in counts)
    less, more = math.hypot(second - low2, high1 - first), math.hypot(high2 - second, first - low1)
    return second - first - less, second - first + more


def _independent(side: Columns, mask: Mask) -> tuple[float, float]:
    """Return how many independent requests a mask selects, by their weights, and of how many."""
    n = effective_count(side.weights) / clustered(side.start / _NS, mask)
    return float(side.weights[mask].sum() / max(side.weights.sum(), 1e-9)) * n, n


def identical_answers(
    before: Mapping[int, str], after: Mapping[int, str]
) -> tuple[float, int] | None:
    """Return the share of identical answers, and of how many; `None` = none can be compared."""
    both = before.keys() & after.keys()
    if not both:
        return None
    return sum(before[i] == after[i] for i in both) / len(both), len(both)


def other_answers(
    sides: Sequence[Columns], weights: Sequence[Floats], identical: tuple[float, int] | None
) -> Iterator[str]:
    """Yield how the answers of requests that succeeded differ, in words.

    Each request stands for so many as its weight; `identical` is of `identical_answers`.
    """
    if identical is not None and identical[0] < 1:
        share, count = identical
        yield f"{round((1 - share) * count):,} of {count:,} answers are others"
    lengths = []
    for side, weight in zip(sides, weights, strict=True):
        used = ~np.isnan(side.numbers["output_tokens"]) & (weight > 0)
        lengths.append(Sample(side.numbers["output_tokens"][used], weight[used]))
    if all(len(one.values) >= MIN_COUNT for one in lengths):
        first, second = (one.mean for one in lengths)
        if first != second and chance_p(*lengths) < ALPHA:
            yield f"answers have {first:,.1f} tokens before and {second:,.1f} after"
    words = [side.words["finish_reason"] for side in sides]
    if not all((one.codes >= 0).any() for one in words):
        return
    reasons = sorted({name for one in words for name in one.names})
    for reason in reasons:
        masks = [one.where(reason) for one in words]
        if shares_p(sides, masks) < ALPHA / len(reasons):
            before, after = (float(mask.mean()) for mask in masks)
            yield f"{before:.0%} end with {reason!r} before, {after:.0%} after"
