"""Sum up one run: outcomes, throughput, requests inside the budget, and what they cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from llmtrace.budget import Budget
from llmtrace.dataset.columns import Columns
from llmtrace.run_comparison.durations import METRICS, durations
from llmtrace.stats.arrays import Mask

_HOUR_S: Final = 3600
_MILLION: Final = 1_000_000
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What one run came to.

    Attributes:
        requests: all of them, by their weights, as all counts are.
        succeeded: those whose durations are compared.
        outcomes: how many ended how.
        finish_reasons: of those that succeeded.
        seconds: from the first request's start to the last one's end.
        output_tokens: of those that succeeded; `None` = not reported.
        mean_output_tokens: a request; `None` = not reported.
        speed: median of the output tokens a second of each request; `None` = not reported.
        inside: requests within the budget; `None` = no budget.
    """

    requests: int
    succeeded: int
    outcomes: Mapping[str, int]
    finish_reasons: Mapping[str, int]
    seconds: float
    output_tokens: int | None
    mean_output_tokens: float | None
    speed: float | None
    inside: int | None

    @property
    def failed(self) -> float:
        """Share of requests that neither succeeded nor were cancelled."""
        ended = sum(self.outcomes.values())
        fine = sum(self.outcomes.get(outcome, 0) for outcome in ("success", "cancelled"))
        return (ended - fine) / self.requests if self.requests else 0.0

    @property
    def requests_per_s(self) -> float | None:
        """Requests that succeeded, a second."""
        return self.succeeded / self.seconds if self.seconds > 0 else None

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens a second, all requests together."""
        if self.output_tokens is None or self.seconds <= 0:
            return None
        return self.output_tokens / self.seconds

    @property
    def goodput(self) -> float | None:
        """Requests inside the budget, a second."""
        return None if self.inside is None or self.seconds <= 0 else self.inside / self.seconds


def costs(
    totals: tuple[Totals, Totals], price_per_hour: float
) -> dict[str, tuple[float | None, float | None]]:
    """Return what a million output tokens and a thousand requests inside the budget cost."""
    first, second = totals
    found = {
        "a million output tokens": (
            cost_of(_MILLION, first.tokens_per_s, price_per_hour),
            cost_of(_MILLION, second.tokens_per_s, price_per_hour),
        )
    }
    if first.inside is not None:
        found["a thousand requests inside the budget"] = (
            cost_of(1000, first.goodput, price_per_hour),
            cost_of(1000, second.goodput, price_per_hour),
        )
    return found


def cost_of(count: float, rate: float | None, price_per_hour: float) -> float | None:
    """Return the price of so many at a rate a second; `None` where there is no rate.

    Example:
        >>> round(cost_of(1_000_000, 32.5, 32.77), 2)
        280.09
    """
    return price_per_hour / _HOUR_S / rate * count if rate else None


def sum_up(rows: Columns, budget: Budget | None, active_s: float | None) -> Totals:
    """Return what a run's requests came to, with those inside a budget if there is one.

    Args:
        rows: of all requests.
        budget: what a request may take.
        active_s: seconds in which requests were sent; `None` = from the start of the first to
            the end of the last.
    """
    done = rows.take(succeeded(rows))
    ends = rows.start / _NS + np.nan_to_num(rows.numbers["e2e_s"])
    tokens = done.numbers["output_tokens"]
    known = ~np.isnan(tokens)
    took, weights = done.numbers["e2e_s"], done.weights
    made = float((tokens * weights)[known].sum())
    speeds = tokens[known & (took > 0)] / took[known & (took > 0)]
    return Totals(
        requests=round(rows.weights.sum()),
        succeeded=round(weights.sum()),
        outcomes=_counted(rows, "outcome"),
        finish_reasons=_counted(done, "finish_reason"),
        seconds=active_s or (float(ends.max() - rows.start.min() / _NS) if rows.n else 0.0),
        output_tokens=round(made) if known.any() else None,
        mean_output_tokens=made / float(weights[known].sum()) if known.any() else None,
        speed=float(np.median(speeds)) if len(speeds) else None,
        inside=None if budget is None else round(weights[_inside(done, budget)].sum()),
    )


def _inside(rows: Columns, budget: Budget) -> Mask:
    """Return which requests are within every limit of a budget that they report."""
    inside = np.ones(rows.n, bool)
    for mask in inside_limits(rows, budget).values():
        inside &= mask
    return inside


def inside_limits(rows: Columns, budget: Budget) -> dict[str, Mask]:
    """Return which requests are within each limit of what their users see, by its name.

    A request that does not report a duration is within its limit. What is not streamed has its
    first content at its end.
    """
    measured = durations(rows)
    measured["ttft"] = measured["first_content"]
    return {
        name: ~(measured[name] > limit)
        for name, limit in budget.thresholds_s().items()
        if name in METRICS
    }


def _counted(rows: Columns, name: str) -> dict[str, int]:
    words = rows.words[name]
    known = words.codes >= 0
    counts = np.bincount(words.codes[known], rows.weights[known], len(words.names))
    of_each = Counter(dict(zip(words.names, counts.tolist(), strict=True)))
    return {word: round(count) for word, count in of_each.most_common() if count}


def succeeded(rows: Columns) -> Mask:
    """Return which requests succeeded: all, if no outcome is reported."""
    outcome = rows.words["outcome"]
    return outcome.where("success") if (outcome.codes >= 0).any() else np.ones(rows.n, bool)
