"""Compare windows at the same mix of kinds of requests: model, route, tenant, prompt length.

Another mix changes every mean, such as that of cached tokens, although nothing is broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.stats.arrays import Floats
from llmtrace.triage.evidence.changes import half_octaves
from llmtrace.triage.evidence.window_rows import Side

ALL_KINDS: Final = ("model", "route", "tenant")
_FEW: Final = 5  # requests of a kind before, for its mean to be used
_KNOWN: Final = 0.7  # share of the requests after that must be of a kind seen before
_MAX_KINDS: Final = 400
_TYPICAL: Final = 0.8  # mean absolute deviation of a share, in standard errors


def values_at_same_mix(
    before: Side, after: Side, name: str, *, by_length: bool, by: Sequence[str] = ALL_KINDS
) -> tuple[Floats, Floats] | None:
    """Return a field before and after, corrected for how the kinds of requests differ before.

    From each value its kind's mean before is subtracted, and the mean that the mix after would
    have had before is added. `None` = rows name no kinds, or most kinds are new. `by`: the columns
    that tell kinds apart; `by_length`: the prompt's length does, too.
    """
    kinds = _kinds(before, after, by, by_length=by_length)
    if kinds is None:
        return None
    value = before.number(name)
    known = np.isfinite(value)
    size = int(max(one.max(initial=0) for one in kinds)) + 1
    n = np.bincount(kinds[0][known], minlength=size)
    total = np.bincount(kinds[0][known], value[known], minlength=size)
    usual = np.where(n >= _FEW, total / np.maximum(n, 1), np.nan)
    of_after = usual[kinds[1][np.isfinite(after.number(name))]]
    if np.isfinite(of_after).sum() < max(_KNOWN * len(of_after), 1):
        return None
    usual -= of_after[np.isfinite(of_after)].mean()
    return value - usual[kinds[0]], after.number(name) - usual[kinds[1]]


def usual_share(before: Side, after: Side, flag: str, by: Sequence[str]) -> float | None:
    """Return the share with a flag if each kind of the requests after had it as often as before.

    New kinds never had it. `None` = rows name no kinds.
    """
    kinds = _kinds(before, after, by, by_length=False)
    if kinds is None:
        return None
    size = int(max(one.max(initial=0) for one in kinds)) + 1
    n, having = (np.bincount(kinds[0], weights, size) for weights in
                 (None, (before.number(flag) == 1).astype(np.float64)))  # fmt: skip
    return float((having / np.maximum(n, 1))[kinds[1]].mean())


def mix_moved(before: Side, after: Side) -> float:
    """Return the share of requests that are of another kind than before, beyond chance.

    The total variation distance of both mixes, less what it is on average between two samples of
    one mix.
    """
    kinds = _kinds(before, after, ALL_KINDS, by_length=False)
    if kinds is None or not min(map(len, kinds)):
        return 0.0
    size = int(max(one.max() for one in kinds)) + 1
    p, q = (np.bincount(one, minlength=size) / len(one) for one in kinds)
    both = (p * len(kinds[0]) + q * len(kinds[1])) / sum(map(len, kinds))
    chance = np.sqrt(both * (1 - both) * sum(1 / len(one) for one in kinds))
    return float(max(0.5 * (np.abs(p - q) - _TYPICAL * chance).sum(), 0.0))


def _kinds(
    before: Side, after: Side, by: Sequence[str], *, by_length: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return each row's kind as a number, by as many columns as leave few enough kinds."""
    found = [np.zeros(len(before), np.int64), np.zeros(len(after), np.int64)]
    used = 0
    columns = [_codes(before, after, column) for column in by]
    if by_length:
        columns.append(
            tuple(half_octaves(one.number("prompt_tokens")) + 1 for one in (before, after))
        )
    for codes in columns:
        if not all((one > 0).any() for one in codes):
            continue
        size = max(int(one.max()) for one in codes) + 1
        finer = [kind * size + one for kind, one in zip(found, codes, strict=True)]
        _, numbers = np.unique(np.concatenate(finer), return_inverse=True)
        # New kinds have no mean that few requests would make uncertain.
        if len(np.unique(finer[0])) > min(_MAX_KINDS, max(len(before) // 20, 1)):
            continue
        found = [numbers[: len(before)], numbers[len(before) :]]
        used += 1
    return (found[0], found[1]) if used else None


def _codes(before: Side, after: Side, column: str) -> tuple[NDArray[np.int64], ...]:
    """Return each row's value of a column as a number, the same in both windows; 0 = unknown."""
    words = [side.rows.words[column] for side in (before, after)]
    names = {name: k + 1 for k, name in enumerate(sorted({*words[0].names, *words[1].names}))}
    return tuple(np.array([*(names[name] for name in one.names), 0], np.int64)[one.codes]
                 for one in words)  # fmt: skip
