-- Events of a stretch of time.
--
-- since, until  unix nanoseconds
SELECT toUnixTimestamp64Milli(t), kind, text, instance, labels FROM events FINAL
WHERE t >= fromUnixTimestamp64Nano({since:Int64}) AND t < fromUnixTimestamp64Nano({until:Int64})
ORDER BY t, kind, text LIMIT 100000
