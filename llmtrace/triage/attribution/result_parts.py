"""Convert an attribution, the anatomy and the estimates to the parts of a result."""

from __future__ import annotations

import numpy as np

from llmtrace.core.stages import PARTITION
from llmtrace.dataset.columns import Columns
from llmtrace.stats.arrays import Floats
from llmtrace.stats.significance import harrell_davis
from llmtrace.triage.attribution.attribute import NAMES, Attribution, Spread
from llmtrace.triage.attribution.divide_change import Divided
from llmtrace.triage.attribution.prefill_estimate import estimate_prefill, wants_estimate
from llmtrace.triage.result import NO_BOUNDS, Anatomy, Contribution, Estimates, Q


def contributions_of(
    delta: float | None, found: Attribution | None, spread: Spread | None, *, significant: bool
) -> tuple[Contribution, ...]:
    """Return the parts in whole nanoseconds, so that their printed sum is exact."""
    if delta is None:
        return ()
    whole = round(delta * 1e9)
    if found is None:
        return (Contribution(name="mix", seconds=whole / 1e9),)
    parts = [round(float(seconds) * 1e9) for seconds in found.seconds]
    parts[-1] += whole - sum(parts)
    listed = []
    for i, name in enumerate(NAMES):
        bounds = NO_BOUNDS
        sure = False
        if spread is not None:
            low, high = float(spread.low[i]), float(spread.high[i])
            bounds = (round(low, 9), round(high, 9))
            # A tiny part is no part of an incident, however certain.
            sure = significant and (low > 0 or high < 0)
            sure = sure and abs(parts[i]) >= 0.02 * max(abs(whole), 1)
        listed.append(Contribution(name=name, seconds=parts[i] / 1e9, ci=bounds, significant=sure))
    return tuple(listed)


def anatomy(
    value: Floats, parts: Floats, q: float, at: float, weight: Floats | None = None
) -> dict[str, float]:
    """Return the seconds of each stage in a request at the quantile; they add up to `at`.

    The Harrell-Davis estimate of a quantile is a weighted mean of all ordered values; the same
    weights are applied to each stage's times.

    Args:
        value: a metric of many requests.
        parts: a column for each of `PARTITION`, adding up to `value`.
        q: between 0 and 1.
        at: the quantile as reported, which the smoother estimate is scaled to.
        weight: how many requests each row stands for; one, if not given.
    """
    order = np.argsort(value, kind="stable")
    weights = harrell_davis(len(value), q)
    if weight is not None and np.ptp(weight) > 0:
        # A row gets the weights of all the ranks that it stands for.
        reached = np.append(0.0, np.cumsum(weight[order]) / weight.sum())
        of_ranks = np.append(0.0, np.cumsum(weights))
        weights = np.diff(np.interp(reached, np.linspace(0, 1, len(of_ranks)), of_ranks))
    found = weights @ parts[order]
    total = float(found.sum())
    if total > 0:
        found = found * (at / total)
    return {name: float(found[i]) for i, name in enumerate(PARTITION) if found[i] != 0}


def anatomy_of(divided: Divided, *p95s: float | None) -> Anatomy | None:
    """Return the stages of a request at the p95 in both windows; `None` = a window has no p95."""
    sides = zip((divided.before, divided.after), p95s, strict=True)
    parts = [anatomy(one.value, one.staged.parts, Q, at, one.weight)
             for one, at in sides if at is not None]  # fmt: skip
    return Anatomy(before=parts[0], after=parts[1]) if len(parts) == len(p95s) else None


def estimates_of(sides: tuple[Columns, Columns], seed: int) -> Estimates | None:
    """Return the estimated prefill of both windows; `None` = prefill is reported."""
    if not wants_estimate(sides[1]):
        return None
    found = [estimate_prefill(rows, seed) for rows in sides]
    return Estimates(before=found[0], after=found[1]) if any(found) else None
