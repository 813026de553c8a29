-- The requests of a stretch of time that took longest, whatever became of them.
--
-- {stages}  the columns of the stages
-- {where}   the condition of their rows
-- {limit}   how many
SELECT trace_id, request_id, toUnixTimestamp64Nano(start), service, model, route,
    toString(outcome), e2e_ns, ttft_ns, {stages}
FROM requests FINAL
WHERE {where}
ORDER BY e2e_ns DESC LIMIT {limit}
