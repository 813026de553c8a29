-- Which requests of a stretch of time took longest, by one column: all columns are read for those
-- alone.
--
-- {where}   the condition of their rows
-- {column}  what they are ordered by
-- {limit}   how many
SELECT trace_id, span_id FROM requests FINAL
WHERE {where} AND {column} IS NOT NULL
ORDER BY {column} DESC LIMIT {limit}
