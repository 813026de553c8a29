"""Compare windows at the same mix of kinds: models, routes, tenants.

Another mix of requests moves every mean, of cached tokens and of prompt lengths alike, and nothing
is broken.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.triage.evidence.window_rows import Side

_BY: Final = ("model", "route", "tenant")
_FEW: Final = 5  # requests of a kind before, from which its mean is used
_KNOWN: Final = 0.7  # of the requests after are of a kind that was there before
_MAX_KINDS: Final = 400


def by_mix(before: Side, after: Side, name: str) -> float | None:
    """Return a field's mean before, weighted to the kinds of requests of after.

    `None` where rows do not name their kind, or most kinds were not there before.
    """
    kinds = _kinds(before, after)
    if kinds is None:
        return None
    value = before.number(name)
    known = np.isfinite(value)
    size = int(max(one.max(initial=0) for one in kinds)) + 1
    n = np.bincount(kinds[0][known], minlength=size)
    total = np.bincount(kinds[0][known], value[known], minlength=size)
    wanted = np.bincount(kinds[1][np.isfinite(after.number(name))], minlength=size)
    usable = n >= _FEW
    covered = float(wanted[usable].sum() / max(wanted.sum(), 1))
    if covered < _KNOWN:
        return None
    means = total[usable] / n[usable]
    return float(np.average(means, weights=wanted[usable]))


def _kinds(before: Side, after: Side) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return each row's kind as a number, by as many columns as leave few enough kinds."""
    found = [np.zeros(len(before), np.int64), np.zeros(len(after), np.int64)]
    used = 0
    for column in _BY:
        words = [side.rows.words[column] for side in (before, after)]
        if not all((one.codes >= 0).any() for one in words):
            continue
        names = {name: k + 1 for k, name in enumerate(sorted({*words[0].names, *words[1].names}))}
        finer = []
        for kind, one in zip(found, words, strict=True):
            codes = np.array([*(names[name] for name in one.names), 0], np.int64)[one.codes]
            finer.append(kind * (len(names) + 1) + codes)
        every, numbers = np.unique(np.concatenate(finer), return_inverse=True)
        if len(every) > min(_MAX_KINDS, max(len(before) // 20, 1)):
            continue
        found = [numbers[: len(before)], numbers[len(before) :]]
        used += 1
    return (found[0], found[1]) if used else None
