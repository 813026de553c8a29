-- How long a request took, in nanoseconds. Logfire's log has no duration but the one that it names;
-- an attribute of that name means something else on other spans.
if(Duration = 0 AND SpanAttributes['logfire.span_type'] = 'log', ifNull(accurateCastOrNull(
  toFloat64OrNull(SpanAttributes['duration']) * 1000000000, 'UInt64'), 0), Duration)
