-- How many requests ended how, a step of time each. Beside the percentiles, counting outcomes would
-- cost as much as all of these.
--
-- {step}   nanoseconds of a step
-- {where}  the condition of their rows
SELECT intDiv(toUnixTimestamp64Nano(start), {step}) AS step, toString(outcome), count()
FROM requests FINAL
WHERE {where}
GROUP BY step, outcome ORDER BY step
