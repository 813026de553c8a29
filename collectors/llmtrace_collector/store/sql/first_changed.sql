-- When the first row began of those whose version is after one and up to another.
--
-- since, until  versions
SELECT toUnixTimestamp64Nano(min(first_start)) FROM joins
WHERE version_ns > {since:UInt64} AND version_ns <= {until:UInt64} AND rows > 0
