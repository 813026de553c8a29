-- Conditions of requests that fresh parts change by their place in the trace: those they lie below,
-- and the outermost request that began last, with the fresh ones and without.
--
-- {small}, {makes_row}  the conditions of a trace that is not too large, and of a part that makes a row
-- {turn}                the operation of a turn
  OR (trace_id, span_id) IN (SELECT trace_id, ancestor FROM join_above
    WHERE (trace_id, span_id) IN (SELECT trace_id, span_id FROM join_fresh))
  OR (trace_id, span_id) IN (SELECT trace_id, arrayJoin([
      argMaxIf(span_id, (start, span_id), (trace_id, span_id) NOT IN (
        SELECT trace_id, span_id FROM join_above WHERE (trace_id, ancestor) IN (
          SELECT trace_id, span_id FROM join_around WHERE {makes_row}))),
      argMaxIf(span_id, (start, span_id), (trace_id, span_id) NOT IN (
        SELECT trace_id, span_id FROM join_above WHERE (trace_id, ancestor) IN (
          SELECT trace_id, span_id FROM join_around WHERE {makes_row}
            AND (trace_id, span_id) NOT IN (SELECT trace_id, span_id FROM join_fresh))))])
    FROM join_around WHERE {makes_row} AND operation != '{turn}' AND {small}
      AND (trace_id, span_id) NOT IN (SELECT trace_id, span_id FROM join_fresh)
      AND trace_id IN (SELECT trace_id FROM join_fresh) GROUP BY trace_id)
