-- What belongs to each request that may have changed, if it makes a row.
--
-- {columns}  what there is of it
-- {rows}     the query of requests, with what was chosen
SELECT trace_id, span_id, if(made_parts > 0, made_start, start) AS made_start,
    toUInt32(parts) AS parts{columns}
FROM (
{rows}
) WHERE parts >= made_parts
