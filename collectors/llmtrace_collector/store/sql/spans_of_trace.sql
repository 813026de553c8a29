-- The spans of a trace, as long as they are kept.
--
-- trace    its id
-- {limit}  how many spans at most
SELECT SpanId, ParentSpanId, SpanName, toString(ServiceName), toString(SpanKind),
    toUnixTimestamp64Nano(Timestamp), toInt64(Duration), toString(StatusCode), StatusMessage,
    CAST(SpanAttributes, 'Map(String, String)')
FROM otel_traces
WHERE TraceId = {trace:String}
ORDER BY Timestamp, SpanId LIMIT {limit}
