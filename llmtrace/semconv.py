"""What is each field of a row called on the wire?

One table: row field to OpenTelemetry attribute. GenAI semantic-convention names where one exists,
`llmtrace.*` for the rest. `python -m llmtrace.semconv` prints it as docs/semconv.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from llmtrace.errors import DataError
from llmtrace.rows import OUTCOMES, Row
from llmtrace.stages import SOURCES, STAGES, Network, Reported, StageName, Timeline

Scalar = str | bool | int | float
Value = Scalar | Sequence[str]
Kind = Literal["string", "string[]", "int", "double", "boolean", "seconds"]

SCOPE: Final = "llmtrace"  # the instrumentation scope's name
STAGE: Final = "llmtrace.stage"  # on a child span: which stage it is
STAGE_SOURCE: Final = "llmtrace.source"  # on a child span: who told
E2E: Final = "llmtrace.e2e"  # on every row's span, and on no other: what tells rows from spans

_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Attribute:
    """One line of the table: a field of the row, its name on the wire, and what it means."""

    field: str
    name: str
    kind: Kind
    meaning: str


# Row fields that are written as they are. Absent when unknown.
PLAIN: Final = (
    Attribute("operation", "gen_ai.operation.name", "string", "`chat`, `text_completion`, …"),
    Attribute("provider", "gen_ai.provider.name", "string", "who serves the model"),
    Attribute("model", "gen_ai.request.model", "string", "the model asked for"),
    Attribute("response_id", "gen_ai.response.id", "string", "the id in the answer"),
    Attribute("prompt_tokens", "gen_ai.usage.input_tokens", "int", "tokens of the prompt"),
    Attribute(
        "cached_tokens", "gen_ai.usage.cache_read.input_tokens", "int", "of them, from a cache"
    ),
    Attribute("output_tokens", "gen_ai.usage.output_tokens", "int", "tokens of the answer"),
    Attribute("error_type", "error.type", "string", "class of what was raised"),
    Attribute("http_status", "http.response.status_code", "int", "status of the last attempt"),
    Attribute("version", "service.version", "string", "version of the application"),
    Attribute("outcome", "llmtrace.outcome", "string", f"one of {', '.join(OUTCOMES)}"),
    Attribute("request_id", "llmtrace.request_id", "string", "the `x-request-id` sent"),
    Attribute("route", "llmtrace.route", "string", "which feature of the application asked"),
    Attribute("tenant", "llmtrace.tenant", "string", "on whose behalf"),
    Attribute("region", "llmtrace.region", "string", "where the application runs"),
    Attribute("replica", "llmtrace.replica", "string", "the engine instance that answered"),
    Attribute("gateway", "llmtrace.gateway", "string", "name of the gateway in between"),
    Attribute("client", "llmtrace.client", "string", "client library"),
    Attribute("attempts", "llmtrace.attempts", "int", "HTTP attempts, retries included"),
    Attribute("chunks", "llmtrace.chunks", "int", "chunks with content"),
    Attribute("preemptions", "llmtrace.preemptions", "int", "times the engine preempted it"),
    Attribute("spec_drafted", "llmtrace.spec_drafted", "int", "speculative tokens drafted"),
    Attribute("spec_accepted", "llmtrace.spec_accepted", "int", "of them, accepted"),
    Attribute("tool_calls", "llmtrace.tool_calls", "int", "tool calls run"),
    Attribute("tool_wall_s", "llmtrace.tool_wall", "double", "s from first tool start to last end"),
    Attribute("tool_serial_s", "llmtrace.tool_serial", "double", "s of all tool calls added up"),
    Attribute(
        "tool_critical_path_s",
        "llmtrace.tool_critical_path",
        "double",
        "s of the longest chain of dependent tool calls",
    ),
    Attribute("weight", "llmtrace.weight", "double", "requests this row stands for"),
)

# Points in time and gaps that the row keeps in nanoseconds (`<field>_ns`). Absent when unknown.
MARKS: Final = (
    Attribute("max_gap", "llmtrace.max_gap", "seconds", "longest wait for a chunk after the first"),
    Attribute("first_byte", "llmtrace.first_byte", "seconds", "start to first byte of the body"),
    Attribute("first_event", "llmtrace.first_event", "seconds", "start to first event, any kind"),
    Attribute(
        "first_reasoning", "llmtrace.first_reasoning", "seconds", "start to first reasoning"
    ),
    Attribute("first_text", "llmtrace.first_text", "seconds", "start to first visible text"),
    Attribute(
        "first_tool_call", "llmtrace.first_tool_call", "seconds", "start to first tool-call chunk"
    ),
    Attribute("last_content", "llmtrace.last_content", "seconds", "start to last content"),
)

# Fields of the timeline that are 0 unless something happened. Absent when 0.
RAW: Final = (
    Attribute(
        "held_before", "llmtrace.held.before", "seconds", "the reader's own time before content"
    ),
    Attribute("held_after", "llmtrace.held.after", "seconds", "the reader's own time after it"),
    Attribute(
        "retry_network", "llmtrace.retry.network", "seconds", "failed attempts without a status"
    ),
    Attribute(
        "retry_gateway", "llmtrace.retry.gateway", "seconds", "failed attempts with a status"
    ),
)

# Durations as somebody reported them, uncut, each with a `.source`. Absent when not reported.
REPORTED: Final = (
    Attribute("gateway", "llmtrace.reported.gateway", "seconds", "self time of gateways"),
    Attribute("queue", "llmtrace.reported.queue", "seconds", "in the engine's scheduler"),
    Attribute("prefill", "llmtrace.reported.prefill", "seconds", "scheduled to first token"),
    Attribute("engine_decode", "llmtrace.reported.decode", "seconds", "first to last token"),
    Attribute("frontend", "llmtrace.reported.frontend", "seconds", "the engine's front end"),
)

# Sub-phases of the network stage. Absent when nobody looked.
NETWORK: Final = (
    Attribute("client_wait", "llmtrace.network.client_wait", "seconds", "pool, semaphore"),
    Attribute("dns", "llmtrace.network.dns", "seconds", "name resolution"),
    Attribute("connect", "llmtrace.network.connect", "seconds", "TCP handshake"),
    Attribute("tls", "llmtrace.network.tls", "seconds", "TLS handshake"),
    Attribute("send", "llmtrace.network.send", "seconds", "sending the request"),
    Attribute("rtt", "llmtrace.network.rtt", "seconds", "one round trip"),
)

# Stages as `stages.split` cut them: written to be queried, worked out anew when read.
STAGE_TIMES: Final = tuple(
    Attribute(stage, f"llmtrace.stage.{stage}", "seconds", "share of the wait, cut to fit")
    for stage in STAGES
)

# What has a shape of its own; see `to_attributes`.
SPECIAL: Final = (
    Attribute("server", "server.address", "string", "host of the server"),
    Attribute("server", "server.port", "int", "its port, where given"),
    Attribute("stream", "gen_ai.request.stream", "boolean", "true for a stream, else absent"),
    Attribute(
        "finish_reason", "gen_ai.response.finish_reasons", "string[]", "why the model stopped"
    ),
    Attribute(
        "ttft_s", "gen_ai.response.time_to_first_chunk", "seconds", "start to first *content*"
    ),
    Attribute("e2e_s", E2E, "seconds", "the whole wait; marks the span as a row"),
    Attribute(
        "network_rtt_source", "llmtrace.network.rtt.source", "string", "who measured the round trip"
    ),
)
DERIVED: Final = (
    Attribute("tpot_s", "llmtrace.tpot", "seconds", "a token after the first"),
    Attribute(
        "ttft_arrival_s",
        "llmtrace.ttft_arrival",
        "seconds",
        "what the first content would have taken with an eager reader",
    ),
    Attribute(
        "unattributed_s", "llmtrace.stage.unattributed", "seconds", "known time nobody can split"
    ),
    Attribute(
        "inconsistent",
        "llmtrace.inconsistent",
        "string[]",
        "stages whose reported figure did not fit and was cut",
    ),
)

_MARKED: Final = {
    (when, stage): f"llmtrace.marked.{when}.{stage}"
    for when in ("before", "after")
    for stage in STAGES
}
_OWN: Final = "llmtrace."
_RESOURCE_ONLY: Final = frozenset({"service.name"})
_NAMES: Final = frozenset(
    line.name for table in (PLAIN, SPECIAL, DERIVED) for line in table
) | _RESOURCE_ONLY  # fmt: skip

_PLAIN_PAIRS: Final = tuple((line.field, line.name) for line in PLAIN)
_MARK_PAIRS: Final = tuple((f"{line.field}_ns", line.name) for line in MARKS)
_TIMELINE_PAIRS: Final = tuple((line.field, line.name) for line in RAW)
_REPORTED_NAMES: Final = tuple(
    (line.field, line.name, f"{line.name}.source") for line in REPORTED
)
_NETWORK_PAIRS: Final = tuple((line.field, line.name) for line in NETWORK)
_STAGE_NAMES: Final = tuple((line.field, line.name, f"{line.name}.source") for line in STAGE_TIMES)


def reserved(name: str) -> bool:
    """Say whether an attribute name belongs to llmtrace, so that a user attribute may not use it."""
    return name.startswith(_OWN) or name in _NAMES


def to_attributes(row: Row) -> dict[str, Value]:
    """Flatten a row to span attributes; durations in seconds, unknown ones left out.

    The ids, `start` and `service` are not among them: the span and its resource carry those.
    """
    timeline, stages = row.timeline, row.stages
    out: dict[str, Value] = {
        name: value for name, value in row.attributes.items() if not reserved(name)
    }
    for key, name in _PLAIN_PAIRS:
        if (value := getattr(row, key)) is not None:
            out[name] = value
    if row.server is not None:
        out["server.address"], port = split_server(row.server)
        if port is not None:
            out["server.port"] = port
    if timeline.stream:
        out["gen_ai.request.stream"] = True
    if row.finish_reason is not None:
        out["gen_ai.response.finish_reasons"] = (row.finish_reason,)
    out[E2E] = timeline.e2e / _NS
    if timeline.ttft is not None:
        out["gen_ai.response.time_to_first_chunk"] = timeline.ttft / _NS
        if (tpot := row.tpot_s) is not None:
            out["llmtrace.tpot"] = tpot
        if (arrival := row.ttft_arrival_s) is not None:
            out["llmtrace.ttft_arrival"] = arrival
    for key, name in _MARK_PAIRS:
        if (ns := getattr(row, key)) is not None:
            out[name] = ns / _NS
    for key, name in _TIMELINE_PAIRS:
        if ns := getattr(timeline, key):
            out[name] = ns / _NS
    for key, name, source in _REPORTED_NAMES:
        if (reported := getattr(timeline, key)) is not None:
            out[name] = reported.ns / _NS
            out[source] = reported.source
    network = timeline.network
    for key, name in _NETWORK_PAIRS:
        if (ns := getattr(network, key)) is not None:
            out[name] = ns / _NS
    if network.rtt_source is not None:
        out["llmtrace.network.rtt.source"] = network.rtt_source
    for when, marked in (("before", timeline.marked_before), ("after", timeline.marked_after)):
        for stage, ns in marked.items():
            out[_MARKED[when, stage]] = ns / _NS
    sources = stages.sources
    for key, name, source in _STAGE_NAMES:
        if (ns := getattr(stages, key)) is not None:
            out[name] = ns / _NS
            out[source] = sources[key]  # type: ignore[index]
    out["llmtrace.stage.unattributed"] = stages.unattributed / _NS
    if stages.inconsistent:
        out["llmtrace.inconsistent"] = stages.inconsistent
    return out


def from_attributes(
    attributes: Mapping[str, Any],
    *,
    start: int,
    trace_id: str,
    span_id: str,
    parent_span_id: str | None = None,
    resource: Mapping[str, Any] | None = None,
) -> Row:
    """Rebuild a row from the attributes of its span; the inverse of `to_attributes`.

    Attributes that are not llmtrace's become the row's own, if they are plain values.

    Args:
        attributes: of the span.
        start: the span's start, unix nanoseconds.
        trace_id: in hex, as the two span ids.
        span_id: of the span.
        parent_span_id: of its parent, if it has one.
        resource: attributes of the span's resource; `service`, `version` and `region` are taken
            from it where the span does not say.

    Raises:
        DataError: this is not the span of a row (`is_row`), or a value is of the wrong kind.
    """
    around = resource or {}
    try:
        plain = {
            line.field: _as_kind(line, attributes[line.name])
            for line in PLAIN
            if attributes.get(line.name) is not None
        }
        plain.setdefault("version", around.get("service.version"))
        plain.setdefault("region", around.get("cloud.region"))
        _one_of(plain.get("outcome", "success"), OUTCOMES, "llmtrace.outcome")
        return Row(
            trace_id=trace_id,
            span_id=span_id,
            parent_span_id=parent_span_id,
            start=start,
            service=attributes.get("service.name") or around.get("service.name") or "unknown_service",
            server=_server(attributes),
            finish_reason=_first(attributes.get("gen_ai.response.finish_reasons")),
            timeline=_timeline(attributes),
            attributes={
                name: value
                for name, value in attributes.items()
                if not reserved(name) and isinstance(value, str | bool | int | float)
            },
            **{f"{line.field}_ns": _ns(attributes, line.name) for line in MARKS},
            **plain,
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        msg = f"not the span of a row: {type(error).__name__}: {error}"
        raise DataError(msg) from error


def is_row(attributes: Mapping[str, Any]) -> bool:
    """Say whether a span with these attributes is a row, and not one of its stages or another."""
    return E2E in attributes


def _timeline(attributes: Mapping[str, Any]) -> Timeline:
    e2e = _ns(attributes, E2E)
    if e2e is None:
        raise KeyError(E2E)
    rtt_source = attributes.get("llmtrace.network.rtt.source")
    if rtt_source is not None:
        _one_of(rtt_source, SOURCES, "llmtrace.network.rtt.source")
    parts: dict[str, Any] = {line.field: _ns(attributes, line.name) for line in NETWORK}
    raw: dict[str, Any] = {line.field: _ns(attributes, line.name) or 0 for line in RAW}
    reported: dict[str, Any] = {line.field: _reported(attributes, line.name) for line in REPORTED}
    return Timeline(
        e2e=e2e,
        ttft=_ns(attributes, "gen_ai.response.time_to_first_chunk"),
        network=Network(**parts, rtt_source=rtt_source),
        marked_before=dict(_marked(attributes, "before")),
        marked_after=dict(_marked(attributes, "after")),
        stream=bool(attributes.get("gen_ai.request.stream", False)),
        **raw,
        **reported,
    )


def _marked(attributes: Mapping[str, Any], when: str) -> Iterator[tuple[StageName, int]]:
    for stage in STAGES:
        if (ns := _ns(attributes, _MARKED[when, stage])) is not None:
            yield stage, ns


def _reported(attributes: Mapping[str, Any], name: str) -> Reported | None:
    ns, source = _ns(attributes, name), attributes.get(f"{name}.source")
    if ns is None or source is None:
        return None
    _one_of(source, SOURCES, f"{name}.source")
    return Reported(ns, source)


def _ns(attributes: Mapping[str, Any], name: str) -> int | None:
    value = attributes.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        msg = f"{name} is {value!r}, not a number of seconds"
        raise TypeError(msg)
    return round(value * _NS)


def _as_kind(line: Attribute, value: Any) -> Any:
    """Check a plain value's kind: what comes from the wire may be anything."""
    kinds = {"string": str, "int": int, "double": int | float}[line.kind]
    if isinstance(value, bool) or not isinstance(value, kinds):
        msg = f"{line.name} is {value!r}, not a {line.kind}"
        raise TypeError(msg)
    return value


def _one_of(value: Any, allowed: Sequence[str], name: str) -> None:
    if value not in allowed:
        msg = f"{name} is {value!r}, not one of {', '.join(allowed)}"
        raise ValueError(msg)


def _first(reasons: Any) -> str | None:
    # Some stores flatten a list of one to its only element.
    if isinstance(reasons, str):
        return reasons
    return str(reasons[0]) if reasons else None


def split_server(server: str) -> tuple[str, int | None]:
    """Split `host:port` into what OpenTelemetry's `server.address` and `server.port` hold.

    Example:
        >>> split_server("engine:8000")
        ('engine', 8000)
        >>> split_server("[::1]:8000")
        ('::1', 8000)
        >>> split_server("engine")
        ('engine', None)
    """
    host, colon, port = server.rpartition(":")
    if not colon or not port.isdecimal() or not port.isascii() or port != str(int(port)):
        return server, None
    if host.startswith("[") and host.endswith("]") and ":" in host:
        return host[1:-1], int(port)
    if ":" in host or not host:
        return server, None
    return host, int(port)


def _server(attributes: Mapping[str, Any]) -> str | None:
    address, port = attributes.get("server.address"), attributes.get("server.port")
    if address is None or port is None:
        return None if address is None else str(address)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
