-- Chosen among what lies below a request, and what else is in the trace of an only one.
-- Several records of one request go together; several requests do not.
--
-- {rows}  the query of requests, with what `parts_by_place` found
SELECT *,
    if(joins, gateways_between, []) AS gateway_found,
    if(joins AND NOT has_page AND last AND NOT a_turn, arraySlice(pages, 1, 1), []) AS page_found,
    if(notEmpty(gateways_above), gateways_above[1].own, NULL) AS app_ns,
    multiIf(
        length(engine_in_trace) <= 1, engine_in_trace,
        response_id != '' AND arrayExists(x -> x.answered = response_id, engine_in_trace),
        arrayFilter(x -> x.answered = response_id, engine_in_trace),
        engine_in_trace[1].answered != ''
            AND length(arrayDistinct(arrayMap(x -> x.answered, engine_in_trace))) = 1,
        engine_in_trace,
        []) AS engine_traced
FROM (
SELECT *,
    if(empty(engines_below) AND single, engines_in_trace, engines_below) AS engine_in_trace,
    if(empty(slices_below) AND single, slices_in_trace, slices_below) AS slices,
    -- Those above are this application's own.
    if(empty(gateways_below) AND single,
        arrayFilter(x -> x.service != service AND x.span_id != parent_span_id, gateways_in_trace),
        gateways_below) AS gateways_between,
    arrayFilter(x -> x.service = service AND NOT has(arrayMap(y -> y.span_id, gateways_below), x.span_id),
        gateways_in_trace) AS gateways_above
FROM (
{rows}
)
)
