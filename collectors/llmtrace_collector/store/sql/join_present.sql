-- The kinds of parts there are, and how many engines' records name a request by each of its ids.
SELECT groupUniqArray(toString(kind)),
  countIf(kind IN ('engine', 'plugin') AND response_id != ''
    AND response_id IN (SELECT response_id FROM join_affected)),
  countIf(kind IN ('engine', 'plugin') AND request_id != ''
    AND request_id IN (SELECT request_id FROM join_affected))
FROM (
  SELECT kind, response_id, request_id FROM join_around
  UNION ALL
  SELECT kind, response_id, request_id FROM join_named
)
