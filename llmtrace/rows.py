"""What is one request, once it is over?

A `Row`: who asked what of whom, how it ended, and where its time went. A row flattens to plain
JSON (`as_dict`) and comes back (`from_dict`); everything llmtrace shows is a function over rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from sys import float_info
from typing import Any, Final, Literal, cast, get_args

from llmtrace.errors import DataError
from llmtrace.stages import (
    SOURCES,
    STAGES,
    EngineFigures,
    Network,
    Reported,
    Source,
    Stages,
    Timeline,
    split,
    with_engine,
)

Outcome = Literal["success", "error", "cancelled", "truncated", "timeout"]
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)

_NS: Final = 1_000_000_000
_NETWORK_PARTS: Final = ("client_wait", "dns", "connect", "tls", "send", "rtt")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One request. Missing is `None`, never 0; `*_ns` are nanoseconds, `*_s` seconds.

    Attributes:
        request_id: the `x-request-id` sent to the server.
        response_id: the id in the answer (`chatcmpl-…`): the join key that survives gateways.
        start: unix time of the call in nanoseconds, for placing the row, never for subtracting.
        timeline: everything measured and reported, uncut.
        replica: the engine instance that answered, where known.
        gateway: the name of the gateway in between, where known.
        attempts: HTTP attempts made, retries included.
        chunks: chunks with content the consumer was handed.
        max_gap_ns: longest wait for a chunk after the first, the silence before a cut included.
        gap_counts: waits for a chunk after the first, counted over `record.GAP_BOUNDS_NS`; kept
            in memory for the metrics, not written out; so is `gap_sum_ns`, their sum.
        weight: how many requests this row stands for when the user samples.
    """

    request_id: str
    trace_id: str
    span_id: str
    parent_span_id: str | None = None
    response_id: str | None = None
    start: int
    service: str
    operation: str = "chat"
    model: str | None = None
    provider: str | None = None
    server: str | None = None
    route: str | None = None
    tenant: str | None = None
    region: str | None = None
    replica: str | None = None
    version: str | None = None
    gateway: str | None = None
    client: str | None = None
    outcome: Outcome = "success"
    finish_reason: str | None = None
    error_type: str | None = None
    http_status: int | None = None
    attempts: int = 1
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    chunks: int = 0
    max_gap_ns: int | None = None
    last_content_ns: int | None = None
    first_byte_ns: int | None = None
    first_event_ns: int | None = None
    first_reasoning_ns: int | None = None
    first_text_ns: int | None = None
    first_tool_call_ns: int | None = None
    preemptions: int | None = None
    spec_drafted: int | None = None
    spec_accepted: int | None = None
    tool_calls: int | None = None
    tool_wall_s: float | None = None
    tool_serial_s: float | None = None
    tool_critical_path_s: float | None = None
    weight: float = 1.0
    attributes: Mapping[str, str | bool | int | float] = field(default_factory=dict)
    timeline: Timeline
    gap_counts: tuple[int, ...] | None = field(default=None, compare=False, repr=False)
    gap_sum_ns: int | None = field(default=None, compare=False, repr=False)

    @cached_property
    def stages(self) -> Stages:
        """The partition of `e2e_ns` into the seven stages."""
        return split(self.timeline)

    @property
    def stream(self) -> bool:
        """Whether the answer came as a stream."""
        return self.timeline.stream

    @property
    def e2e_ns(self) -> int:
        """The whole wait."""
        return self.timeline.e2e

    @property
    def e2e_s(self) -> float:
        """The whole wait, in seconds."""
        return self.e2e_ns / _NS

    @property
    def ttft_ns(self) -> int | None:
        """Start to first content, as the consumer experienced it."""
        return self.timeline.ttft

    @property
    def ttft_s(self) -> float | None:
        """Start to first content, as the consumer experienced it, in seconds."""
        return seconds(self.timeline.ttft)

    @property
    def ttft_arrival_s(self) -> float | None:
        """What `ttft_s` would have been with an eager reader, at least.

        The consumer's hold is taken off as far as the engine's own figures leave room for it;
        `None` when the reader was late and nothing bounds when the content arrived.
        """
        timeline = self.timeline
        if timeline.ttft is None:
            return None
        if timeline.held_before <= _EAGER_NS:
            return self.ttft_s
        # The wait up to the first content alone: what was rendered after it is not in there.
        before = split(replace(timeline, e2e=timeline.ttft))
        if before.queue is None or before.prefill is None:
            return None
        return (timeline.ttft - (before.render or 0)) / _NS

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first: (last - first content) / (tokens - 1)."""
        first, last, tokens = self.ttft_ns, self.last_content_ns, self.output_tokens
        if first is None or last is None or tokens is None or tokens <= 1:
            return None
        return (last - first) / (tokens - 1) / _NS

    @property
    def max_gap_s(self) -> float | None:
        """Longest wait for a chunk after the first, in seconds."""
        return seconds(self.max_gap_ns)

    @property
    def retry_s(self) -> float:
        """Seconds spent in failed attempts and the backoff after them."""
        return (self.timeline.retry_network + self.timeline.retry_gateway) / _NS

    def as_dict(self) -> dict[str, Any]:
        """Flatten to JSON-ready keys: durations in seconds, unknown ones left out."""
        timeline, stages = self.timeline, self.stages
        flat: dict[str, Any] = {
            name: value for name in _PLAIN if (value := getattr(self, name)) is not None
        }
        for name in _MARKS:
            if (ns := getattr(self, f"{name}_ns")) is not None:
                flat[f"{name}_s"] = ns / _NS
        for name in _DERIVED:
            if (value := getattr(self, name)) is not None:
                flat[name] = value
        for stage, ns in stages:
            if ns is not None:
                flat[f"{stage}_s"] = ns / _NS
                flat[f"{stage}_source"] = stages.sources[stage]
        flat["unattributed_s"] = stages.unattributed / _NS
        for part, ns in timeline.network.parts():
            if ns is not None:
                flat[f"network_{part}_s"] = ns / _NS
        if timeline.network.rtt_source is not None:
            flat["network_rtt_source"] = timeline.network.rtt_source
        for key, ns in _RAW.items():
            if value := getattr(timeline, ns):
                flat[key] = value / _NS
        for key, name in _REPORTS.items():
            if (reported := getattr(timeline, name)) is not None:
                flat[f"{key}_s"] = reported.ns / _NS
                flat[f"{key}_source"] = reported.source
        for when in ("before", "after"):
            for stage, ns in getattr(timeline, f"marked_{when}").items():
                flat[f"marked_{when}_{stage}_s"] = ns / _NS
        if stages.inconsistent:
            flat["inconsistent"] = list(stages.inconsistent)
        if self.attributes:
            flat["attributes"] = dict(self.attributes)
        return flat


# A reader that asks within this long of getting the stream has not held anything up.
_EAGER_NS: Final = 1_000_000

_MARKS: Final = (
    "max_gap", "last_content", "first_byte", "first_event",
    "first_reasoning", "first_text", "first_tool_call",
)  # fmt: skip
_DERIVED: Final = ("stream", "e2e_s", "ttft_s", "ttft_arrival_s", "tpot_s", "retry_s")
_RAW: Final = {
    "held_before_s": "held_before",
    "held_after_s": "held_after",
    "retry_network_s": "retry_network",
    "retry_gateway_s": "retry_gateway",
}
_REPORTS: Final = {
    "reported_gateway": "gateway",
    "reported_queue": "queue",
    "reported_prefill": "prefill",
    "reported_decode": "engine_decode",
    "first_chunk_frontend": "frontend",
}
_KINDS: Final = {"str": str, "Outcome": str, "int": int, "float": int | float}
_PLAIN: Final = {
    f.name: _KINDS[str(f.type).removesuffix(" | None")]
    for f in fields(Row)
    if f.name not in {"timeline", "attributes", "gap_counts"} and not f.name.endswith("_ns")
}
_MOST: Final = float_info.max
# No request lasts longer than a year; what claims to is garbage, and would not fit a float.
_LONGEST_S: Final = 366 * 86_400


def seconds(ns: int | None) -> float | None:
    """Convert nanoseconds to seconds, leaving the unknown unknown."""
    return None if ns is None else ns / _NS


def with_figures(row: Row, figures: EngineFigures) -> Row:
    """Return the row with an engine's figures joined to it, whenever they arrive."""
    return replace(row, timeline=with_engine(row.timeline, figures))


def from_dict(flat: Mapping[str, Any]) -> Row:
    """Rebuild a row from what `Row.as_dict` wrote; unknown keys are ignored.

    Raises:
        DataError: a key is missing or holds a value of the wrong kind; the message names it.
    """
    try:
        plain = {name: value for name in _PLAIN if (value := _plain(flat, name)) is not None}
        marks: dict[str, Any] = {f"{name}_ns": _ns(flat, f"{name}_s") for name in _MARKS}
        raw: dict[str, Any] = {name: _ns(flat, key) or 0 for key, name in _RAW.items()}
        raw |= {name: _reported(flat, key) for key, name in _REPORTS.items()}
        timeline = Timeline(
            e2e=_ns_required(flat, "e2e_s"),
            ttft=_ns(flat, "ttft_s"),
            network=Network(
                **{part: _ns(flat, f"network_{part}_s") for part in _NETWORK_PARTS},
                rtt_source=_source(flat, "network_rtt_source"),
            ),
            marked_before=_marked(flat, "before"),
            marked_after=_marked(flat, "after"),
            stream=_stream(flat),
            **raw,
        )
        if plain.get("outcome", "success") not in OUTCOMES:
            msg = f"outcome is {plain['outcome']!r}, not one of {', '.join(OUTCOMES)}"
            raise DataError(msg)
        attributes = dict(flat.get("attributes") or {})
        return Row(timeline=timeline, attributes=attributes, **plain, **marks)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        msg = f"not a row: {type(error).__name__}: {error}"
        raise DataError(msg) from error


def _plain(flat: Mapping[str, Any], key: str) -> Any:
    value, kind = flat.get(key), _PLAIN[key]
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)  # a column of whole numbers with gaps is often kept as floats
    if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
        wanted = "text" if kind is str else "a whole number" if kind is int else "a number"
        msg = f"{key} is {value!r}, not {wanted}"
        raise TypeError(msg)
    if isinstance(value, int | float) and not -_MOST <= value <= _MOST:
        msg = f"{key} is {value!r}, not a finite number"
        raise ValueError(msg)
    return value


def _stream(flat: Mapping[str, Any]) -> bool:
    value = flat.get("stream")
    if value is not None and not isinstance(value, bool):
        msg = f"stream is {value!r}, not true or false"
        raise TypeError(msg)
    return value is not False


def _ns(flat: Mapping[str, Any], key: str) -> int | None:
    value = flat.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"{key} is {value!r}, not a number of seconds"
        raise TypeError(msg)
    if not -_LONGEST_S < value < _LONGEST_S:
        msg = f"{key} is {value!r}, longer than any request"
        raise ValueError(msg)
    return round(value * _NS)


def _ns_required(flat: Mapping[str, Any], key: str) -> int:
    value = _ns(flat, key)
    if value is None:
        raise KeyError(key)
    if value < 0:
        msg = f"{key} is {flat[key]!r}, and time does not run backwards"
        raise ValueError(msg)
    return value


def _source(flat: Mapping[str, Any], key: str) -> Source | None:
    value = flat.get(key)
    if value is not None and value not in SOURCES:
        msg = f"{key} is {value!r}, not one of {', '.join(SOURCES)}"
        raise ValueError(msg)
    return cast("Source | None", value)


def _reported(flat: Mapping[str, Any], key: str) -> Reported | None:
    ns, source = _ns(flat, f"{key}_s"), _source(flat, f"{key}_source")
    return None if ns is None or source is None else Reported(ns, source)


def _marked(flat: Mapping[str, Any], when: str) -> dict[Any, int]:
    marked = {stage: _ns(flat, f"marked_{when}_{stage}_s") for stage in STAGES}
    return {stage: ns for stage, ns in marked.items() if ns is not None}
