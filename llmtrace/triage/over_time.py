"""The parts of a result about time, impact and events.

Like the others, they are described by docs/on-call/triage-result.schema.json. Times are unix
seconds, durations seconds, and `None` is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from llmtrace.dataset.case import Window

State = Literal["ongoing", "over", "not_known", "began_before_the_data"]

Shape = Literal["step", "ramp"]
# What is searched: a metric, the share of failed or cancelled requests, or requests per second.
Searched = Literal["ttft", "tpot", "e2e", "render", "errors", "cancelled", "traffic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Onset:
    """When the change began: the likeliest time, and a 95 % interval.

    `metric` is the clearest one, which it is dated on; `end` is when it ended (`None` = it lasts);
    `gap_s` is the longest time in the interval without a request.
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
        direction: `up` = slower, or more requests of the kind counted; `down` = the opposite.
        shape: `ramp` = it rose gradually, from `start` on.
        start, end: `end` is `None` if it lasts to the end of the data.
        began_before: it lasts from the first request on, so its beginning is not known.
        usual, level: medians outside and inside, seconds; shares for errors and cancelled;
            requests per second for traffic.
        requests: that began in it.
        p_value: the chance that noise makes one that stands out as far, in one search.
        usual_then: whether the same hours of an earlier day were alike.
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
    """A deployment, scaling, restart or change; `distance_s` from the onset, positive = later."""

    t: float
    kind: str
    text: str
    distance_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Impact:
    """What the incident meant for users.

    Attributes:
        since, until: when requests are counted.
        limit_s: above which a request counts: from the budget, or the p95 before.
        from_budget: whether it is from a budget.
        requests, of: requests over the limit, failed or given up, of those that began in it.
        cancelled: how many of them clients cancelled; 0 if that is no more than usual.
        lost: requests that did not come, by the rate before; 0 if they are no fewer.
        tenants: the ten tenants with the most of these requests, with their number.
        tenants_hit: number of all such tenants; `None` = not reported.
        budget_used: share of the error budget of the time searched; `None` = no budget was given.
        now_s: p95 of the last requests.
        worst_s, worst_at: the highest p95 of a bin that the page draws, and its time.
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
    """A similar past report of `triage serve`.

    Attributes:
        report: its name.
        alert, started: its alert, and when that began.
        verdict, metric: its result.
        cause: the first that it named; `None` = none.
    """

    report: str
    alert: str
    started: float
    verdict: str
    metric: str | None
    cause: str | None
