-- The condition of rows that began in a stretch of time.
--
-- since, until  unix nanoseconds; the end is not in it
start >= fromUnixTimestamp64Nano({since:Int64}) AND start < fromUnixTimestamp64Nano({until:Int64})
