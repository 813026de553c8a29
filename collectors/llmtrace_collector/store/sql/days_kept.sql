-- The days of a table, and their bytes: those that are furthest from today first.
--
-- {table}  its name
SELECT partition, sum(bytes_on_disk) FROM system.parts
WHERE active AND database = currentDatabase() AND table = '{table}'
GROUP BY partition
ORDER BY abs(dateDiff('day', toDate(partition), toDate(now()))) DESC, partition
