-- What is fresh of the traces that are too large, beside what names an id that a fresh part names.
--
-- {longest_ns}  how long a request may have taken to be believed
-- {local}       the suffix of the tables of one shard
FROM request_parts{local}
WHERE trace_id GLOBAL IN (SELECT trace_id FROM join_traces WHERE large)
  AND (arrived, trace_id) GLOBAL IN (SELECT arrived, trace_id FROM join_fresh)
  AND (trace_id, span_id) GLOBAL IN (SELECT trace_id, span_id FROM join_fresh)
  AND (NOT kind IN ('row', 'genai') OR e2e_ns BETWEEN 0 AND {longest_ns})
