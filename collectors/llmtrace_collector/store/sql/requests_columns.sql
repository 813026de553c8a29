-- The columns of `requests`: a part's, and what is worked out of all of them.
--
-- {kind}             the type of a kind of part
-- {fields}, {stages} columns of what a row reports, and of its stages
-- {ns}               the type of a duration
-- {seconds}          aliases of durations in seconds
start DateTime64(9, 'UTC') CODEC(Delta(8), ZSTD(1)),
    trace_id String CODEC(ZSTD(1)),
    span_id String CODEC(ZSTD(1)),
    parent_span_id String CODEC(ZSTD(1)),
    service LowCardinality(String),
    reported_by Array({kind}),
    parts UInt32,
    {fields},
    {stages},
    unattributed_ns Int64,
    inconsistent Array(LowCardinality(String)),
    ttft_arrival_ns {ns},
    version_ns UInt64 CODEC(Delta(8), ZSTD(1)),
    {seconds},
    ttft_arrival_s Nullable(Float64) ALIAS ttft_arrival_ns / 1e9,
    retry_s Float64 ALIAS (retry_network_ns + retry_gateway_ns) / 1e9,
    tpot_s Nullable(Float64) ALIAS if(output_tokens > 1,
        (last_content_ns - ttft_ns) / (output_tokens - 1) / 1e9, NULL),
    INDEX by_trace_id trace_id TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX by_response_id response_id TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX by_request_id request_id TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX by_version version_ns TYPE minmax GRANULARITY 1
