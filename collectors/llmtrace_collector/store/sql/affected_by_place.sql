-- Conditions of requests that fresh parts change by their place in the trace: those they lie below,
-- and the outermost request that began last, with the fresh ones and without.
--
-- {small}  the condition of a trace that is not too large for it
-- {turn}   the operation of a turn
  OR (trace_id, span_id) IN (SELECT trace_id, ancestor FROM join_above
    WHERE (trace_id, span_id) IN (SELECT trace_id, span_id FROM join_fresh))
  OR (trace_id, span_id) IN (SELECT trace_id, argMax(span_id, (start, span_id))
    FROM join_around WHERE kind IN ('row', 'genai')
      AND NOT (trace_id, span_id) IN (SELECT trace_id, span_id FROM join_fresh)
      AND operation != '{turn}' AND {small}
      AND (trace_id, parent_span_id) NOT IN
        (SELECT trace_id, span_id FROM join_around WHERE kind IN ('row', 'genai'))
      AND trace_id IN (SELECT trace_id FROM join_fresh) GROUP BY trace_id)
  OR (trace_id, span_id) IN (SELECT trace_id, argMax(span_id, (start, span_id))
    FROM join_around WHERE kind IN ('row', 'genai')
      AND NOT (trace_id, span_id) IN (SELECT trace_id, span_id FROM join_fresh)
      AND operation != '{turn}' AND {small}
      AND (trace_id, parent_span_id) NOT IN
        (SELECT trace_id, span_id FROM join_around WHERE kind IN ('row', 'genai')
          AND NOT (trace_id, span_id) IN (SELECT trace_id, span_id FROM join_fresh))
      AND trace_id IN (SELECT trace_id FROM join_fresh) GROUP BY trace_id)
