"""Compare a metric within each kind of request, since only one replica of many may be slow.

What affects a few requests moves no quantile of all of them, but that of their own kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from llmtrace.dataset.case import Window
from llmtrace.dataset.columns import Columns
from llmtrace.stats.arrays import Mask
from llmtrace.stats.significance import quantile
from llmtrace.triage.attribution.cohorts import ATTRIBUTES
from llmtrace.triage.attribution.components import Values, values
from llmtrace.triage.comparison.p95_change import CERTAIN, Compared, compare, measured
from llmtrace.triage.result import Cohort, Metric, Q

STAGED: Final[tuple[Metric, ...]] = ("ttft", "tpot")  # e2e depends mostly on response length
_FEWEST: Final = 20  # requests of a kind in each window
_MOST: Final = 0.8  # of the requests; a larger kind is nearly all of them
_VALUES: Final = 50  # most common values of a field that are looked at
_ROSE: Final = 1.3  # ratio to before, and to the others' ratio
_SHARES: Final = (0.5, Q)

Sides = tuple[Columns, Columns]


@dataclass(frozen=True, slots=True)
class Group:
    """A kind of request that got slower, though all together did not beyond chance."""

    cohort: Cohort
    compared: Compared


def of_kind(rows: Columns, attributes: Mapping[str, str]) -> Columns:
    """Return the rows that have all these attributes."""
    mine = np.ones(len(rows), bool)
    for name, value in attributes.items():
        mine &= rows.words[name].where(value)
    return rows.take(mine)


def clearest_group(rows: Sides, windows: tuple[Window, Window]) -> Group | None:
    """Return the kind of request that rose most clearly by itself; `None` = none beyond chance.

    The chance of a false alarm is divided by the number of kinds. Rows and windows are before and
    after.
    """
    kinds = list(_kinds(rows))
    tests = max(len(kinds) * len(STAGED), 1)
    best: Group | None = None
    for name, value in kinds:
        masks = [side.words[name].where(value) for side in rows]
        for metric in STAGED:
            both = (values(rows[0], metric), values(rows[1], metric))
            if not _rose(both, masks):
                continue
            mine = (rows[0].take(masks[0]), rows[1].take(masks[1]))
            found = compare(measured(mine, windows, metric), certain=CERTAIN / tests)
            p_value = found.change.p_value or 0.0
            clearer = best is None or p_value < (best.compared.change.p_value or 0.0)
            if found.change.rose and clearer:
                cohort = _cohort({name: value}, both, masks, q=min(p_value * tests, 1.0))
                best = Group(cohort, found)
    return best


def _kinds(rows: Sides) -> Iterator[tuple[str, str]]:
    """Yield the fields and values with enough requests in both windows."""
    for name in ATTRIBUTES:
        words = rows[1].words[name]
        counts = [np.bincount(side.words[name].codes + 1, minlength=len(words.names) + 1)[1:]
                  for side in rows]  # fmt: skip
        fewest = np.minimum(*counts)
        common = counts[1] < _MOST * len(rows[1])
        for code in np.argsort(-fewest, kind="stable")[:_VALUES]:
            if fewest[code] >= _FEWEST and common[code]:
                yield name, words.names[code]


def _rose(both: tuple[Values, Values], masks: list[Mask]) -> bool:
    """Return whether a kind's median or p95 rose, clearly more than the others'."""
    inside = [mask[one.index] for one, mask in zip(both, masks, strict=True)]
    if min(int(one.sum()) for one in inside) < _FEWEST or any(one.all() for one in inside):
        return False
    for share in _SHARES:
        grew = []
        for masked in (inside, [~one for one in inside]):
            low, high = (quantile(one.value[mask], share, one.weight[mask])
                         for one, mask in zip(both, masked, strict=True))  # fmt: skip
            grew.append(high / low if low > 0 else math.inf)
        of_kind, of_others = grew
        if of_kind >= _ROSE * max(of_others, 1.0):
            return True
    return False


def _cohort(
    attributes: dict[str, str],
    both: tuple[Values, Values],
    masks: list[Mask],
    *,
    q: float,
) -> Cohort:
    """Describe a kind of request; slow are those above the p95 of all before."""
    before, after = both
    mine = masks[1][after.index]
    slow = after.value > quantile(before.value, Q, before.weight)
    usual = 1 - Q
    excess, all_excess = (float(slow[m].sum()) - usual * float(m.sum())
                          for m in (mine, np.ones(len(slow), bool)))  # fmt: skip
    share = excess / all_excess if all_excess > 0 else 1.0
    rest = ~mine
    return Cohort(
        attributes=attributes,
        excess_share=float(np.clip(share, 0.0, 1.0)),
        traffic_share=float(mine.mean()),
        p95_without=round(quantile(after.value[rest], Q, after.weight[rest]), 9),
        n=int(mine.sum()),
        slow=int((slow & mine).sum()),
        q=q,
    )
