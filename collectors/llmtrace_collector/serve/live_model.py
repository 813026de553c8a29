"""The data of the live page: stages compared with the budget, the last hour, the engines.

One object, made from the store's statistics and the targets' last readings. The live page and
`llmtrace top` show it; neither computes anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from llmtrace.budget import Budget
from llmtrace.core.row import OUTCOMES
from llmtrace.core.stages import PARTITION, UNATTRIBUTED
from llmtrace.dataset.summary import Verdict
from llmtrace_collector.serve.engine_status import EngineLine, GpuLine
from llmtrace_collector.store.read import MEASURED, METRICS

_NS: Final = 1e9
# Up to this many requests the binomial distribution is exact, above it the normal approximation.
_EXACT: Final = 2_000
_CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Counted:
    """Statistics of one stage or metric over some requests.

    Attributes:
        known: how many of them report it.
        p50_ns, high_ns: its median, and its quantile at the budget's objective.
        within: how many of those are within the limit; 0 without one.
        sum_ns: of all.
        sources: of its durations.
    """

    known: int
    p50_ns: float | None = None
    high_ns: float | None = None
    within: int = 0
    sum_ns: float = 0.0
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveLine:
    """One stage or metric now; as `llmtrace.dataset.summary.Line`, from counts instead of rows."""

    name: str
    known: int
    p50_s: float | None
    high_s: float | None
    share: float | None
    limit_s: float | None
    verdict: Verdict | None
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """The requests of the lines: those that ended in the last `seconds`."""

    seconds: float
    requests: int
    succeeded: int
    outcomes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Minutes:
    """The quantile in each minute: `t` in unix seconds, `high_s` by stage and metric."""

    t: tuple[int, ...] = ()
    high_s: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRow:
    """One of the slowest requests. `start` in unix seconds."""

    trace_id: str
    request_id: str
    start: float
    service: str
    model: str | None
    route: str | None
    outcome: str
    e2e_s: float
    ttft_s: float | None
    stages: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorNow:
    """The collector itself.

    Attributes:
        notes: in words.
        problems: in words.
        how: how an application sends to it, as shell lines.
    """

    version: str
    up_s: float
    notes: tuple[str, ...]
    problems: tuple[str, ...]
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """Everything the live view shows at one moment. `now` in unix seconds."""

    now: float
    budget: Mapping[str, Any]
    window: Window
    stages: tuple[LiveLine, ...]
    metrics: tuple[LiveLine, ...]
    minutes: Minutes
    slowest: tuple[SlowRow, ...]
    engines: tuple[EngineLine, ...]
    gpus: tuple[GpuLine, ...]
    collector: CollectorNow

    def as_json(self) -> dict[str, Any]:
        """Return the object that `/api/v1/live` responds with."""
        return asdict(self)


def budget_line(budget: Budget) -> dict[str, Any]:
    """Return what is shown of a budget."""
    return {
        "name": budget.name,
        "objective": budget.objective,
        "high": f"p{100 * budget.objective:g}",
        "model": list(budget.model),
        "route": list(budget.route),
    }


def lines(
    counted: Mapping[str, Counted], budget: Budget
) -> tuple[tuple[LiveLine, ...], tuple[LiveLine, ...]]:
    """Compare stages and metrics, counted over the requests that succeeded, with a budget."""
    limits = budget.thresholds_s()
    waited = counted["e2e"].sum_ns if "e2e" in counted else 0.0
    made = {
        name: _line(name, counted.get(name, Counted(0)), limits.get(name), waited, budget)
        for name in MEASURED
    }
    rest = UNATTRIBUTED in counted and counted[UNATTRIBUTED].sum_ns > 0
    shown = [name for name in PARTITION if name != UNATTRIBUTED or rest]
    return tuple(made[name] for name in shown), tuple(made[name] for name in METRICS)


def _line(
    name: str, one: Counted, limit_s: float | None, waited_ns: float, budget: Budget
) -> LiveLine:
    there = one.known > 0
    is_part = name in PARTITION
    return LiveLine(
        name=name,
        known=one.known,
        p50_s=None if one.p50_ns is None or not there else one.p50_ns / _NS,
        high_s=None if one.high_ns is None or not there else one.high_ns / _NS,
        share=one.sum_ns / waited_ns if is_part and there and waited_ns else None,
        limit_s=limit_s,
        verdict=verdict(one.known, one.within, budget.objective) if there and limit_s else None,
        sources=one.sources,
    )


def verdict(known: int, within: int, objective: float) -> Verdict:
    """Return whether a quantile is within its limit, from the number of values that are.

    The same as comparing the limit with `llmtrace.stats.quantiles.interval`, without the values:
    the limit is below the interval if fewer values are within it than by chance, and above the
    interval if more are.

    Example:
        >>> [verdict(100, within, 0.95) for within in (80, 94, 100)]
        ['over', 'unclear', 'within']
    """
    tail = (1 - _CONFIDENCE) / 2
    if at_most(known, within, objective) <= tail:
        return "over"
    if at_most(known, within - 1, objective) >= 1 - tail:
        return "within"
    return "unclear"


def at_most(n: int, k: int, p: float) -> float:
    """Return the probability of at most k successes in n trials with probability p."""
    if k < 0:
        return 0.0
    if k >= n:
        return 1.0
    if n > _EXACT:
        width = math.sqrt(n * p * (1 - p))
        return 0.5 * math.erfc(-(k + 0.5 - n * p) / width / math.sqrt(2))
    total, largest = 0.0, math.lgamma(n + 1)
    for number in range(k + 1):
        ways = largest - math.lgamma(number + 1) - math.lgamma(n - number + 1)
        total += math.exp(ways + number * math.log(p) + (n - number) * math.log1p(-p))
    return min(total, 1.0)


def outcomes_in_order(counted: Mapping[str, int]) -> dict[str, int]:
    """Return the counts by outcome, in the order of `llmtrace.OUTCOMES`, without zeros."""
    return {name: counted[name] for name in OUTCOMES if counted.get(name)}


def problems(
    engines: Sequence[EngineLine], ingest_problem: str | None, lag_s: float, lag_limit_s: float
) -> tuple[str, ...]:
    """Return the problems of the collector itself, for the top of the page."""
    found = []
    late = f"rows are {lag_s:.0f} s behind" if lag_s > lag_limit_s else ""
    if ingest_problem is not None:
        late = late and f", and {late}"
        found.append(f"the store does not take what came{late}: {ingest_problem}")
    elif late:
        found.append(f"{late}: more comes than the store takes")
    down = [line.instance for line in engines if line.up is False]
    if down:
        more = f" and {len(down) - 3} more" if len(down) > 3 else ""  # noqa: PLR2004
        found.append(f"not read: {', '.join(down[:3])}{more}")
    return tuple(found)
