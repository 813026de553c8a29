-- Parts that are stored, found by their keys.
--
-- {keyed}       the condition of their keys
-- {where}       their condition
-- {longest_ns}  how long a request may have taken to be believed
-- {local}       the suffix of the tables of one shard
FROM request_parts{local}
WHERE (arrived, trace_id) GLOBAL IN (SELECT arrived, trace_id FROM part_keys{local} WHERE {keyed})
  AND {where} AND (NOT kind IN ('row', 'genai') OR e2e_ns BETWEEN 0 AND {longest_ns})
