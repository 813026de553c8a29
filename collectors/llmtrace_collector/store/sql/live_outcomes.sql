-- Requests that were over in a stretch of time, by outcome, with figures of each stage and metric.
--
-- {figures}  the figures
-- {where}    the condition of their rows
SELECT outcome, count(), {figures}
FROM requests FINAL
WHERE {where}
GROUP BY outcome
