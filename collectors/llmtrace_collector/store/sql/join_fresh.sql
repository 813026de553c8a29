-- The parts that arrived after one moment, and not after another.
--
-- {id_keys}         the expression of the keys of the ids that a part names
-- {since}, {until}  expressions of the moments
SELECT kind, arrived, trace_id, span_id, response_id, request_id, e2e_ns, {id_keys} AS keys
FROM request_parts WHERE arrived > {since} AND arrived <= {until}
