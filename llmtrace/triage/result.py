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
        n: rows that report the metric, or were cut short before it was known.
        requests: how many requests these rows stand for: more, if they are a sample.
        p95_ci: 95 % confidence interval of the p95; `None` = too few requests.
    """

    window: Window | None
    n: int
    requests: int
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
        excess_share: their share of the requests that are slow beyond expectation.
        traffic_share: their share of all requests.
        p95_without: the p95 of all others.
        fails: whether they fail, rather than are slow.
        n: number of these requests.
        slow: how many of them are slower than the p95 before, or failed.
        q: false discovery rate (Benjamini and Hochberg).
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
    """One line of evidence and its points: positive ones support the cause."""

    text: str
    points: int


# Where a rule named its cause first: on recordings of real engines, in simulated worlds.
ShownIn = Literal["recordings", "simulation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RightWhen:
    """How often a status was right, in simulated worlds that no rule was written on.

    Attributes:
        right, of: right findings, of all with this status.
        calls: the cause that they are of; `all causes` if there are too few of this one.
        measured: the date.
    """

    right: int
    of: int
    calls: str
    measured: str


@dataclass(frozen=True, slots=True)
class OrElse:
    """Another cause that fits the same evidence, and what to look at to tell the two apart."""

    id: str
    look: str

    @property
    def text(self) -> str:
        """The sentence that reports show beside the first cause."""
        return f"{self.id}, which fits as well: to tell them apart, {self.look}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The evidence for and against one cause; `score` is the sum of the points.

    Attributes:
        shown_in: where the rule named its cause first; empty = nowhere yet.
        right_when_so_called: `None` = not measured.
        or_else: for the cause named first, other causes that fit the evidence.
        group: what the affected requests have in common; empty = all requests, or not known.
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
    """One metric before and after, and whether it moved beyond chance.

    `share_above` is the share of requests now slower than the p95 before (5 % expected), with its
    95 % interval, widened for clustering.
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
    def fell(self) -> bool:
        """Whether it fell beyond chance."""
        return self.significant and self.grew[0] < 0

    @property
    def grew(self) -> tuple[float, str]:
        """Relative growth of the p95, or of the p50 if the p95 hardly moved; and which of them."""
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
        significant: whether that share rose beyond chance.
        cancelled_before, cancelled_after: share of requests that their client cancelled.
        gave_up: whether that share rose beyond chance.
        failures: failures after, by outcome, HTTP status and error type, the most common first.
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
    """The load of a window: requests and tokens per second, typical lengths."""

    requests_per_s: float | None
    prompt_tokens_per_s: float | None
    output_tokens_per_s: float | None
    prompt_tokens_p50: float | None
    prompt_tokens_p95: float | None
    output_tokens_p50: float | None
    output_tokens_p95: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """The stages of a request at the p95, which add up to it; seconds."""

    before: Mapping[str, float]
    after: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """An estimate over many requests of an engine that reports no prefill; part of no sum.

    TTFT = base + per_token * uncached prompt tokens, fitted to each window; prefill is `per_token`
    times the tokens. Seconds per token, with 95 % intervals; `fit` is R squared.
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
    """The estimate in both windows; `None` = not possible."""

    before: Estimate | None
    after: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How well the data support the verdict.

    Attributes:
        n: requests compared, before and after.
        coverage: share of a typical request's time with known stages.
        censored: requests cut short before the metric was known, before and after.
        clustered: design effect: how much more slow requests vary over time than independent ones;
            intervals are widened by it.
        duplicates: repeated rows that were removed.
        unmatched_share: share of the requests now that are of a kind never seen before.
        effective_n: requests before that those weighted to the mix of now are worth.
        matched_on: the fields that define "the same work".
        unreported: parts that no row reports: stages, and `mix` if none has a length.
        values: number of values after of each field by which some requests may be affected.
        sampled: share of rows used, below 1 only beyond a limit (docs/on-call/triage.md).
        doubts: doubts about what was read, shown before the verdict, such as other units.
        warnings: shown with the data.
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
    """The result of a triage.

    Attributes:
        reason: the verdict in one sentence, with numbers.
        metric: the one that moved; `None` = no row reports any.
        delta_s: p95 after minus p95 before.
        significant: whether that is beyond chance.
        contributions: `mix`, the stages, `co_occurrence`; they add up to `delta_s` exactly.
        localised: whether the slow requests are of a kind: `cohorts`.
        causes: possible causes, the best supported first.
        exemplars: trace ids nearest to the p95, `slow` (after) and `normal` (before).
        changes: all metrics that were compared.
        moved: those that moved beyond chance, with `errors` and `cancelled`.
        onset: when it began.
        state: whether it is over at the end of the data; `None` = nothing moved.
        recovered_at: when it ended, if it did.
        quiet_since: when it may have ended, if too few requests followed to be certain,
        requests_since: and how many.
        incidents: every stretch that stands out, of any metric, by start.
        events: what was deployed, scaled, restarted or reconfigured near the onset.
        impact: what it meant for users.
        grew: the kinds of request behind the part `mix`, the largest first.
        smallest_visible: the smallest relative rise of the metric that these windows would have
            shown in four of five cases; `None` = not even ten times as slow.
        smallest_visible_share: the smallest share of requests beyond the p95 before that they
            would have shown; 5 % are expected.
        settle: data that would settle what is open.
        similar: similar past reports, if `triage serve` stores them.
        about: what was triaged, if not all requests: an alert, a filter.
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
