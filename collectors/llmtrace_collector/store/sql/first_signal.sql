-- How many samples a stretch of time has, and when the first was taken, in milliseconds.
--
-- since, until  unix nanoseconds; the end is not in it
-- {conditions}  of what is sampled
SELECT count(), toUnixTimestamp64Milli(min(t)) FROM signals
WHERE t >= fromUnixTimestamp64Nano({since:Int64}) AND t < fromUnixTimestamp64Nano({until:Int64})
  AND isFinite(value){conditions}
