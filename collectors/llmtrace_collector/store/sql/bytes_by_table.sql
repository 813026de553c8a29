-- The bytes that each table takes on disk.
SELECT table, sum(bytes_on_disk) FROM system.parts
WHERE active AND database = currentDatabase()
GROUP BY table ORDER BY table
