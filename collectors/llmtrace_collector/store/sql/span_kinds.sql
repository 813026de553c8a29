-- Spans with what each tells of: the kind of part that it is, '' = none.
--
-- {reporting}  the spans
-- {read}       what else the attributes are read from
-- {tells}      the expression of the kind
-- {attributes}, {took}  expressions of the attributes and the duration of a plain GenAI span
SELECT TraceId, SpanId, ParentSpanId, Timestamp, ServiceName, ResourceAttributes, Duration,
        StatusCode, SpanName, tells,
        if(tells = 'genai', {attributes}, CAST(SpanAttributes, 'Map(String, String)')) AS a,
        if(tells = 'genai', {took}, toInt64(Duration)) AS took_ns
    FROM (
    SELECT TraceId, SpanId, ParentSpanId, Timestamp, ServiceName, ResourceAttributes, Duration,
        StatusCode, SpanName, {read}, {tells} AS tells
    FROM {reporting}
    )
