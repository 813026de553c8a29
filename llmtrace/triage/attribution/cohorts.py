"""Find cohorts whose requests are slow, or fail, beyond their share.

For every value of every attribute, slow requests are counted, less those expected from their work
and from how that value fared before. A value that passes an exact test, with the false discovery
rate controlled, must also explain the change: without it, the p95 is nearly as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.dataset.columns import Columns
from llmtrace.stats.arrays import Floats, Mask
from llmtrace.stats.significance import (
    binomial_tail,
    clustered,
    effective_count,
    false_discovery,
    quantile,
)
from llmtrace.triage.attribution.components import Values, slow
from llmtrace.triage.attribution.workload_mix import Cells, Codes
from llmtrace.triage.result import Cohort

ATTRIBUTES: Final = (
    "replica", "region", "tenant", "route", "model", "version", "client", "gateway", "provider",
    "server", "service", "operation", "response_model",
)  # fmt: skip
_BY_ANSWER: Final = {"provider", "response_model"}
_MAX_VALUES: Final = 50
_MIN_COUNT: Final = 30
_MIN_SLOW: Final = 5
_NEARLY_ALL: Final = 0.95
_FALSE: Final = 0.05
_BEYOND_SHARE: Final = 0.1
_BEATS_PARENTS: Final = 0.1
_EXPLAINS: Final = 0.25
_PARENTS: Final = 6
_SHOWN: Final = 5
_PRIOR: Final = 10.0  # weight, in requests, of the assumption that a cell is like all others
_PRIOR_SLOW: Final = 2.0


@dataclass(frozen=True, slots=True)
class _Side:
    """Requests of one window, as arrays of equal length."""

    slow: Mask
    weight: Floats  # adds up to the effective number of requests
    chance: Floats  # of being slow, by its cell before
    codes: dict[str, Codes]  # by attribute
    value: Floats  # infinite = cut short when it was slow already

    def __len__(self) -> int:
        return len(self.slow)


@dataclass(frozen=True, slots=True)
class _Candidate:
    attributes: tuple[tuple[str, int], ...]
    n: int
    slow: int
    excess_share: float
    traffic_share: float
    p_value: float

    @property
    def score(self) -> float:
        """How far its share of the excess is beyond its share of the traffic."""
        return self.excess_share - self.traffic_share


def find_cohorts(
    rows: tuple[Columns, Columns],
    both: tuple[Values, Values],
    cells: Cells,
    *,
    threshold: float,
    q: float,
    design: float,
) -> tuple[Cohort, ...]:
    """Return the cohorts of the slow requests, the clearest first; empty = not localised.

    Args:
        rows: of the windows before and after.
        both: the metric of those rows.
        cells: of the same work, of the rows that report the metric.
        threshold: above which a request is slow: the p95 before.
        q: the quantile that `threshold` is.
        design: requests per independent request.
    """
    before, after = _sides(rows, both, cells, threshold, q)
    excess = float((after.weight * (after.slow - after.chance)).sum())
    if excess < _MIN_SLOW or not len(before):
        return ()
    singles = [
        one
        for name in ATTRIBUTES
        for value in _values(after.codes[name])
        if (one := _candidate(((name, value),), before, after, excess, design))
    ]
    parents = sorted(singles, key=lambda one: -one.score)[:_PARENTS]
    tried = singles + list(_pairs(parents, singles, (before, after), excess, design))
    kept = []
    rates = false_discovery([one.p_value for one in tried])
    for one, false_rate in zip(tried, rates, strict=True):
        if false_rate > _FALSE or one.score < _BEYOND_SHARE:
            continue
        without = _without(one, before, after, q)
        if without is not None:
            kept.append((one, false_rate, without))
    kept.sort(key=lambda found: (-round(found[0].score, 3), len(found[0].attributes), found[1]))
    words = rows[1].words
    return tuple(
        Cohort(
            attributes={name: words[name].names[code] for name, code in one.attributes},
            excess_share=one.excess_share,
            traffic_share=one.traffic_share,
            p95_without=without,
            n=one.n,
            slow=one.slow,
            q=false_rate,
        )
        for one, false_rate, without in kept[:_SHOWN]
    )


def failing_cohorts(
    rows: tuple[Columns, Columns], failed: tuple[Mask, Mask]
) -> tuple[Cohort, ...]:
    """Return the cohorts of the failed requests, the clearest first; empty = not localised.

    Found like slow ones: a request takes 1 if it failed and 0 if not, and all do the same work.
    Rows are of the windows before and after.
    """
    before, after = (
        Values(
            metric="e2e", index=np.arange(len(one)), t=one.start / 1e9, value=mask.astype(float),
            weight=one.weights, censored=np.array([], np.intp), censored_t=np.array([]),
            at_least=np.array([]),
        )
        for one, mask in zip(rows, failed, strict=True)
    )  # fmt: skip
    alike = [np.zeros(len(one), np.int64) for one in rows]
    same = Cells(alike[0], alike[1], count=1, matched_on=(), new=())
    # An outage is one cluster in time, but still shows which requests it hits: limit the effect.
    design = min(clustered(after.t, failed[1]), max(failed[1].sum() / _MIN_COUNT, 1.0))
    found = find_cohorts(
        rows, (before, after), same, threshold=0.5,
        q=1 - (float(before.value.mean()) + float(after.value.mean())) / 2, design=design,
    )  # fmt: skip
    return tuple(
        replace(one, p95_without=None, fails=True) for one in found if _answered(one, rows)
    )


def _answered(one: Cohort, rows: tuple[Columns, Columns]) -> bool:
    """Return whether successful requests have the cohort's values of fields that responses set.

    Before a response names the provider, a row has the client's default: no reason for a failure.
    """
    succeeded = [side.take(side.words["outcome"].where("success")) for side in rows]
    return all(
        any(side.words[name].where(one.attributes[name]).any() for side in succeeded)
        for name in _BY_ANSWER & one.attributes.keys()
    )


def _sides(
    rows: tuple[Columns, Columns],
    both: tuple[Values, Values],
    cells: Cells,
    threshold: float,
    q: float,
) -> tuple[_Side, _Side]:
    """Return the requests of both windows, with their chance of being slow."""
    made = []
    for columns, one, cell in zip(rows, both, (cells.before, cells.after), strict=True):
        index, above = slow(one, threshold)
        by_row, value = np.full(len(columns), -1, np.int64), np.full(len(columns), np.inf)
        by_row[one.index], value[one.index] = cell, one.value
        weight = columns.weights[index]
        weight = weight * (effective_count(weight) / weight.sum() if len(weight) else 1.0)
        codes = {name: columns.words[name].codes[index].astype(np.int64) for name in ATTRIBUTES}
        made.append((by_row[index], above, weight, codes, value[index]))
    cell, above, weight, *_ = made[0]
    chance = _chance(above, weight, cell, cells.count, 1 - q)
    before, after = (_Side(above, weight, chance[cell], codes, value)
                     for cell, above, weight, codes, value in made)  # fmt: skip
    return before, after


def _chance(above: Mask, weight: Floats, cell: Codes, count: int, usual: float) -> Floats:
    """Return each cell's share of slow requests before, and last that of requests of no cell."""
    inside = cell >= 0
    n = np.bincount(cell[inside], weight[inside], minlength=count)
    k = np.bincount(cell[inside], (weight * above)[inside], minlength=count)
    return np.append((k + usual * _PRIOR) / (n + _PRIOR), usual)


def _values(codes: Codes) -> list[int]:
    """Return the most common values that enough requests have, but not nearly all."""
    counts = np.bincount(codes[codes >= 0])
    if (counts >= _MIN_COUNT).sum() == 0:
        return []
    order = np.argsort(-counts, kind="stable")[:_MAX_VALUES]
    return [int(i) for i in order if _MIN_COUNT <= counts[i] < _NEARLY_ALL * len(codes)]


def _candidate(
    attributes: tuple[tuple[str, int], ...],
    before: _Side,
    after: _Side,
    excess: float,
    design: float,
) -> _Candidate | None:
    """Test whether requests with these attributes are slow beyond their share; `None` = few."""
    mine, was = _mask(attributes, after), _mask(attributes, before)
    n, k = int(mine.sum()), int(after.slow[mine].sum())
    if n < _MIN_COUNT or k < _MIN_SLOW or n >= _NEARLY_ALL * len(after):
        return None
    # Slow requests of this value before, relative to those expected from their work.
    past, now = before.weight * before.slow, after.weight * after.slow
    work = before.weight * before.chance
    usual = float((past[was].sum() + _PRIOR_SLOW) / (work[was].sum() + _PRIOR_SLOW))
    expected_slow = after.weight * after.chance
    expected, others = float(expected_slow[mine].sum()) * usual, float(expected_slow[~mine].sum())
    found, total = float(now[mine].sum()), float(now.sum())
    p = binomial_tail(
        int(found / design), int(total / design), expected / max(expected + others, 1e-12)
    )
    return _Candidate(
        attributes=attributes,
        n=n,
        slow=k,
        excess_share=(found - expected) / excess,
        traffic_share=float(after.weight[mine].sum() / after.weight.sum()),
        p_value=p,
    )


def _pairs(
    parents: list[_Candidate],
    singles: list[_Candidate],
    sides: tuple[_Side, _Side],
    excess: float,
    design: float,
) -> Iterator[_Candidate]:
    """Yield pairs of values that stand out more than either alone."""
    seen = set()
    for one in parents:
        for other in singles:
            pair = tuple(sorted(one.attributes + other.attributes))
            if one.attributes[0][0] == other.attributes[0][0] or pair in seen:
                continue
            seen.add(pair)
            found = _candidate(pair, *sides, excess, design)
            if found and found.score >= max(one.score, other.score) + _BEATS_PARENTS:
                yield found


def _mask(attributes: tuple[tuple[str, int], ...], side: _Side) -> NDArray[np.bool_]:
    mask = np.ones(len(side), bool)
    for name, code in attributes:
        mask &= side.codes[name] == code
    return mask


def _without(one: _Candidate, before: _Side, after: _Side, q: float) -> float | None:
    """Return the others' p95 after if they changed clearly less; else `None`."""
    rest_b, rest_a = (~_mask(one.attributes, side) for side in (before, after))
    if not rest_b.any() or not rest_a.any():
        return None
    change = quantile(after.value, q, after.weight) - quantile(before.value, q, before.weight)
    without = quantile(after.value[rest_a], q, after.weight[rest_a])
    usual = quantile(before.value[rest_b], q, before.weight[rest_b])
    if change <= 0 or without - usual > (1 - _EXPLAINS) * change:
        return None
    return round(without, 9) if np.isfinite(without) else None
