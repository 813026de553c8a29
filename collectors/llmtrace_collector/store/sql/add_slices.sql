-- Slices of an engine's time put into the one record of the whole: each stage by the rank that took
-- longest. See `llmtrace.engines.join.together`.
--
-- {rows}    the query of requests, with engine_all and slices
-- {record}  the columns of the record, with the slices' figures where it has none
-- {figure}  the type of a record
SELECT * REPLACE (
    if(empty(slices) OR length(engine_all) > 1, engine_all, [CAST(tuple({record}), '{figure}')]) AS engine_all)
FROM (
SELECT *,
    if(arrayExists(x -> x.queue IS NOT NULL, slices),
        arrayMax(arrayMap(
            r -> arraySum(arrayMap(x -> if(x.rank = r, ifNull(x.queue, 0), 0), slices)),
            arrayDistinct(arrayMap(x -> x.rank, slices)))), NULL) AS slice_queue,
    if(arrayExists(x -> x.prefill IS NOT NULL, slices),
        arrayMax(arrayMap(
            r -> arraySum(arrayMap(x -> if(x.rank = r, ifNull(x.prefill, 0), 0), slices)),
            arrayDistinct(arrayMap(x -> x.rank, slices)))), NULL) AS slice_prefill
FROM (
{rows}
)
)
