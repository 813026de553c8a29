-- The column of a table into which ClickHouse reads OTLP: nested as its messages are.
--
-- {attributes}  the type of a list of attributes
resource_spans Array(Tuple(
    resource Tuple(attributes {attributes}),
    scope_spans Array(Tuple(
      scope Tuple(name String, version String),
      spans Array(Tuple(
        trace_id String, span_id String, trace_state String, parent_span_id String, name String,
        kind Int32, start_time_unix_nano UInt64, end_time_unix_nano UInt64,
        attributes {attributes},
        events Array(Tuple(time_unix_nano UInt64, name String, attributes {attributes})),
        links Array(Tuple(trace_id String, span_id String, trace_state String,
          attributes {attributes})),
        status Tuple(message String, code Int32)))))))
