-- The spans that may report of a request.
--
-- {traces}   the table of spans
-- {read}     what else `conventions.attributes` is read from
-- {telling}  attributes one of which such a span has
-- {slice}    the condition of a slice of a request on its engine
SELECT TraceId, SpanId, ParentSpanId, Timestamp, ServiceName, ResourceAttributes, Duration,
    StatusCode, SpanName, SpanKind, ScopeName, {read}
FROM {traces}
WHERE arrayExists(key -> key IN ({telling}), mapKeys(SpanAttributes)) OR {slice}
