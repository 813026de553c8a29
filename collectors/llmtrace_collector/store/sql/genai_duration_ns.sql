-- How long a request took, in nanoseconds; below 0 where it ends before it starts. Logfire's log has
-- no duration but the one that it names; an attribute of that name means something else elsewhere.
if(Duration = 0 AND SpanAttributes['logfire.span_type'] = 'log', ifNull(accurateCastOrNull(
  toFloat64OrNull(SpanAttributes['duration']) * 1000000000, 'Int64'), 0), toInt64(Duration))
