-- The condition of requests that were over in a stretch of time.
--
-- {over}        the expression of that moment, in unix nanoseconds
-- since, until  unix nanoseconds; the end is not in it
-- earliest      when they began at the earliest: the table is ordered by it
-- turn          the operation of an agent's turn, which is no request
start >= fromUnixTimestamp64Nano({earliest:Int64})
  AND start < fromUnixTimestamp64Nano({until:Int64})
  AND {over} >= {since:Int64} AND {over} < {until:Int64}
  AND operation != {turn:String} AND e2e_ns IS NOT NULL
