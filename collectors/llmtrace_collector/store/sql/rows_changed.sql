-- The condition of rows whose version is after one and up to another.
--
-- since, until  versions
-- began         when the first of them began, unix nanoseconds: the table is ordered by it
start >= fromUnixTimestamp64Nano({began:Int64})
  AND version_ns > {since:UInt64} AND version_ns <= {until:UInt64}
ORDER BY version_ns
