-- A join with the engines' records that name a request by an id. Where several requests share the
-- id (`users`), none gets any.
--
-- {key}, {field}, {makes_row}  the name, the column of the id, and the condition that a part makes a row
LEFT JOIN (
  SELECT id, uniqExactIf((trace_id, span_id), is_request) AS users,
    groupArrayIf(figure, kind = 'plugin') AS plugin, groupArrayIf(figure, kind = 'engine') AS engine
  FROM (
    SELECT kind, trace_id, span_id, {field} AS id, figure, {makes_row} AS is_request FROM join_around
    WHERE {field} != '' AND {field} IN (SELECT {field} FROM join_affected)
    UNION ALL
    SELECT kind, trace_id, span_id, {field} AS id, figure, kind IN ('row', 'genai')
      AND (trace_id, span_id) NOT IN (SELECT trace_id, span_id FROM join_around)
    FROM join_named
    WHERE {field} != '' AND {field} IN (SELECT {field} FROM join_affected)
  ) GROUP BY id
) AS {key} ON {key}.id = row.{field}
