-- The first values of an order, with the start of each. Two numbers a request: to read the ids of
-- all, too, or to leave out the versions of rows that a later one has replaced, would cost several
-- times as much.
--
-- {value}  what they are ordered by
-- {where}  the condition of their rows
-- {limit}  how many
SELECT {value} AS top, toUnixTimestamp64Nano(start) FROM requests
WHERE {where}
ORDER BY top DESC, start DESC LIMIT {limit} WITH TIES
