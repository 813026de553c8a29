-- The condition of rows behind another one, by when they began.
--
-- after, trace, span  that one's start (unix nanoseconds) and its ids
(start, trace_id, span_id)
  > (fromUnixTimestamp64Nano({after:Int64}), {trace:String}, {span:String})
