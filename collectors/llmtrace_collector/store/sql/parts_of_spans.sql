-- Lines of `request_parts`, of spans that were read.
--
-- {spans}      the query of the spans
-- {kind}       the type of a kind of part
-- {columns}    columns of what a part reports
-- {engine_id}  the expression of an engine's own id of a request
-- {day_ns}     what an engine reports is believed up to a day
SELECT
    CAST(tells, '{kind}') AS kind,
    now64(6) AS arrived,
    TraceId AS trace_id,
    SpanId AS span_id,
    ParentSpanId AS parent_span_id,
    if(tells = 'genai' AND Duration = 0, addNanoseconds(Timestamp, -least(took_ns, {day_ns})),
        Timestamp) AS start,
    if(ServiceName = '', 'unknown_service', toString(ServiceName)) AS service,
    {columns}
FROM (
{spans}
)
WHERE tells != ''
  AND (tells != 'plugin' OR {engine_id} != '')
  AND (tells NOT IN ('engine', 'slice')
    OR coalesce(engine_queue, engine_prefill, engine_decode) IS NOT NULL)
