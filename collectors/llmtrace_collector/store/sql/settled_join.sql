-- A run of the join {ago_h} hours ago: with two, the rows stored by then count as settled.
INSERT INTO joins (version_ns, until_ns, at)
SELECT (SELECT max(version_ns) FROM requests), (SELECT max(until_ns) FROM joins),
  now64(6) - INTERVAL {ago_h} HOUR
