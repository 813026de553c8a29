-- Samples of engines, gateways and GPUs.
t DateTime64(3, 'UTC') CODEC(DoubleDelta, ZSTD(1)),
    instance LowCardinality(String),
    signal LowCardinality(String),
    value Float64 CODEC(Gorilla, ZSTD(1)),
    labels Map(LowCardinality(String), String)
