-- What happened to the engines, such as a new version.
t DateTime64(3, 'UTC'),
    kind LowCardinality(String),
    text String,
    instance LowCardinality(String),
    labels Map(LowCardinality(String), String)
