-- The columns of `request_parts`.
--
-- {kind}    the type of a kind of part
-- {fields}  columns of what a part reports
kind {kind},
    arrived DateTime64(6, 'UTC') CODEC(Delta(8), ZSTD(1)),
    trace_id String CODEC(ZSTD(1)),
    span_id String CODEC(ZSTD(1)),
    parent_span_id String CODEC(ZSTD(1)),
    start DateTime64(9, 'UTC') CODEC(Delta(8), ZSTD(1)),
    service LowCardinality(String),
    {fields}
