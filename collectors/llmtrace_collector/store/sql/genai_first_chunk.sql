-- The seconds to the first chunk, '' = not reported, or not within the span. Langfuse writes this
-- moment, and other texts, in JSON.
--
-- {events}  names of the event that is the first chunk
arrayMap(s -> if(s > 0 AND s * 1000000000 <= Duration, toString(s), ''), [toFloat64(arrayMax([
  arrayFirst((at, name) -> name IN {events}, `Events.Timestamp`, `Events.Name`),
  parseDateTime64BestEffortOrZero(
    trim(BOTH '"' FROM SpanAttributes['langfuse.observation.completion_start_time']), 9)
]) - Timestamp)])[1]
