t DateTime64(3, 'UTC'),
    kind LowCardinality(String),
    text String,
    instance LowCardinality(String),
    labels Map(LowCardinality(String), String)
