-- Rows with what engines reported of each request.
--
-- {better}  the columns of durations, from the better source
-- {who}     the column of the engine's figures
-- {rows}    the query of rows
SELECT * REPLACE (
    {better},
    ifNull(prompt_tokens, {who}.prompt) AS prompt_tokens,
    ifNull(cached_tokens, {who}.cached) AS cached_tokens,
    -- Of an answer that did not come whole the client got fewer.
    if(outcome = 'success', ifNull(output_tokens, {who}.output), output_tokens) AS output_tokens,
    ifNull(preemptions, {who}.preemptions) AS preemptions,
    if(replica = '', {who}.replica, toString(replica)) AS replica,
    if(kv_connector = '', {who}.connector, toString(kv_connector)) AS kv_connector)
FROM (
{rows}
)
