-- The quantile of each stage and metric of requests that succeeded, by the minute they were over in.
--
-- {over}     the expression of that moment, in unix nanoseconds
-- {known}    for each stage and metric, how many report it
-- {figures}  the quantiles
-- {where}    the condition of their rows
SELECT intDiv({over}, 60000000000) AS minute, [{known}], {figures}
FROM requests FINAL
WHERE {where} AND outcome = 'success'
GROUP BY minute ORDER BY minute
