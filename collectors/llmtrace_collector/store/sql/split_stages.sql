-- A request's wait split into stages, exactly as `llmtrace.core.stages.split` does it. Each query
-- sees the columns of the one inside it.
--
-- What is taken from a window one after the other gets `min(claim, what is left)`; with the sum of
-- the claims before it, that is a closed form, so that a split is a few passes over short arrays.
--
-- {rows}                    the query of rows
-- {network_parts}           the columns that a request's network time is made of
-- {before_ns}, {after_ns}   what is claimed of the time before and after the first content
-- {before_source}           by whom, before it
-- {stages}                  the columns of all stages but first_chunk, and of who claimed each last
-- {first_chunk_claimed}     whether any claim is for first_chunk; {first_chunk_taken} what these got
-- {render_before}           what render got of the time before the first content
-- {contradicted}            the stages of the claims that did not fit
-- {sources}                 the columns of all stages' sources
SELECT *,
    {sources}
FROM (
SELECT *,
    multiIf(
        engine_known, first_chunk_marked + left_before - unsplit_here,
        first_chunk_is_marked, first_chunk_marked,
        NULL) AS first_chunk_ns,
    multiIf(
        engine_known,
        if('engine_window' IN (queue_by, prefill_by, decode_by), 'engine_window', 'client'),
        first_chunk_is_marked, 'client',
        '') AS first_chunk_by,
    client_part + unsplit_here + after_rest - if(takes_decode, after_rest, 0) AS unattributed_ns,
    {contradicted} AS inconsistent,
    multiIf(
        ttft_ns IS NULL OR unwatched OR NOT stream, NULL,
        held_before_ns <= 1000000, ttft_ns,
        queue_ns IS NULL OR prefill_ns IS NULL, NULL,
        ttft_ns - render_before) AS ttft_arrival_ns
FROM (
SELECT *,
    queue_ns IS NOT NULL AND prefill_ns IS NOT NULL AND decode_ns IS NOT NULL AS engine_known,
    if(queue_ns IS NOT NULL AND prefill_ns IS NOT NULL AND decode_ns IS NOT NULL,
        least(greatest(unsplit_ns, 0), left_before), left_before) AS unsplit_here,
    {first_chunk_taken} AS first_chunk_marked,
    {first_chunk_claimed} AS first_chunk_is_marked
FROM (
SELECT *,
    {stages}
FROM (
SELECT *,
    window - arraySum(before_fit) AS left_before,
    rest_window - arraySum(after_fit) AS after_rest,
    NOT whole AND NOT unwatched AS takes_decode,
    {render_before} AS render_before
FROM (
-- How much of each claim fits, the earlier ones first.
SELECT *,
    arrayMap(
        (claim, upto) -> least(claim, greatest(window - (upto - claim), 0)),
        arrayMap(x -> greatest(ifNull(x, 0), 0), before_ns),
        arrayCumSum(arrayMap(x -> greatest(ifNull(x, 0), 0), before_ns))) AS before_fit,
    arrayMap(
        (claim, upto) -> least(claim, greatest(rest_window - (upto - claim), 0)),
        arrayMap(x -> greatest(ifNull(x, 0), 0), after_ns),
        arrayCumSum(arrayMap(x -> greatest(ifNull(x, 0), 0), after_ns))) AS after_fit
FROM (
SELECT *,
    {before_ns} AS before_ns,
    {before_source} AS before_source,
    {after_ns} AS after_ns
FROM (
-- A server may begin before the client's last send returns: what overlaps is not the network's.
SELECT *,
    total - window AS rest_window,
    least(greatest(ifNull(client_ns, 0), 0), window) AS client_part,
    network_known - least(
        greatest(
            network_known
            + ifNull(if(reported_queue_source IN ('', 'estimated'), NULL, reported_queue_ns), 0)
            + ifNull(if(reported_prefill_source IN ('', 'estimated'), NULL, reported_prefill_ns), 0)
            + ifNull(if(reported_gateway_source IN ('', 'estimated'), NULL, reported_gateway_ns), 0)
            + ifNull(if(whole, if(reported_decode_source IN ('', 'estimated'), NULL, reported_decode_ns), NULL), 0)
            - window + least(greatest(ifNull(client_ns, 0), 0), window),
            0),
        ifNull(network_send_ns, 0)) AS network_claim
FROM (
SELECT *,
    greatest(ifNull(e2e_ns, 0), 0) AS total,
    if(ttft_ns IS NULL OR NOT stream, greatest(ifNull(e2e_ns, 0), 0),
        least(greatest(assumeNotNull(ttft_ns), 0), greatest(ifNull(e2e_ns, 0), 0))) AS window,
    NOT stream AS whole,
    if(arrayExists(x -> x IS NOT NULL, [{network_parts}]),
        arraySum(arrayMap(x -> ifNull(x, 0), [{network_parts}])), NULL) AS network_known
FROM (
{rows}
)))))))))
