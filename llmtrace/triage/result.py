"""The result of a triage, for people and for programs.

`Result` and its parts, and `as_json`: the object `llmtrace triage --json` prints, described by
docs/on-call/triage-result.schema.json. Unknown is `None`. Durations are seconds, times unix
seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, Literal

from llmtrace.dataset.case import Window
from llmtrace.triage.over_time import Growth, Impact, Incident, NearEvent, Onset, Similar, State

Verdict = Literal[
    "no_change",  # the p95 did not move beyond chance
    "workload",  # it moved because the workload changed
    "regression",  # it moved for the same work
    "mixed",  # both
    "improvement",  # the same work takes less
    "drift",  # the same work takes longer, after a gradual rise
    "traffic",  # requests stopped, or their number changed; their metrics are as before
    "new_workload",  # too much of today's workload did not exist before
    "not_enough_data",
]
NOTHING_FOUND: Final[frozenset[Verdict]] = frozenset({"no_change", "not_enough_data"})

Q: Final = 0.95  # the quantile that a triage is about

Metric = Literal["ttft", "tpot", "e2e", "render"]

Status = Literal["confirmed", "likely", "possible", "ruled_out", "unknown"]
NAMED: Final[frozenset[Status]] = frozenset({"confirmed", "likely", "possible"})
SURE: Final[frozenset[Status]] = frozenset({"confirmed", "likely"})

CAUSES: Final = (
    "queue_saturation", "kv_exhaustion", "long_prompts", "longer_outputs", "head_of_line",
    "prefix_cache_collapse", "cold_start", "network_path", "gateway_overhead",
    "rate_limit_retries", "proxy_buffering", "low_spec_acceptance", "batch_size", "gpu_throttle",
    "slow_renderer", "serial_tools", "idle_timeout", "midstream_errors", "client_gate",
    "frontend_cpu", "kv_transfer", "lora_slots", "replica_imbalance", "engine_paused",
    "engine_down", "client_give_ups", "response_cache_misses", "streaming_off",
    "grammar_compilation", "busy_client", "client_cold", "disaggregated_kv", "traffic_lost",
    "traffic_surge", "provider_errors",
)  # fmt: skip

# Tested only with rows made by hand. The simulator has no response cache, no clients that start,
# stop streaming or are too busy to read, no structured answers, no separate prefill engines, and
# no faults in request numbers or of providers.
NOT_SIMULATED: Final = frozenset(
    {
        "response_cache_misses", "streaming_off", "grammar_compilation", "busy_client",
        "client_cold", "disaggregated_kv", "traffic_lost", "traffic_surge", "provider_errors",
    }
)  # fmt: skip

OF_THE_WORK: Final = frozenset({"long_prompts", "longer_outputs"})  # causes that are no fault
OF_TRAFFIC: Final = frozenset({"traffic_lost", "traffic_surge"})  # seen in numbers of requests

Bounds = tuple[float | None, float | None]
NO_BOUNDS: Final[Bounds] = (None, None)
_HARDLY: Final = 0.1  # of a quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The metric in one of the two windows.

    Attributes:
        window: `None` = no rows.
        n: requests that report the metric, or were cut short before it was known.
        p95_ci: 95 % confidence interval of the p95; `None` = too few requests.
    """

    window: Window | None
    n: int
    p50: float | None
    p95: float | None
    p95_ci: Bounds = NO_BOUNDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """A part of the change: `mix`, a stage, `unattributed` or `co_occurrence`.

    `ci` is a 95 % block-bootstrap interval; `significant` means that it excludes 0.
    """

    name: str
    seconds: float
    ci: Bounds = NO_BOUNDS
    significant: bool = False

    @property
    def noise(self) -> bool:
        """Whether its interval includes 0; false without an interval."""
        return None not in self.ci and not self.significant


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """Requests of one kind that are slow, or fail, beyond their share.

    Attributes:
        attributes: what they have in common.
        excess_share: of the requests that are slow beyond expectation, how many are these.
        traffic_share: of all requests, how many are these.
        p95_without: the p95 of all others.
        fails: these are requests that fail, and not slow ones.
        n: how many requests these are.
        slow: how many of them are slower than the p95 before, or failed.
        q: chance of a false discovery, Benjamini and Hochberg.
    """

    attributes: Mapping[str, str]
    excess_share: float
    traffic_share: float
    p95_without: float | None
    n: int
    slow: int
    q: float
    fails: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """One line of evidence and its points, which are for the cause if positive."""

    text: str
    points: int


# Where a rule named its cause first: on recordings of real engines, in simulated worlds.
ShownIn = Literal["recordings", "simulation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RightWhen:
    """How often a status was right, in simulated worlds that no rule was written on.

    Attributes:
        right, of: true calls, of all of this status.
        calls: of which cause; `all causes` where those of this one are too few to say.
        measured: the date.
    """

    right: int
    of: int
    calls: str
    measured: str


@dataclass(frozen=True, slots=True)
class OrElse:
    """Another cause that the same evidence fits, and the observation that only one makes."""

    id: str
    look: str

    @property
    def text(self) -> str:
        """The sentence that reports show beside the first cause."""
        return f"{self.id}, which fits as well: to tell them apart, {self.look}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the evidence says of one cause; `score` is the sum of the points.

    Attributes:
        shown_in: where the rule named its cause first; empty = it was not shown yet.
        right_when_so_called: `None` = not measured.
        or_else: of the cause named first, those that the evidence cannot separate from it.
        group: what the requests that it is about have in common; empty = all, or not known.
    """

    id: str
    status: Status
    score: int = 0
    evidence: tuple[Point, ...] = ()
    against: tuple[Point, ...] = ()
    missing: tuple[str, ...] = ()
    action: str = ""
    runbook: str = ""
    shown_in: tuple[ShownIn, ...] = ()
    right_when_so_called: RightWhen | None = None
    or_else: tuple[OrElse, ...] = ()
    group: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One watched metric before and after: whether it moved beyond chance.

    `share_above` is the share of requests now slower than the p95 before (5 % expected), with
    its 95 % interval, widened for requests that share fate.
    """

    metric: Metric
    before: Side
    after: Side
    delta_s: float | None
    share_above: float | None
    share_above_ci: Bounds
    p_value: float | None
    significant: bool

    @property
    def rose(self) -> bool:
        """Whether it rose beyond chance."""
        return self.significant and self.grew[0] > 0

    @property
    def grew(self) -> tuple[float, str]:
        """By which share it grew: its p95, or its p50 where the p95 hardly moved; and of which."""
        b, a = self.before, self.after
        shares = [(high or 0.0) / max(low or 0.0, 1e-9) - 1
                  for low, high in ((b.p95, a.p95), (b.p50, a.p50))]  # fmt: skip
        of_p95 = abs(shares[0]) >= _HARDLY or abs(shares[1]) < _HARDLY
        return (shares[0], "p95") if of_p95 else (shares[1], "p50")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """How requests ended, before and after, by outcome; shares of all requests.

    Attributes:
        failed_before, failed_after: share of errors, truncations and time-outs.
        significant: that share rose beyond chance.
        cancelled_before, cancelled_after: share of requests that their client cancelled.
        gave_up: that share rose beyond chance.
        failures: what failed after, by outcome, HTTP status and error type, the commonest first.
    """

    before: Mapping[str, int]
    after: Mapping[str, int]
    failed_before: float | None
    failed_after: float | None
    p_value: float | None
    significant: bool
    cancelled_before: float | None
    cancelled_after: float | None
    gave_up: bool
    failures: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of a window: requests and tokens a second, typical lengths."""

    requests_per_s: float | None
    prompt_tokens_per_s: float | None
    output_tokens_per_s: float | None
    prompt_tokens_p50: float | None
    prompt_tokens_p95: float | None
    output_tokens_p50: float | None
    output_tokens_p95: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """What a request at the p95 consists of, by stage; the stages come to the p95."""

    before: Mapping[str, float]
    after: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A fit over many requests of an engine that reports nothing: never part of a sum.

    TTFT = base + per_token * uncached prompt tokens, fitted on each window by itself; prefill is
    `per_token` times the tokens. Seconds a token, with 95 % intervals; `fit` is R squared.
    """

    what: Literal["prefill"]
    source: Literal["estimated"]
    n: int
    per_token_s: float
    per_token_ci: Bounds
    base_s: float
    fit: float
    prefill_p50_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """The estimate in both windows; `None` where it cannot be made."""

    before: Estimate | None
    after: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How far the data carry the verdict.

    Attributes:
        n: requests compared, before and after.
        coverage: of the typical request's time, the share that stages are known for.
        censored: requests cut short before the metric was known, before and after.
        clustered: how many times more the slow requests vary by the minute than they would if
            they were independent; intervals are widened for it.
        duplicates: rows left out because they were there already.
        unmatched_share: of the requests now, those of a kind that was never seen before.
        effective_n: requests before, after weighting them to the mix of now.
        matched_on: what "the same work" was taken to mean.
        unreported: parts that no row tells of: stages, and `mix` where none says how long it is.
        values: how many values rows after have of a field by which some may be affected.
        sampled: the share of rows looked at, below 1 only beyond a limit (docs/on-call/triage.md).
        doubts: of what was read, for people, before the verdict: other units, say.
        warnings: for people.
    """

    n: tuple[int, int]
    coverage: float | None
    censored: tuple[int, int]
    clustered: float | None
    duplicates: int = 0
    unmatched_share: float | None = None
    effective_n: float | None = None
    matched_on: tuple[str, ...] = ()
    unreported: tuple[str, ...] = ()
    values: Mapping[str, int] = field(default_factory=dict)
    sampled: float = 1.0
    doubts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a triage found.

    Attributes:
        reason: the verdict in one sentence, with numbers.
        metric: the one that moved; `None` where no row reports any.
        delta_s: p95 after less p95 before.
        significant: whether that is beyond chance.
        contributions: `mix`, the stages, `co_occurrence`: they come to `delta_s` exactly.
        localised: whether the slow requests are of a kind: `cohorts`.
        causes: what may have caused it, the best supported first.
        exemplars: trace ids nearest to the p95, `slow` (after) and `normal` (before).
        changes: all metrics looked at.
        moved: which of them, and `errors` and `cancelled`, moved beyond chance.
        onset: when it began.
        state: whether it is over at the end of the data; `None` = nothing moved.
        recovered_at: since when, where it is.
        quiet_since: since when it may be over, where too few requests followed to say so,
        requests_since: and how many.
        incidents: every stretch that stands out, of any metric, by start.
        events: what was deployed, scaled, restarted or reconfigured near the onset.
        impact: what it meant for those who waited.
        grew: the kinds of request that make the part of the mix, the largest first.
        smallest_visible: the least relative rise of the metric that these windows would have shown
            in four of five cases; `None` = not even ten times as slow.
        smallest_visible_share: the least share of requests beyond the p95 before that they would
            have shown, 5 % being expected.
        settle: what data would settle what is open.
        similar: past reports that look alike, where `triage serve` keeps them.
        about: what was triaged, where that is not all requests: an alert, a filter.
        data: from the first request to the end of the time searched.
    """

    verdict: Verdict
    reason: str
    metric: Metric | None
    quantile: float
    before: Side
    after: Side
    delta_s: float | None
    significant: bool
    contributions: tuple[Contribution, ...]
    cohorts: tuple[Cohort, ...]
    localised: bool
    causes: tuple[Finding, ...]
    exemplars: Mapping[str, tuple[str, ...]]
    quality: Quality
    changes: tuple[Change, ...] = ()
    moved: tuple[str, ...] = ()
    outcomes: Outcomes | None = None
    onset: Onset | None = None
    state: State | None = None
    recovered_at: float | None = None
    quiet_since: float | None = None
    requests_since: int | None = None
    incidents: tuple[Incident, ...] = ()
    events: tuple[NearEvent, ...] = ()
    impact: Impact | None = None
    grew: tuple[Growth, ...] = ()
    load: Mapping[str, Load] = field(default_factory=dict)
    anatomy: Anatomy | None = None
    estimates: Estimates | None = None
    smallest_visible: float | None = None
    smallest_visible_share: float | None = None
    settle: tuple[str, ...] = ()
    similar: tuple[Similar, ...] = ()
    about: tuple[str, ...] = ()
    data: Window | None = None


def as_json(result: Result) -> dict[str, Any]:
    """Return the object `--json` prints: plain values, and no number that JSON has not."""
    plain: dict[str, Any] = _plain(result)
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Window):
        return [value.start, value.end]
    if is_dataclass(value):
        return {part.name: _plain(getattr(value, part.name)) for part in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value
