-- Samples of engines, gateways and GPUs in a stretch of time, by time.
--
-- since, until  unix nanoseconds; the end is not in it
-- {conditions}  of what is sampled
SELECT toUnixTimestamp64Milli(t), instance, signal, value, labels FROM signals
WHERE t >= fromUnixTimestamp64Nano({since:Int64}) AND t < fromUnixTimestamp64Nano({until:Int64})
  AND isFinite(value){conditions}
ORDER BY t, instance, signal
