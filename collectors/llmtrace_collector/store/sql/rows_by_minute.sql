-- How many rows of a table there are in each minute of its time.
--
-- {time}   its column of time
-- {table}  its name
SELECT intDiv(toUnixTimestamp64Nano(toDateTime64({time}, 9)), 60000000000) AS minute, count()
FROM {table} GROUP BY minute ORDER BY minute
