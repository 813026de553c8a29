"""Measure what an incident meant for users, and how bad it is now."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from llmtrace.budget import Budget
from llmtrace.dataset.case import Window
from llmtrace.dataset.columns import Columns
from llmtrace.stats.arrays import Mask
from llmtrace.stats.significance import quantile
from llmtrace.triage.attribution.components import Values
from llmtrace.triage.over_time import Impact
from llmtrace.triage.result import Q
from llmtrace.triage.windows.bins import bins_for, p50_and_p95

_CHUNKS: Final = 20  # of the incident; the last of them shows how it is now
_FEWEST: Final = 20  # requests in it
_TENANTS: Final = 10


def impact_of(
    rows: Columns,
    one: Values,
    incident: Window,
    threshold: float,
    budget: Budget | None,
    *,
    gave_up: bool,
    usual_rate: float | None,
) -> Impact | None:
    """Measure the impact; `None` = no request came in the incident, and none was expected.

    Args:
        rows: all that were searched.
        one: the metric of these.
        incident: when it lasted.
        threshold: the p95 before.
        budget: gives the limit, if it has one for the metric.
        gave_up: whether clients cancelled because of it, so that cancelled requests count.
        usual_rate: requests per second before, if they are fewer now; `None` = they are not.
    """
    by_budget = None if budget is None else budget.thresholds_s().get(one.metric)
    usual = threshold if math.isfinite(threshold) else None
    limit = usual if by_budget is None else by_budget
    t = rows.start / 1e9
    inside = (t >= incident.start) & (t < incident.end)
    lost = 0.0
    if usual_rate is not None:
        lost = max(usual_rate * incident.seconds - float(rows.weights[inside].sum()), 0.0)
    if not inside.any() and not lost:
        return None
    bad = rows.failed
    cancelled = rows.words["outcome"].where("cancelled") & gave_up
    if limit is not None:
        bad[one.index] |= one.value > limit
        bad[one.censored] |= one.at_least > limit
    hit = inside & (bad | cancelled)
    tenants, count = _tenants(rows, hit)
    now, worst, worst_at = _now_and_worst(one, incident)
    allowed = 0.0 if budget is None else (1 - budget.objective) * float(rows.weights.sum())
    return Impact(
        since=incident.start,
        until=incident.end,
        limit_s=limit,
        from_budget=by_budget is not None,
        requests=round(float(rows.weights[hit].sum())),
        of=round(float(rows.weights[inside].sum())),
        cancelled=round(float(rows.weights[inside & cancelled].sum())),
        lost=round(lost),
        tenants=tenants,
        tenants_hit=count,
        budget_used=float(rows.weights[hit].sum()) / allowed if allowed > 0 else None,
        now_s=now,
        worst_s=worst,
        worst_at=worst_at,
    )


def _tenants(rows: Columns, hit: Mask) -> tuple[Mapping[str, int], int | None]:
    words = rows.words["tenant"]
    if not (words.codes >= 0).any():
        return {}, None
    codes = words.codes[hit]
    known = codes >= 0
    counts = np.bincount(codes[known], rows.weights[hit][known], minlength=len(words.names))
    most = np.argsort(-counts, kind="stable")[:_TENANTS]
    return (
        {words.names[code]: round(float(counts[code])) for code in most if counts[code] > 0},
        int(np.count_nonzero(counts)),
    )


def last_requests(one: Values, incident: Window) -> int | None:
    """Return how many of the last requests show how it is now; `None` = the incident has fewer."""
    n = int(((one.t >= incident.start) & (one.t < incident.end)).sum())
    size = max(_FEWEST, n // _CHUNKS)
    return size if n >= size else None


def _now_and_worst(
    one: Values, incident: Window
) -> tuple[float | None, float | None, float | None]:
    """Return the p95 of the last requests, the highest p95 of a drawn bin, and its time."""
    size, bins = last_requests(one, incident), bins_for(one.t)
    if size is None or bins is None:
        return None, None, None
    now = quantile(one.value[-size:], Q, one.weight[-size:])
    _, p95 = p50_and_p95(one.t, one.value, bins.edges)
    middle = (bins.edges[:-1] + bins.edges[1:]) / 2
    high = np.where((middle >= incident.start) & (middle < incident.end), p95, np.nan)
    if np.isnan(high).all():
        return None, None, None
    at = int(np.nanargmax(high))
    return round(now, 9), round(float(high[at]), 9), float(middle[at])
