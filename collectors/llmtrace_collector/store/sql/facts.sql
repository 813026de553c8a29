-- What was known of each engine at a moment.
--
-- at  unix nanoseconds
SELECT instance, argMax(facts, t) FROM facts
WHERE t <= fromUnixTimestamp64Nano({at:Int64})
GROUP BY instance ORDER BY instance
