-- The last version of rows that was written long enough ago. Where a server runs the join itself, it
-- does not say when a version is whole.
--
-- settle, blind  how long ago, in milliseconds; more where a server runs the join
SELECT max(version_ns) FROM joins
WHERE at <= now64(6) - toIntervalMillisecond({settle:UInt64} + if(until_ns > 0, 0, {blind:UInt64}))
