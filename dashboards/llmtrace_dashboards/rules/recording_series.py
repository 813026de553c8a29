"""Name the series that recording rules make, and say what each is for.

Prometheus's own convention: `level:metric:operation`, the level being the labels that are left.
What panels and alerts query of a budget is added up once; everything else is queried from the
metrics as they are. All rates are over five minutes. `llmtrace slo rules` writes them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DIMENSIONS: Final = ("model", "route", "service", "region")
# Where something runs, kept where Prometheus labels its series with it: names leave them out.
PLACES: Final = ("cluster", "namespace", "job")
_LEVEL: Final = "_".join(DIMENSIONS)
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


# --- what is recorded of each budget: labelled `budget` and `slo` (e2e, ttft, tpot, availability)

SLO_LEVEL: Final = "budget_slo"
# Where something is wrong for all that runs there: without these labels, the same as everything.
SITES: Final = ("cluster", "namespace")
SITE_LEVEL: Final = "_".join((SLO_LEVEL, *SITES))
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


def bad_total(base: str = BASE, level: str = SLO_LEVEL) -> str:
    """Name the bad requests a second, by budget and SLO alone, or by place as well."""
    return f"{level}:llmtrace_slo_bad:rate{base}"


def valid_total(base: str = BASE, level: str = SLO_LEVEL) -> str:
    """Name the requests a second that count at all, by the same."""
    return f"{level}:llmtrace_slo_valid:rate{base}"


def bad_ratio(window: str, level: str = SLO_LEVEL) -> str:
    """Name the share of the valid requests that were bad over a window, by the same.

    Recorded for 5m, 30m, 1h, 2h, 6h, 1d and 3d, and for 30d by budget and SLO alone. Divided by
    `ALLOWED` it is the burn rate.
    """
    return f"{level}:llmtrace_slo_bad:ratio_rate{window}"


def valid_count(window: str, level: str = SLO_LEVEL) -> str:
    """Name how many valid requests there were in a (short) window, by the same."""
    return f"{level}:llmtrace_slo_valid:increase{window}"
