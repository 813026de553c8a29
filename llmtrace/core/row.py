"""The record of one finished request.

A `Row`: the labels of the request, its outcome, and where its time went. A row flattens to plain
JSON (`as_dict`) and comes back (`from_dict`) with the same stages, whichever program wrote it;
everything llmtrace shows is a function over rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from sys import float_info
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args

from llmtrace.core.attempts import MAX_S, Attempt, as_plain, from_plain
from llmtrace.core.browser_timing import IN_JSON, Browser, browser_kinds, flatten, unflatten
from llmtrace.core.row_html import one_row
from llmtrace.core.stages import (
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
from llmtrace.core.tool_calls import Part, flat_part, read_part
from llmtrace.errors import DataError

Outcome = Literal["success", "error", "cancelled", "truncated", "timeout"]
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
TURN: Final = "invoke_agent"  # the operation of a row that is a turn

_NS: Final = 1_000_000_000
_NETWORK_PARTS: Final = ("client_wait", "dns", "connect", "tls", "handshake", "send", "rtt")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One request. Missing is `None`, never 0; `*_ns` are nanoseconds, `*_s` seconds.

    Attributes:
        request_id: the `x-request-id` sent to the server; `None` where it is not known, as of a
            span of another instrumentation.
        response_id: the id in the answer (`chatcmpl-…`): the join key that survives gateways.
        start: unix time of the call in nanoseconds, for placing the row, never for subtracting.
        timeline: everything measured and reported, uncut.
        agent: of a turn (`is_turn`): its name.
        replica: the engine instance that answered, where known.
        gateway: the name of the gateway in between, where known.
        attempts: HTTP attempts made, retries included.
        attempt_log: what each of them came to, where there was more than one or where one failed.
        response_model: the model that answered, as the answer names it; an alias may move.
        cache_hit: whether a cache answered before any engine was called; `None` = not reported.
        max_tokens: the most tokens the client allowed the answer to have.
        cache_write_tokens: of the prompt, tokens that the provider wrote to its cache.
        reasoning_tokens: of the output, tokens of reasoning.
        inference_calls: of a turn: requests to a model that began inside it.
        kv_connector: the engine's connector for KV blocks of other engines or tiers. Where it has
            one, `queue` (and `prefill`, if the connector loads synchronously) may hold a transfer.
        chunks: chunks with content the consumer was handed.
        burst_chunks: of those after the first, how many were there at once (waited for less than
            a millisecond). With an eager reader, most of them means that something in between
            gathers chunks.
        answered_ns: start to the headers of the answer. Where they come together with the first
            byte, something held them back.
        max_gap_ns: longest wait for a chunk after the first, the silence before a cut included.
        arrived_by_ns: start to when the first content was on this machine, at the latest, as the
            kernel says; `None` = not known to be before it was read.
        client_lag_ns: of the waits, for how long at least the kernel had the data: the event loop
            or the thread was busy with something else. `None` = not known.
        gap_counts: waits for a chunk after the first, counted over `record.GAP_BOUNDS_NS`; kept
            in memory for the metrics, not written out; so is `gap_sum_ns`, their sum.
        nested: whether another row is around this one, whose time this one's is part of.
        weight: how many requests this row stands for when the user samples.
        parts: of a turn: what ran inside it. On the wire these are spans of their own.
        content: the prompt and response, by attribute name, if the user wants it recorded: on
            the request's span and nowhere else.
        response_headers: of the last response, by lower-case name, as its server or gateway sent
            them (limits, ids, times of their own): `instrumentation.headers.kept_headers` has the
            list.
        browser: what the page measured, where its beacon was joined to this row.
    """

    request_id: str | None = None
    trace_id: str
    span_id: str
    parent_span_id: str | None = None
    response_id: str | None = None
    start: int
    service: str
    operation: str = "chat"
    agent: str | None = None
    model: str | None = None
    response_model: str | None = None
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
    cache_hit: bool | None = None
    attempts: int = 1
    attempt_log: tuple[Attempt, ...] = ()
    max_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    chunks: int = 0
    burst_chunks: int | None = None
    max_gap_ns: int | None = None
    last_content_ns: int | None = None
    answered_ns: int | None = None
    first_byte_ns: int | None = None
    first_event_ns: int | None = None
    first_reasoning_ns: int | None = None
    first_text_ns: int | None = None
    first_tool_call_ns: int | None = None
    arrived_by_ns: int | None = None
    client_lag_ns: int | None = None
    preemptions: int | None = None
    spec_drafted: int | None = None
    spec_accepted: int | None = None
    kv_connector: str | None = None
    inference_calls: int | None = None
    tool_calls: int | None = None
    tool_wall_s: float | None = None
    tool_serial_s: float | None = None
    tool_critical_path_s: float | None = None
    tool_serial_loss_s: float | None = None
    nested: bool = False
    weight: float = 1.0
    attributes: Mapping[str, str | bool | int | float | tuple[str, ...]] = field(
        default_factory=dict
    )
    response_headers: Mapping[str, str] = field(default_factory=dict)
    browser: Browser | None = None
    parts: tuple[Part, ...] = ()
    content: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    timeline: Timeline
    gap_counts: tuple[int, ...] | None = field(default=None, compare=False, repr=False)
    gap_sum_ns: int | None = field(default=None, compare=False, repr=False)

    if not TYPE_CHECKING:

        def __init__(self, **given: Any) -> None:
            # The generated one sets sixty fields one by one, past the freeze: five times the cost.
            object.__setattr__(self, "__dict__", _checked(blank_row() | given))

    @classmethod
    def of(cls, own: dict[str, Any]) -> Row:
        """Make a row of all its fields by name, which are its own from here on: nothing copied."""
        row = cls.__new__(cls)
        object.__setattr__(row, "__dict__", _checked(own))
        return row

    @cached_property
    def stages(self) -> Stages:
        """The partition of `e2e_ns` into the seven stages."""
        return split(self.timeline)

    @property
    def is_turn(self) -> bool:
        """Whether this is no request, but a turn that requests and tool calls lie in."""
        return self.operation == TURN

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
        """Start to first content, as the consumer experienced it; of a turn, its last stream's."""
        return self.timeline.ttft

    @property
    def ttft_s(self) -> float | None:
        """Start to first content, as the consumer experienced it, in seconds."""
        return seconds(self.timeline.ttft)

    @property
    def ttft_arrival_s(self) -> float | None:
        """What `ttft_s` would have been with an eager reader, at least.

        The consumer's hold is taken off as far as the engine's own figures leave room for it;
        `None` when the reader was late and nothing bounds when the content arrived. At most it
        is `arrived_by_ns`, where the kernel said that.
        """
        timeline = self.timeline
        if timeline.ttft is None or not timeline.watched or not timeline.stream:
            return None
        if timeline.held_before <= _EAGER_NS:
            return self.ttft_s
        if timeline.written is not None:
            stages = timeline.written
            render = min(timeline.held_before, stages.render or 0)
        else:
            # The wait up to the first content alone: what was rendered after it is not in there.
            stages = split(replace(timeline, e2e=timeline.ttft))
            render = stages.render or 0
        if stages.queue is None or stages.prefill is None:
            return None
        return (timeline.ttft - render) / _NS

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
                if (source := stages.sources.get(stage)) is not None:
                    flat[f"{stage}_source"] = source
        flat["unattributed_s"] = stages.unattributed / _NS
        if timeline.client is not None:
            flat["client_s"] = timeline.client / _NS
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
        if not timeline.watched:
            flat["unwatched"] = True
        if stages.inconsistent:
            flat["inconsistent"] = list(stages.inconsistent)
        if self.attempt_log:
            flat["attempt_log"] = as_plain(self.attempt_log)
        if self.attributes:
            flat["attributes"] = dict(self.attributes)
        if self.response_headers:
            flat["response_headers"] = dict(self.response_headers)
        if self.parts:
            flat["parts"] = [flat_part(part) for part in self.parts]
        if self.browser is not None:
            flat |= flatten(self.browser, IN_JSON)
        return flat

    def _repr_html_(self) -> str:
        return one_row(self)


def _checked(own: dict[str, Any]) -> dict[str, Any]:
    if len(own) != len(_FIELDS) or not own.keys() >= _REQUIRED:
        missing, unknown = sorted(_REQUIRED - own.keys()), sorted(own.keys() - _FIELDS)
        msg = f"a row lacks {missing} and has no {unknown}"
        raise TypeError(msg)
    return own


_FIELDS: Final = {f.name for f in fields(Row)}
_DEFAULTS: Final = {f.name: f.default for f in fields(Row) if f.default is not MISSING}
_MAPPINGS: Final = tuple(f.name for f in fields(Row) if f.default_factory is not MISSING)
_REQUIRED: Final = _FIELDS - _DEFAULTS.keys() - set(_MAPPINGS)


def blank_row() -> dict[str, Any]:
    """Return the fields of a row that need not be given, by name; `Row.of` makes a row of all."""
    row = _DEFAULTS.copy()
    for name in _MAPPINGS:
        row[name] = {}
    return row


_ROUNDING_NS: Final = 1_000  # files keep decimal seconds: less than this is no time
# A consumer that reads within this long of getting the stream has not delayed anything.
_EAGER_NS: Final = 1_000_000

_MARKS: Final = (
    "max_gap", "last_content", "answered", "first_byte", "first_event",
    "first_reasoning", "first_text", "first_tool_call", "arrived_by", "client_lag",
)  # fmt: skip
_DERIVED: Final = ("stream", "e2e_s", "ttft_s", "ttft_arrival_s", "tpot_s", "retry_s")
_RAW: Final = {
    "held_before_s": "held_before",
    "held_after_s": "held_after",
    "retry_network_s": "retry_network",
    "retry_gateway_s": "retry_gateway",
    "unsplit_s": "unsplit",
}
_REPORTS: Final = {
    "reported_gateway": "gateway",
    "reported_queue": "queue",
    "reported_prefill": "prefill",
    "reported_decode": "engine_decode",
    "first_chunk_frontend": "frontend",
    "first_chunk_kv_transfer": "kv_transfer",
}
# What files of before the first release call these keys.
_FORMER: Final = {"tries": "attempt_log", "evidence": "response_headers"}
_ENGINE_REPORTS: Final = (
    "prompt_tokens", "cached_tokens", "output_tokens", "preemptions", "replica", "kv_connector",
)  # fmt: skip
_KINDS: Final = {
    "str": str, "Outcome": str, "bool": bool, "int": int, "float": int | float,
}  # fmt: skip
_PLAIN: Final = {
    f.name: _KINDS[kind]
    for f in fields(Row)
    if (kind := str(f.type).removesuffix(" | None")) in _KINDS and not f.name.endswith("_ns")
}
_WANTED: Final[Mapping[Any, str]] = {str: "text", bool: "true or false", int: "a whole number"}
_MAX: Final = float_info.max


def flat_kinds() -> dict[str, type]:
    """Return the type of each key that `Row.as_dict` may have; `object`: a mapping or a list."""
    kinds: dict[str, type] = {"start": int}
    for name, kind in _PLAIN.items():
        kinds[name] = kind if isinstance(kind, type) else float
    kinds |= {"stream": bool, "unwatched": bool, "network_rtt_source": str}
    durations = (
        *_MARKS, *STAGES, "unattributed", "client", *_REPORTS,
        *(f"network_{part}" for part in _NETWORK_PARTS),
        *(f"marked_{when}_{stage}" for when in ("before", "after") for stage in STAGES),
    )  # fmt: skip
    kinds |= dict.fromkeys((f"{name}_s" for name in durations), float)
    kinds |= dict.fromkeys((*_RAW, *(name for name in _DERIVED if name != "stream")), float)
    kinds |= dict.fromkeys((f"{name}_source" for name in (*STAGES, *_REPORTS)), str)
    kinds |= browser_kinds(IN_JSON)
    nested = ("inconsistent", "attempt_log", "attributes", "response_headers", "parts")
    return kinds | dict.fromkeys(nested, object)


def seconds(ns: int | None) -> float | None:
    """Convert nanoseconds to seconds, leaving the unknown unknown."""
    return None if ns is None else ns / _NS


def with_figures(row: Row, figures: EngineFigures) -> Row:
    """Return the row with an engine's figures joined to it, whenever they arrive.

    What the row knows already stays. The engine's count of output tokens is taken for answers that
    came whole: of others the client got fewer.
    """
    reported_fields = {
        name: value
        for name in _ENGINE_REPORTS
        if getattr(row, name) is None and (value := getattr(figures, name)) is not None
    }
    if row.outcome != "success":
        reported_fields.pop("output_tokens", None)
    return replace(row, timeline=with_engine(row.timeline, figures), **reported_fields)


def from_dict(flat: Mapping[str, Any]) -> Row:
    """Rebuild a row from its flat form; unknown keys are ignored.

    The stages are those that are written, as every reader of rows has them. Where the rest of
    what is written leads to them, the row is the one that `Row.as_dict` flattened.

    Raises:
        DataError: a key is missing or holds a value of the wrong kind, or the stages come to more
            than the whole wait; the message names it.
    """
    try:
        if not _FORMER.keys().isdisjoint(flat):
            flat = {_FORMER.get(key, key): value for key, value in flat.items()}
        plain = {name: value for name in _PLAIN if (value := _plain(flat, name)) is not None}
        marks: dict[str, Any] = {f"{name}_ns": _ns(flat, f"{name}_s") for name in _MARKS}
        timeline = _timeline(flat)
        if plain.get("outcome", "success") not in OUTCOMES:
            msg = f"outcome is {plain['outcome']!r}, not one of {', '.join(OUTCOMES)}"
            raise DataError(msg)
        attributes = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in dict(flat.get("attributes") or {}).items()
        }
        return Row(
            timeline=timeline,
            attributes=attributes,
            response_headers=_response_headers(flat),
            browser=unflatten(flat, IN_JSON),
            attempt_log=from_plain(flat.get("attempt_log")),
            parts=tuple(read_part(part) for part in flat.get("parts", ())),
            **plain,
            **marks,
        )
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        msg = f"not a row: {type(error).__name__}: {error}"
        raise DataError(msg) from error


def _timeline(flat: Mapping[str, Any]) -> Timeline:
    """Read the measured times, and the written stages where they do not follow from those."""
    raw: dict[str, Any] = {name: _ns(flat, key) or 0 for key, name in _RAW.items()}
    raw |= {name: _reported(flat, key) for key, name in _REPORTS.items()}
    timeline = Timeline(
        e2e=_ns_required(flat, "e2e_s"),
        ttft=_ns(flat, "ttft_s"),
        client=_ns(flat, "client_s"),
        network=Network(
            **{part: _ns(flat, f"network_{part}_s") for part in _NETWORK_PARTS},
            rtt_source=_source(flat, "network_rtt_source"),
        ),
        marked_before=_marked(flat, "before"),
        marked_after=_marked(flat, "after"),
        stream=_flag(flat, "stream", default=True),
        watched=not _flag(flat, "unwatched", default=False),
        **raw,
    )
    written, made = _written(flat, timeline.e2e), split(timeline)
    if written is None or replace(written, client=made.client) != made:
        timeline = replace(timeline, written=written)
    return timeline


def _written(flat: Mapping[str, Any], e2e: int) -> Stages | None:
    """Read the partition of `e2e` nanoseconds that a flat row holds; `None` = it holds none."""
    ns = {stage: _ns(flat, f"{stage}_s") for stage in STAGES}
    if flat.get("unattributed_s") is None and all(value is None for value in ns.values()):
        return None
    for stage, value in ns.items():
        if value is not None and value < 0:
            msg = f"{stage}_s is {flat[f'{stage}_s']!r}, and time does not run backwards"
            raise ValueError(msg)
    rest = e2e - sum(value for value in ns.values() if value is not None)
    if rest < 0:
        if rest < -_ROUNDING_NS:
            msg = f"the stages come to {(e2e - rest) / _NS:g} s, more than e2e_s of {e2e / _NS:g}"
            raise ValueError(msg)
        largest = max(STAGES, key=lambda stage: ns[stage] or 0)
        ns[largest] = (ns[largest] or 0) + rest
    sources = {
        stage: source
        for stage in STAGES
        if (source := _source(flat, f"{stage}_source")) and ns[stage] is not None
    }
    inconsistent = tuple(stage for stage in flat.get("inconsistent") or () if stage in STAGES)
    unattributed, client = max(0, rest), _ns(flat, "client_s")
    return Stages(
        **ns,
        unattributed=unattributed,
        client=None if client is None else min(max(0, client), unattributed),
        sources=sources,
        inconsistent=inconsistent,
    )


def _plain(flat: Mapping[str, Any], key: str) -> Any:
    value, kind = flat.get(key), _PLAIN[key]
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)  # a column of whole numbers with gaps is often kept as floats
    odd = not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
    if value is not None and odd:
        wanted = _WANTED.get(kind, "a number")
        msg = f"{key} is {value!r}, not {wanted}"
        raise TypeError(msg)
    if isinstance(value, int | float) and not -_MAX <= value <= _MAX:
        msg = f"{key} is {value!r}, not a finite number"
        raise ValueError(msg)
    return bounded(key, value) if value is not None and key.endswith("_s") else value


def _flag(flat: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = flat.get(key)
    if value is not None and not isinstance(value, bool):
        msg = f"{key} is {value!r}, not true or false"
        raise TypeError(msg)
    return default if value is None else value


def _ns(flat: Mapping[str, Any], key: str) -> int | None:
    value = flat.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"{key} is {value!r}, not a number of seconds"
        raise TypeError(msg)
    return round(bounded(key, value) * _NS)


def bounded(name: str, seconds: float) -> float:
    """Return a duration as it is, if a request can have it.

    Raises:
        ValueError: it cannot.
    """
    if not -MAX_S < seconds < MAX_S:
        msg = f"{name} is {seconds!r}, longer than any request"
        raise ValueError(msg)
    return seconds


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


def _response_headers(flat: Mapping[str, Any]) -> dict[str, str]:
    headers = dict(flat.get("response_headers") or {})
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            msg = f"response_headers holds {name!r}: {value!r}, and not text"
            raise TypeError(msg)
    return headers


def _reported(flat: Mapping[str, Any], key: str) -> Reported | None:
    ns, source = _ns(flat, f"{key}_s"), _source(flat, f"{key}_source")
    return None if ns is None or source is None else Reported(ns, source)


def _marked(flat: Mapping[str, Any], when: str) -> dict[Any, int]:
    marked = {stage: _ns(flat, f"marked_{when}_{stage}_s") for stage in STAGES}
    return {stage: ns for stage, ns in marked.items() if ns is not None}
