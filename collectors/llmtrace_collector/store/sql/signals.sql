-- Samples of engines, gateways and GPUs by time.
--
-- {where}  the condition of a stretch of time, and of what is sampled
SELECT toUnixTimestamp64Milli(t), instance, signal, value, labels FROM signals
WHERE {where}
ORDER BY t, instance, signal
