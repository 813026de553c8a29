-- Rows with their ids and version, the last version of each.
--
-- {columns}  what is read of them
-- {where}    their condition, and what follows it
SELECT toUnixTimestamp64Nano(start), trace_id, span_id, version_ns, {columns}
FROM requests FINAL
WHERE {where}
