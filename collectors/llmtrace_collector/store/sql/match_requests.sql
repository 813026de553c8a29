-- The affected requests that make a row, with what may belong to them.
--
-- {columns}, {joins}  columns of what joins add, with engines' records and what lies below a request
-- {makes_row}         the condition that a part makes a row
-- {local}             the suffix of the tables of one shard
SELECT row.trace_id AS trace_id, row.span_id AS span_id, row.parent_span_id AS parent_span_id,
  row.start AS start, row.service AS service, row.operation AS operation, row.attempts AS attempts,
  row.response_id AS response_id{columns},
  sizes.parts AS trace_parts, made.start AS made_start, made.parts AS made_parts
FROM (SELECT * FROM join_around WHERE {makes_row}) AS row
INNER JOIN join_affected AS affected
  ON affected.trace_id = row.trace_id AND affected.span_id = row.span_id
LEFT JOIN (
  SELECT trace_id, count() AS parts FROM join_around WHERE kind != 'plugin' GROUP BY trace_id
) AS sizes ON sizes.trace_id = row.trace_id
LEFT JOIN (
  SELECT trace_id, span_id, argMin(start, version_ns) AS start, max(parts) AS parts
  FROM request_keys{local}
  WHERE (trace_id, span_id) GLOBAL IN (SELECT trace_id, span_id FROM join_affected)
  GROUP BY trace_id, span_id
) AS made ON made.trace_id = row.trace_id AND made.span_id = row.span_id{joins}
