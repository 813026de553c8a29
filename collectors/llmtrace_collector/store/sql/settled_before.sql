-- The version that had settled when the last one was written.
--
-- settle  how long a version takes to settle, in milliseconds
SELECT max(version_ns) FROM joins
WHERE at <= (SELECT max((version_ns, at)).2 FROM joins) - toIntervalMillisecond({settle:UInt64})
