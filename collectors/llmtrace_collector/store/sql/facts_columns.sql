-- What is known of each target, whenever it changed.
t DateTime64(3, 'UTC'),
    instance LowCardinality(String),
    facts String
