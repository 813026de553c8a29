-- The traces that fresh parts belong to, and which of them are too large. A trace of a plugin's
-- record is of that record alone, and is not in `part_keys`.
--
-- {trace_key}  the expression of the key of a trace
-- {most}       parts up to which a trace is not too large
-- {local}      the suffix of the tables of one shard, where each makes the rows of its own traces
SELECT trace_id, sum(n) > {most} AS large FROM (
  SELECT trace_id, count() AS n FROM part_keys{local} WHERE key GLOBAL IN (
    SELECT {trace_key} FROM join_fresh WHERE kind != 'plugin'
    UNION DISTINCT
    SELECT {trace_key} FROM part_keys{local}
    WHERE key GLOBAL IN (SELECT arrayJoin(keys) FROM join_fresh)
  ) AND key = {trace_key} GROUP BY trace_id
) GROUP BY trace_id
