-- Of fresh parts that make no row: why, and how many.
--
-- {requests}, {makes_row}  the conditions of parts that are requests, and that make a row
-- {longest_ns}             how long a request may have taken to be believed
SELECT multiIf(NOT {requests}, '', e2e_ns IS NULL, 'unreadable', e2e_ns < 0, 'negative',
    e2e_ns > {longest_ns}, 'too_long', (trace_id, span_id) IN (SELECT trace_id, span_id
      FROM join_around WHERE {requests} AND NOT {makes_row}), 'same_request', '') AS reason, count()
FROM join_fresh
WHERE reason != ''
GROUP BY reason
