"""Record which part of a budget is the engine's, to compare with what engines count themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from llmtrace.budget import Budget
from llmtrace_dashboards.rules.recording_series import Recorded

METRIC: Final = "llmtrace_engine_budget_seconds"
# What a request passes outside of the engine, until its first content and in all.
_BEFORE: Final = ("network", "gateway", "first_chunk")
_OUTSIDE: Final = (*_BEFORE, "render")
_INSIDE: Final = ("queue", "prefill", "decode")


def engine_limits_s(budget: Budget) -> dict[str, float]:
    """Return what the engine may take of a budget, in seconds, by the name of its histogram.

    Its stages as they are allocated, and of TTFT and the total what is left when the stages
    outside the engine, and of the total the buffer, take what they may.

    Example:
        >>> engine_limits_s(Budget(ttft_s=0.7, stages_s={"queue": 0.1, "network": 0.05}))
        {'queue': 0.1, 'ttft': 0.65}
    """
    stages: Mapping[Any, float] = budget.stages_s

    def left(whole: float | None, outside: Sequence[str], kept_free: float = 0.0) -> float | None:
        taken = sum(limit for stage, limit in stages.items() if stage in outside)
        return None if whole is None else whole - taken - kept_free

    limits: dict[str, float | None] = {
        **{stage: limit for stage, limit in stages.items() if stage in _INSIDE},
        "tpot": budget.tpot_s,
        "ttft": left(budget.ttft_s, _BEFORE),
        "e2e": left(budget.total_s, _OUTSIDE, budget.buffer_s),
    }
    return {
        name: round(limit, 9) for name, limit in limits.items() if limit is not None and limit > 0
    }


def engine_limits(budgets: Iterable[Budget]) -> Iterator[Recorded]:
    """Yield the rules that record these limits, labelled `budget` and `limit`."""
    for budget in budgets:
        for name, limit_s in engine_limits_s(budget).items():
            yield Recorded(
                METRIC,
                f"vector({limit_s!r})",
                "What an engine may take of a budget.",
                (("budget", budget.name), ("limit", name)),
            )
