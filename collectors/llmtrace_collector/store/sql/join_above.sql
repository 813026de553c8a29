-- The spans above each part in its trace.
--
-- {small}  the condition that a trace is not too large
-- {most}   how many spans above at most
WITH RECURSIVE above AS (
  SELECT trace_id, span_id, parent_span_id AS ancestor, 1 AS depth FROM join_around
  WHERE kind != 'plugin' AND parent_span_id != '' AND {small}
  UNION ALL
  SELECT above.trace_id AS trace_id, above.span_id AS span_id, link.parent_span_id AS ancestor,
    above.depth + 1 AS depth
  FROM above INNER JOIN join_around AS link
    ON link.trace_id = above.trace_id AND link.span_id = above.ancestor
  WHERE link.kind != 'plugin' AND link.parent_span_id != '' AND above.depth < {most}
) SELECT DISTINCT trace_id, span_id, ancestor FROM above
