-- Rows of `otel_traces`, of what was read from OTLP. A span that ends before it starts lasts less than
-- 0: its duration is that number's 64 bits, as OpenTelemetry's exporter writes it.
--
-- {incoming}                the table that it was read into
-- {earliest}, {latest}      days before and after now beyond which a clock is not believed
-- {resource}, {attributes}  attributes of `r.resource`, and of a span, as a map
-- {of_event}, {of_link}     those of an event `e`, and of a link `l`
SELECT
    if(intDiv(s.start_time_unix_nano, 1000000000)
          BETWEEN (toUInt64(toUnixTimestamp(now())) - 86400 * {earliest})
            AND (toUInt64(toUnixTimestamp(now())) + 86400 * {latest}),
        fromUnixTimestamp64Nano(toInt64(s.start_time_unix_nano)), now64(9)) AS Timestamp,
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
    {attributes} AS SpanAttributes,
    toUInt64(s.end_time_unix_nano - s.start_time_unix_nano) AS Duration,
    if(s.status.code = 2, 'Error', if(s.status.code = 1, 'Ok', 'Unset')) AS StatusCode,
    s.status.message AS StatusMessage,
    arrayMap(e -> fromUnixTimestamp64Nano(toInt64(e.time_unix_nano)), s.events) AS `Events.Timestamp`,
    arrayMap(e -> e.name, s.events) AS `Events.Name`,
    arrayMap(e -> {of_event}, s.events) AS `Events.Attributes`,
    arrayMap(l -> lower(hex(l.trace_id)), s.links) AS `Links.TraceId`,
    arrayMap(l -> lower(hex(l.span_id)), s.links) AS `Links.SpanId`,
    arrayMap(l -> l.trace_state, s.links) AS `Links.TraceState`,
    arrayMap(l -> {of_link}, s.links) AS `Links.Attributes`
FROM (
    SELECT resource, resource['service.name'] AS service, g.scope AS scope, g.spans AS spans
    FROM (
        SELECT {resource} AS resource, r.scope_spans AS scope_spans
        FROM {incoming} ARRAY JOIN resource_spans AS r
    ) ARRAY JOIN scope_spans AS g
) ARRAY JOIN spans AS s
