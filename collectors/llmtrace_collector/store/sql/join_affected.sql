-- The requests that may come out different now: those that share an id with a fresh part or are one,
-- and, where a part can belong to a request by its place in the trace, others.
--
-- {requests}   the condition that a part is a request
-- {by_place}   further conditions; may be empty
SELECT trace_id, span_id, response_id, request_id FROM join_around
WHERE {requests} AND ((trace_id, span_id) IN (SELECT trace_id, span_id FROM join_fresh)
  OR response_id IN (SELECT response_id FROM join_fresh WHERE response_id != '')
  OR request_id IN (SELECT request_id FROM join_fresh WHERE request_id != ''){by_place})
