-- Percentiles of stages and metrics, a step of time each, of requests that succeeded.
--
-- {step}     nanoseconds of a step
-- {figures}  for each, how many report it and its quantiles
-- {where}    the condition of their rows
SELECT intDiv(toUnixTimestamp64Nano(start), {step}) AS step, {figures}
FROM requests FINAL
WHERE {where} AND outcome = 'success'
GROUP BY step
