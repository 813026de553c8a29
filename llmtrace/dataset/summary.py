"""Sum up many requests: each stage's percentiles, its share and its budget.

Pure functions over rows. A row counts once; what is not reported of a stage stays unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from llmtrace.budget import Budget
from llmtrace.core.row import OUTCOMES, Row
from llmtrace.core.stages import PARTITION, STAGES, UNATTRIBUTED
from llmtrace.stats.quantiles import Interval, interval, quantile

Verdict = Literal["within", "over", "unclear"]

_METRICS: Final = ("e2e", "ttft", "tpot")
TURN_TTFT: Final = "turn_ttft"
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One stage or metric over many requests. Durations in seconds; `None` = not reported.

    Attributes:
        known: how many of the requests report it.
        p50_s: its median over those.
        high_s: its quantile at the budget's objective, p95 by default.
        interval: where the true `high_s` lies, in seconds, with 95 % confidence.
        share: of all the time waited; `None` for `ttft` and `tpot`, which are no part of a sum.
        limit_s: what the budget allows.
        verdict: whether `high_s` is within `limit_s`; "unclear" if the limit is in the interval.
        sources: of the measurement, the most frequent first.
    """

    name: str
    known: int
    p50_s: float | None
    high_s: float | None
    interval: Interval
    share: float | None
    limit_s: float | None
    verdict: Verdict | None
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Many requests together.

    Attributes:
        rows: all of them.
        succeeded: those the lines are about.
        objective: the quantile of `high_s`, 0 to 1.
        stages: a line for each stage, and one for what cannot be split, if there is any of it.
        metrics: a line for e2e, ttft and tpot; one for `turn_ttft` where the budget limits it.
        outcomes: how many ended how, in the order of `llmtrace.OUTCOMES`.
        errors: the error types of those that failed, the most frequent first; a client that
            cancels is no failure.
        exact: for how many rows the stages add up to e2e to the nanosecond.
        inconsistent: in how many a server's figure did not fit its window and was cut.
    """

    rows: int
    succeeded: int
    objective: float
    stages: tuple[Line, ...]
    metrics: tuple[Line, ...]
    outcomes: Mapping[str, int]
    errors: Mapping[str, int]
    exact: int
    inconsistent: int


def summarise(rows: Sequence[Row], budget: Budget) -> Summary:
    """Sum up requests against a budget.

    The lines are about those that succeeded: an error after 2 ms is no fast response, and a
    request its client cancelled shows nothing of the server. Other outcomes are counted apart.
    Turns of agents are no requests, and in no line but `turn_ttft`.
    """
    turns = [row for row in rows if row.is_turn and row.outcome == "success"]
    rows = [row for row in rows if not row.is_turn]
    done = [row for row in rows if row.outcome == "success"]
    waited = sum(row.e2e_ns for row in done)
    limits = budget.thresholds_s()
    names = [*STAGES, *([UNATTRIBUTED] if any(row.stages.unattributed for row in done) else [])]
    stages = [_stage(name, done, waited, limits.get(name), budget.objective) for name in names]
    metrics = [_metric(name, done, limits.get(name), budget.objective) for name in _METRICS]
    if (limit := limits.get(TURN_TTFT)) is not None:
        metrics.append(_line(TURN_TTFT, ttfts_s(turns), limit, budget.objective, share=None))
    outcomes = Counter(row.outcome for row in rows)
    errors = Counter(
        row.error_type for row in rows if row.error_type and row.outcome != "cancelled"
    )
    return Summary(
        rows=len(rows),
        succeeded=len(done),
        objective=budget.objective,
        stages=tuple(stages),
        metrics=tuple(metrics),
        outcomes={name: outcomes[name] for name in OUTCOMES if outcomes[name]},
        errors=dict(errors.most_common()),
        exact=sum(row.stages.total == row.e2e_ns for row in rows),
        inconsistent=sum(bool(row.stages.inconsistent) for row in rows),
    )


def _stage(
    name: Any, rows: Sequence[Row], waited: int, limit_s: float | None, objective: float
) -> Line:
    known = [(row, ns) for row in rows if (ns := getattr(row.stages, name)) is not None]
    sources = Counter(row.stages.sources[name] for row, _ in known if name in row.stages.sources)
    total = sum(ns for _, ns in known)
    return _line(
        name,
        [ns / _NS for _, ns in known],
        limit_s,
        objective,
        share=total / waited if waited and known else None,
        sources=tuple(source for source, _ in sources.most_common()),
    )


def _metric(name: str, rows: Sequence[Row], limit_s: float | None, objective: float) -> Line:
    values = [value for row in rows if (value := getattr(row, f"{name}_s")) is not None]
    share = 1.0 if name == "e2e" and values else None
    return _line(name, values, limit_s, objective, share=share)


def ttfts_s(turns: Sequence[Row]) -> list[float]:
    """Return the seconds to the first content of those turns that have it."""
    return [value for row in turns if (value := row.ttft_s) is not None]


def _line(
    name: str,
    values_s: Sequence[float],
    limit_s: float | None,
    objective: float,
    *,
    share: float | None,
    sources: tuple[str, ...] = (),
) -> Line:
    ordered = sorted(values_s)
    bounds = interval(ordered, objective)
    return Line(
        name=name,
        known=len(ordered),
        p50_s=quantile(ordered, 0.5) if ordered else None,
        high_s=quantile(ordered, objective) if ordered else None,
        interval=bounds,
        share=share,
        limit_s=limit_s,
        verdict=_verdict(bounds, limit_s) if ordered else None,
        sources=sources,
    )


def _verdict(bounds: Interval, limit_s: float | None) -> Verdict | None:
    if limit_s is None:
        return None
    if bounds.low is not None and bounds.low > limit_s:
        return "over"
    if bounds.high is not None and bounds.high <= limit_s:
        return "within"
    return "unclear"


def mean_changes(before: Sequence[Row], after: Sequence[Row]) -> dict[str, float]:
    """Return by how many seconds each stage's mean moved between two sets of requests.

    Unlike percentiles means add up: the changes come to the change of the mean e2e. A stage that
    only some rows report counts as nothing in the others, whose time is then in `unattributed`.

    Example:
        >>> from llmtrace.testing import make_row
        >>> row = make_row()
        >>> mean_changes([row], [row])["decode"]
        0.0
    """
    return {
        name: _mean(after, name) - _mean(before, name)
        for name in PARTITION
        if any(getattr(row.stages, name) for row in (*before, *after))
    }


def _mean(rows: Sequence[Row], name: str) -> float:
    return sum(getattr(row.stages, name) or 0 for row in rows) / len(rows) / _NS if rows else 0.0
