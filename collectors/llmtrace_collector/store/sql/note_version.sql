-- Note the number {version} of the schema in {table}, unless it is there.
INSERT INTO {table} (version) SELECT {version} WHERE (SELECT max(version) FROM {table}) < {version}
