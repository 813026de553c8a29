t DateTime64(3, 'UTC'),
    instance LowCardinality(String),
    facts String
