-- A join with the engines' records that name a request by an id. Where several requests share the
-- id (`users`), none gets any.
--
-- {key}    the name of the join
-- {field}  the column of the id
LEFT JOIN (
  SELECT id, uniqExactIf((trace_id, span_id), kind IN ('row', 'genai')) AS users,
    groupArrayIf(figure, kind = 'plugin') AS plugin, groupArrayIf(figure, kind = 'engine') AS engine
  FROM (
    SELECT kind, trace_id, span_id, {field} AS id, figure FROM join_around
    WHERE {field} != '' AND {field} IN (SELECT {field} FROM join_affected)
    UNION ALL
    SELECT kind, trace_id, span_id, {field} AS id, figure FROM join_named
    WHERE {field} != '' AND {field} IN (SELECT {field} FROM join_affected)
  ) GROUP BY id
) AS {key} ON {key}.id = row.{field}
