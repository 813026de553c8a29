-- The parts that are requests, with what was found of each.
--
-- {columns}  what is taken of `row` and of `found`
SELECT {columns}
FROM join_around AS row
INNER JOIN join_found AS found ON found.trace_id = row.trace_id AND found.span_id = row.span_id
WHERE row.kind IN ('row', 'genai')
