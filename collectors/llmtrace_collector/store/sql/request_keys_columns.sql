-- What was written of a request: its row stays where it began, and is not replaced by a poorer one.
trace_id String CODEC(ZSTD(1)),
    span_id String CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') CODEC(Delta(8), ZSTD(1)),
    parts UInt32,
    version_ns UInt64 CODEC(Delta(8), ZSTD(1))
