"""Turn the bytes of OTLP into rows of `otel_traces` in SQL: Python looks at no span.

ClickHouse reads Protobuf itself: into a table that keeps nothing, whose columns are nested as the
messages are, and from which a materialised view fills `otel_traces`. That table is as OpenTelemetry's
ClickHouse exporter makes it, so that its readers read ours and ours read its.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

# The messages of opentelemetry/proto as far as they are stored. Unknown fields are skipped.
PROTO: Final = Path(__file__).with_suffix(".proto").read_text(encoding="utf-8")
MESSAGE: Final = "Request"

# Which member of AnyValue was sent: without it 0 and "" could not be distinguished from nothing.
_ONEOF: Final = (
    "value Enum8('no' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3,"
    " 'double_value' = 4, 'array_value' = 5, 'kvlist_value' = 6, 'bytes_value' = 7)"
)
_SCALAR: Final = (
    f"{_ONEOF}, string_value String, bool_value Bool, int_value Int64, double_value Float64,"
    " bytes_value String"
)
# Lists and maps are kept one level deep; what is inside those is not.
_ANY: Final = (
    f"Tuple({_SCALAR}, array_value Tuple(values Array(Tuple({_SCALAR}))),"
    f" kvlist_value Tuple(values Array(Tuple(key String, value Tuple({_SCALAR})))))"
)
_ATTRIBUTES: Final = f"Array(Tuple(key String, value {_ANY}))"

INCOMING_COLUMNS: Final = f"""\
resource_spans Array(Tuple(
    resource Tuple(attributes {_ATTRIBUTES}),
    scope_spans Array(Tuple(
      scope Tuple(name String, version String),
      spans Array(Tuple(
        trace_id String, span_id String, trace_state String, parent_span_id String, name String,
        kind Int32, start_time_unix_nano UInt64, end_time_unix_nano UInt64,
        attributes {_ATTRIBUTES},
        events Array(Tuple(time_unix_nano UInt64, name String, attributes {_ATTRIBUTES})),
        links Array(Tuple(trace_id String, span_id String, trace_state String,
          attributes {_ATTRIBUTES})),
        status Tuple(message String, code Int32)))))))"""

_MAP: Final = "Map(LowCardinality(String), String)"
TRACES_COLUMNS: Final = f"""\
    Timestamp DateTime64(9) CODEC(Delta(8), ZSTD(1)),
    TraceId String CODEC(ZSTD(1)),
    SpanId String CODEC(ZSTD(1)),
    ParentSpanId String CODEC(ZSTD(1)),
    TraceState String CODEC(ZSTD(1)),
    SpanName LowCardinality(String) CODEC(ZSTD(1)),
    SpanKind LowCardinality(String) CODEC(ZSTD(1)),
    ServiceName LowCardinality(String) CODEC(ZSTD(1)),
    ResourceAttributes {_MAP} CODEC(ZSTD(1)),
    ScopeName String CODEC(ZSTD(1)),
    ScopeVersion String CODEC(ZSTD(1)),
    SpanAttributes {_MAP} CODEC(ZSTD(1)),
    Duration UInt64 CODEC(T64, ZSTD(1)),
    StatusCode LowCardinality(String) CODEC(ZSTD(1)),
    StatusMessage String CODEC(ZSTD(1)),
    Events Nested (Timestamp DateTime64(9), Name LowCardinality(String), Attributes {_MAP}) CODEC(ZSTD(1)),
    Links Nested (TraceId String, SpanId String, TraceState String, Attributes {_MAP}) CODEC(ZSTD(1)),
    INDEX idx_trace_id TraceId TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX idx_res_attr_key mapKeys(ResourceAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_res_attr_value mapValues(ResourceAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_span_attr_key mapKeys(SpanAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_span_attr_value mapValues(SpanAttributes) TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX idx_duration Duration TYPE minmax GRANULARITY 1"""
# A fifth of an insert's work: they are made as parts are merged, and the newest parts, which have
# none yet, are small. A trace is found by its id at once.
INDEXED_LATER: Final = (
    "idx_res_attr_key", "idx_res_attr_value", "idx_span_attr_key", "idx_span_attr_value",
)  # fmt: skip

# A clock may be wrong by anything. What claims to be from the future, or from before last year,
# is stored as of when it came: each day of its own would be a folder on disk.
_FUTURE_DAYS: Final = 1
_PAST_DAYS: Final = 400


def _scalar(value: str) -> str:
    return (
        f"multiIf({value}.value = 'string_value', {value}.string_value,"
        f" {value}.value = 'int_value', toString({value}.int_value),"
        f" {value}.value = 'double_value', toString({value}.double_value),"
        f" {value}.value = 'bool_value', if({value}.bool_value, 'true', 'false'),"
        f" {value}.value = 'bytes_value', base64Encode({value}.bytes_value), '')"
    )


def _json(value: str) -> str:
    return (
        f"multiIf({value}.value = 'string_value', toJSONString({value}.string_value),"
        f" {value}.value = 'int_value', toString({value}.int_value),"
        f" {value}.value = 'double_value', toString({value}.double_value),"
        f" {value}.value = 'bool_value', if({value}.bool_value, 'true', 'false'),"
        f" {value}.value = 'bytes_value', toJSONString(base64Encode({value}.bytes_value)), 'null')"
    )


def _text(value: str) -> str:
    """Return the expression of a value as the exporter writes it: text, or JSON of what nests."""
    members = f"arrayMap(x -> {_json('x')}, {value}.array_value.values)"
    pairs = (
        f"arrayMap(x -> concat(toJSONString(x.key), ':', {_json('x.value')}),"
        f" {value}.kvlist_value.values)"
    )
    return (
        f"multiIf({value}.value = 'array_value', concat('[', arrayStringConcat({members}, ','), ']'),"
        f" {value}.value = 'kvlist_value', concat('{{', arrayStringConcat({pairs}, ','), '}}'),"
        f" {_scalar(value)})"
    )


def _map(attributes: str) -> str:
    return (
        f"mapFromArrays(arrayMap(kv -> kv.key, {attributes}),"
        f" arrayMap(kv -> {_text('kv.value')}, {attributes}))"
    )


def _time(ns: str) -> str:
    return f"fromUnixTimestamp64Nano(toInt64({ns}))"


def _sane(ns: str) -> str:
    now = "toUInt64(toUnixTimestamp(now()))"
    earliest, latest = f"({now} - 86400 * {_PAST_DAYS})", f"({now} + 86400 * {_FUTURE_DAYS})"
    sane = f"intDiv({ns}, 1000000000) BETWEEN {earliest} AND {latest}"
    return f"if({sane}, {_time(ns)}, now64(9))"


def traces_select(incoming: str) -> str:
    """Return the query that makes rows of `otel_traces` of what was read from OTLP."""
    return f"""\
SELECT
    {_sane("s.start_time_unix_nano")} AS Timestamp,
    lower(hex(s.trace_id)) AS TraceId,
    lower(hex(s.span_id)) AS SpanId,
    lower(hex(s.parent_span_id)) AS ParentSpanId,
    s.trace_state AS TraceState,
    s.name AS SpanName,
    ['Unspecified', 'Internal', 'Server', 'Client', 'Producer', 'Consumer'][s.kind + 1] AS SpanKind,
    resource AS ResourceAttributes,
    service AS ServiceName,
    scope.name AS ScopeName,
    scope.version AS ScopeVersion,
    {_map("s.attributes")} AS SpanAttributes,
    if(s.end_time_unix_nano > s.start_time_unix_nano,
       s.end_time_unix_nano - s.start_time_unix_nano, 0) AS Duration,
    if(s.status.code = 2, 'Error', if(s.status.code = 1, 'Ok', 'Unset')) AS StatusCode,
    s.status.message AS StatusMessage,
    arrayMap(e -> {_time("e.time_unix_nano")}, s.events) AS `Events.Timestamp`,
    arrayMap(e -> e.name, s.events) AS `Events.Name`,
    arrayMap(e -> {_map("e.attributes")}, s.events) AS `Events.Attributes`,
    arrayMap(l -> lower(hex(l.trace_id)), s.links) AS `Links.TraceId`,
    arrayMap(l -> lower(hex(l.span_id)), s.links) AS `Links.SpanId`,
    arrayMap(l -> l.trace_state, s.links) AS `Links.TraceState`,
    arrayMap(l -> {_map("l.attributes")}, s.links) AS `Links.Attributes`
FROM (
    SELECT resource, resource['service.name'] AS service, g.scope AS scope, g.spans AS spans
    FROM (
        SELECT {_map("r.resource.attributes")} AS resource, r.scope_spans AS scope_spans
        FROM {incoming} ARRAY JOIN resource_spans AS r
    ) ARRAY JOIN scope_spans AS g
) ARRAY JOIN spans AS s"""
