"""Which series are recorded, under which names, and what for?

Prometheus's own convention: `level:metric:operation`, the level being the labels that are left.
What panels and alerts ask of long windows or of histograms of many processes is added up once;
everything else is asked of the metrics as they are. All rates are over five minutes, and of
requests that succeeded where a name says nothing of outcomes: an error after 2 ms is no fast
answer. `llmtrace slo rules` writes them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DIMENSIONS: Final = ("model", "route", "service", "region")
_LEVEL: Final = "_".join(DIMENSIONS)
_BY: Final = ", ".join(DIMENSIONS)
BASE: Final = "5m"  # what every rate that is recorded is over


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recording rule.

    Attributes:
        name: of the series it makes.
        expression: PromQL.
        help: what it is for, in a sentence.
        labels: put on its series.
    """

    name: str
    expression: str
    help: str
    labels: tuple[tuple[str, str], ...] = ()


def traffic(base: str = BASE) -> tuple[Recorded, ...]:
    """Return what is recorded of all requests, whatever the budget.

    Args:
        base: what rates are over; four scrapes at least.
    """
    rate = f"rate{base}"
    return (
        Recorded(
            f"{_LEVEL}_outcome:llmtrace_requests:{rate}",
            f"sum by ({_BY}, outcome) (rate(llmtrace_requests_total[{base}]))",
            "Requests a second, by how they ended.",
        ),
        *(
            Recorded(
                f"{_LEVEL}_le:llmtrace_{metric}_seconds_bucket:{rate}",
                f"sum by ({_BY}, le) "
                f'(rate(llmtrace_{metric}_seconds_bucket{{outcome="success"}}[{base}]))',
                f"For percentiles of {metric}, and shares within a threshold.",
            )
            for metric in ("e2e", "ttft", "tpot")
        ),
        Recorded(
            f"{_LEVEL}_stage_le:llmtrace_stage_duration_seconds_bucket:{rate}",
            f"sum by ({_BY}, stage, le) "
            f'(rate(llmtrace_stage_duration_seconds_bucket{{outcome="success"}}[{base}]))',
            "For percentiles of each stage, and shares within its allocation.",
        ),
        Recorded(
            f"{_LEVEL}_stage:llmtrace_stage_duration_seconds_sum:{rate}",
            f"sum by ({_BY}, stage) "
            f'(rate(llmtrace_stage_duration_seconds_sum{{outcome="success"}}[{base}]))',
            "Seconds a second spent in each stage; over the requests a second, stages that add up "
            "to the mean wait.",
        ),
    )


# --- what is recorded of each budget: labelled `budget` and `slo` (e2e, ttft, tpot, availability)

SLO_LEVEL: Final = "budget_slo"
# Share of the valid requests that may be bad: 1 - objective.
ALLOWED: Final = f"{SLO_LEVEL}:llmtrace_slo_allowed:ratio"
# What is left of thirty days' error budget: 1 = all of it, 0 = none, below 0 = overspent.
REMAINING: Final = f"{SLO_LEVEL}:llmtrace_slo_budget_remaining:ratio30d"


def bad_rate(base: str = BASE) -> str:
    """Name the bad requests a second, by budget, SLO, model, route, service and region."""
    return f"{SLO_LEVEL}_{_LEVEL}:llmtrace_slo_bad:rate{base}"


def valid_rate(base: str = BASE) -> str:
    """Name the requests a second that count at all, by the same."""
    return f"{SLO_LEVEL}_{_LEVEL}:llmtrace_slo_valid:rate{base}"


def bad_total(base: str = BASE) -> str:
    """Name the bad requests a second, by budget and SLO alone."""
    return f"{SLO_LEVEL}:llmtrace_slo_bad:rate{base}"


def valid_total(base: str = BASE) -> str:
    """Name the requests a second that count at all, by the same."""
    return f"{SLO_LEVEL}:llmtrace_slo_valid:rate{base}"


def bad_ratio(window: str) -> str:
    """Name the share of the valid requests that were bad over a window, by budget and SLO.

    Recorded for 5m, 30m, 1h, 2h, 6h, 1d, 3d and 30d. Divided by `ALLOWED` it is the burn rate.
    """
    return f"{SLO_LEVEL}:llmtrace_slo_bad:ratio_rate{window}"


def valid_count(window: str) -> str:
    """Name how many valid requests there were in a (short) window, by budget and SLO."""
    return f"{SLO_LEVEL}:llmtrace_slo_valid:increase{window}"
