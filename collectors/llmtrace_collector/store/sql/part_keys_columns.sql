-- The parts of a trace, and those that name an id, are found by these; see `join_inputs_sql`.
key UInt64,
    arrived DateTime64(6, 'UTC') CODEC(Delta(8), ZSTD(1)),
    trace_id String CODEC(ZSTD(1))
