-- Joins with what belongs to a request by its place in the trace: engines' and gateways' spans below
-- it, and what a trace gives to its outermost request, the last one if there are several.
--
-- {small_trace}, {makes_row}  the conditions of a trace that is not too large, and that a part makes a row
-- {page}, {turn}              the type of a page's beacon, and the operation of a turn
LEFT JOIN (
  SELECT above.trace_id AS trace_id, above.ancestor AS span_id,
    groupArrayIf(part.figure, part.kind = 'engine') AS engines,
    groupArrayIf(part.a_slice, part.kind = 'slice') AS slices,
    arraySort(groupArrayIf(part.gateway_part, part.kind = 'gateway')) AS gateways
  FROM join_above AS above INNER JOIN (
    SELECT trace_id, span_id, kind, figure, a_slice, gateway_part
    FROM join_around WHERE kind IN ('engine', 'slice', 'gateway')
  ) AS part ON part.trace_id = above.trace_id AND part.span_id = above.span_id
  WHERE (above.trace_id, above.ancestor) IN (SELECT trace_id, span_id FROM join_affected)
  GROUP BY trace_id, span_id
) AS below ON below.trace_id = row.trace_id AND below.span_id = row.span_id
LEFT JOIN (
  SELECT trace_id, outer[-1].2 AS span_id, length(outer) = 1 AND NOT turns AS single,
    turns AS a_turn, if(single, engines, []) AS engines_in_trace, slices AS slices_in_trace,
    gateways AS gateways_in_trace,
    pages, NOT arrayExists(x -> x.2 != outer[-1].2 AND x.3 > toUnixTimestamp64Nano(outer[-1].1),
      outer) AS last
  FROM (
    SELECT trace_id,
      arraySort(groupArrayIf(
        (start, span_id, toUnixTimestamp64Nano(start) + ifNull(e2e_ns, 0)),
        {makes_row} AND operation != '{turn}' AND (trace_id, span_id) NOT IN
          (SELECT trace_id, span_id FROM join_above WHERE (trace_id, ancestor) IN
            (SELECT trace_id, span_id FROM join_around WHERE {makes_row})))) AS outer,
      countIf(operation = '{turn}' AND kind IN ('row', 'genai')) > 0 AS turns,
      groupArrayIf(figure, kind = 'engine') AS engines,
      groupArrayIf(a_slice, kind = 'slice') AS slices,
      arraySort(groupArrayIf(gateway_part, kind = 'gateway')) AS gateways,
      arraySort(groupArrayIf(CAST(tuple(arrived, span_id, browser), '{page}'), kind = 'page')) AS pages
    FROM join_around WHERE kind != 'plugin' AND {small_trace} GROUP BY trace_id
  ) WHERE notEmpty(outer)
) AS outermost ON outermost.trace_id = row.trace_id AND outermost.span_id = row.span_id
