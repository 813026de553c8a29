"""Compare measured requests with a budget: which stage exceeds it, and how certain that is.

The time that the request at the objective spends in each stage is compared with the stage's
allocation: both add up. The report also has each stage's own percentile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from llmtrace.budget.model import Budget, Budgets
from llmtrace.core.row import Row
from llmtrace.core.stages import PARTITION
from llmtrace.dataset.columns import from_rows
from llmtrace.dataset.summary import TURN_TTFT, Line, Summary, summarise, ttfts_s
from llmtrace.stats.quantiles import least_values
from llmtrace.stats.significance import harrell_davis, share_bounds

State = Literal["within", "over", "unclear", "no limit", "not reported"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One stage or metric compared with its limit. Durations in seconds; `None` = not known.

    Attributes:
        name: of the stage or metric.
        allowed_s: what the budget allows.
        spent_s: what the request at the objective spends; of stages alone, and they add up.
        line: its percentiles, and how far they are known.
        within: how many of the requests that report it are within what is allowed.
        share: the share of these, and between what it lies with 95 % confidence.
        state: the result of the comparison: whether its percentile is within what is allowed, by
            the interval of the percentile.
    """

    name: str
    allowed_s: float | None
    spent_s: float | None
    line: Line
    within: int | None
    share: tuple[float, float, float] | None
    state: State

    @property
    def used(self) -> float | None:
        """The share of the allocation that is spent: 1 = all of it."""
        if self.spent_s is None or not self.allowed_s:
            return None
        return self.spent_s / self.allowed_s


@dataclass(frozen=True, slots=True)
class Report:
    """Requests compared with one budget.

    Attributes:
        budget: which.
        summary: the requests it covers.
        read: how many requests there are, covered or not.
        stages: each, and `unattributed` if there is any.
        metrics: e2e, ttft, tpot; of turns `turn_ttft`, where it is limited.
        high_s: the quantile of e2e at the objective that the stages' times add up to; `None` =
            no request succeeded.
        enough: whether there are as many requests as it takes for an upper bound.
    """

    budget: Budget
    summary: Summary
    read: int
    stages: tuple[Comparison, ...]
    metrics: tuple[Comparison, ...]
    high_s: float | None
    enough: bool

    @property
    def state(self) -> State:
        """The state of the whole request."""
        return self.metrics[0].state

    @property
    def scope(self) -> str:
        """What the budget covers, in words; empty = everything."""
        both = (("model", self.budget.model), ("route", self.budget.route))
        return " and ".join(f"{name} {', '.join(wanted)}" for name, wanted in both if wanted)

    @property
    def why_none(self) -> str:
        """Why no request can be compared with the budget, where none can."""
        if self.read and not self.summary.rows:
            return f"none of the {self.read} requests matches {self.scope}"
        return f"none of the {self.summary.rows} requests that it covers succeeded"

    @property
    def eats(self) -> Comparison | None:
        """The stage furthest above its allocation; `None` = none is."""
        over = [one for one in self.stages if one.used is not None and one.used > 1]
        return max(
            over, key=lambda one: (one.spent_s or 0.0) - (one.allowed_s or 0.0), default=None
        )


def report(rows: Sequence[Row], budget: Budget) -> Report:
    """Compare the requests a budget covers with it."""
    covered = [row for row in rows if budget.covers(row.model, row.route)]
    summary = summarise(covered, budget)
    ended = [row for row in covered if row.outcome == "success"]
    good = [row for row in ended if not row.is_turn]
    shown = ttfts_s([row for row in ended if row.is_turn])
    high, spent = _anatomy(good, budget.objective)
    limits = budget.thresholds_s()
    return Report(
        budget=budget,
        summary=summary,
        read=len(rows),
        stages=tuple(
            _compare(line, limits.get(line.name), spent.get(line.name), _values(good, line.name))
            for line in summary.stages
        ),
        metrics=tuple(
            _compare(
                line,
                limits.get(line.name),
                None,
                shown if line.name == TURN_TTFT else _values(good, line.name),
            )
            for line in summary.metrics
        ),
        high_s=high,
        enough=len(good) >= least_values(budget.objective),
    )


def reports(rows: Sequence[Row], budgets: Budgets) -> tuple[Report, ...]:
    """Compare requests with each of several budgets."""
    return tuple(report(rows, budget) for budget in budgets)


def _values(rows: Sequence[Row], name: str) -> list[float]:
    if name in PARTITION:
        found = (getattr(row.stages, name) for row in rows)
        return [ns / 1e9 for ns in found if ns is not None]
    values = (getattr(row, f"{name}_s") for row in rows)
    return [value for value in values if value is not None]


def _anatomy(rows: Sequence[Row], objective: float) -> tuple[float | None, dict[str, float]]:
    if not rows:
        return None, {}
    columns = from_rows(rows)
    whole = columns.numbers["e2e_s"]
    values = np.column_stack([columns.numbers[f"{name}_s"] for name in PARTITION])
    order = np.argsort(whole, kind="stable")
    spent = harrell_davis(len(order), objective) @ np.nan_to_num(values)[order]
    known = [bool(np.isfinite(column).any()) for column in values.T]
    return float(spent.sum()), {
        name: float(spent[i]) for i, name in enumerate(PARTITION) if known[i]
    }


def _compare(
    line: Line, allowed: float | None, spent: float | None, values: Sequence[float]
) -> Comparison:
    share = within = None
    if allowed is not None and values:
        within = sum(value <= allowed for value in values)
        low, high = share_bounds(within, len(values))
        share = (within / len(values), low, high)
    state = _state(line, allowed)
    return Comparison(line.name, allowed, spent, line, within, share, state)


def _state(line: Line, allowed: float | None) -> State:
    if not line.known:
        return "not reported"
    if allowed is None:
        return "no limit"
    return line.verdict or "unclear"


def as_plain(report: Report) -> dict[str, Any]:
    """Return a report as what JSON can write."""
    return {
        "budget": report.budget.name,
        "objective": report.budget.objective,
        "total_s": report.budget.total_s,
        "state": report.state,
        "requests": report.summary.rows,
        "succeeded": report.summary.succeeded,
        "outcomes": dict(report.summary.outcomes),
        "spent_s": report.high_s,
        "stages": [_plain(one) for one in report.stages],
        "metrics": [_plain(one) for one in report.metrics],
    }


def _plain(one: Comparison) -> dict[str, Any]:
    return {
        "name": one.name,
        "state": one.state,
        "allowed_s": one.allowed_s,
        "spent_s": one.spent_s,
        "known": one.line.known,
        "high_s": one.line.high_s,
        "high_ci_s": [one.line.interval.low, one.line.interval.high],
        "within": one.within,
        "share": None if one.share is None else one.share[0],
        "share_ci": None if one.share is None else list(one.share[1:]),
    }
