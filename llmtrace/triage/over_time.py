"""The parts of a result that say when, for how many, and what else happened.

They are described, as the rest, by docs/on-call/triage-result.schema.json. Times are unix seconds,
durations seconds, and `None` is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from llmtrace.dataset.case import Window

State = Literal["ongoing", "over", "not_known", "began_before_the_data"]

Shape = Literal["step", "ramp"]
# What a stretch is of: a metric, the share of requests that fail or are cancelled by their client,
# or requests a second.
Searched = Literal["ttft", "tpot", "e2e", "render", "errors", "cancelled", "traffic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Onset:
    """When the change began: the likeliest time, in an interval that holds it in 95 % of cases.

    `metric` is the one it is dated on, the clearest; `end` is when it ended, `None` = it lasts;
    `gap_s` the longest time in the interval in which no request began.
    """

    earliest: float
    best: float
    latest: float
    end: float | None
    metric: str
    gap_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A stretch of time in which one metric differed from the rest of the data.

    Attributes:
        metric: what differed.
        direction: `up` = slower, or more of what is counted; `down` = the contrary.
        shape: `ramp` where it rose gradually; `start` is then when that began.
        start, end: `end` is `None` where it lasts to the end of the data.
        began_before: it lasts from the first request on: when it began is not known.
        usual, level: medians outside and inside in seconds; of errors and cancelled the shares,
            of traffic requests a second.
        requests: that began in it.
        p_value: how often noise of any kind makes one that stands out as far, in one search.
        usual_then: the same hours of an earlier day were alike.
    """

    metric: Searched
    direction: Literal["up", "down"]
    shape: Shape
    start: float
    end: float | None
    began_before: bool
    usual: float | None
    level: float | None
    requests: int
    p_value: float
    rise_s: float = 0.0
    usual_then: bool = False

    def seconds_in(self, window: Window) -> float:
        """Return how long it lasts within a window."""
        end = window.end if self.end is None else self.end
        return Window(self.start, end).seconds_with(window)


@dataclass(frozen=True, slots=True, kw_only=True)
class NearEvent:
    """What was deployed, scaled, restarted or changed; `distance_s` from the onset, + = later."""

    t: float
    kind: str
    text: str
    distance_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Impact:
    """What the incident meant for those who waited.

    Attributes:
        since, until: from when to when requests are counted.
        limit_s: above which a request counts; of the budget, or the p95 before.
        from_budget: whether it is a budget's.
        requests, of: requests beyond the limit, failed or given up, of those that began in the
            incident.
        cancelled: how many of them their clients cancelled; 0 where that is no more than usual.
        lost: requests that did not come, by the rate before; 0 where they are no fewer.
        tenants: requests beyond it by tenant, most first; the first ten.
        tenants_hit: how many tenants that is in all; `None` = not reported.
        budget_used: share of the error budget of the whole time searched that these used up;
            `None` = no budget was given.
        now_s: p95 of the last requests.
        worst_s, worst_at: the highest p95 of the bins that the page draws, and when.
    """

    since: float
    until: float
    limit_s: float | None
    from_budget: bool
    requests: int
    of: int
    cancelled: int
    lost: int
    tenants: Mapping[str, int]
    tenants_hit: int | None
    budget_used: float | None
    now_s: float | None
    worst_s: float | None
    worst_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A kind of request of which there are more now; `seconds` = what that adds to the mean."""

    attributes: Mapping[str, str]
    share_before: float
    share_after: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Similar:
    """A past report of `triage serve` that looks alike.

    Attributes:
        report: its name.
        alert, started: which alert it is of, and when that began.
        verdict, metric: what it said.
        cause: the first that it named; `None` = none.
    """

    report: str
    alert: str
    started: float
    verdict: str
    metric: str | None
    cause: str | None
