-- Lines of `part_keys`, which find a part by its trace and by the ids it names.
--
-- {trace_key}  the expression of the key of a trace
-- {id_keys}    the expression of the keys of the ids
-- {parts}      lines of `request_parts`
SELECT arrayJoin(arrayConcat(if(kind = 'plugin', [], [{trace_key}]), {id_keys})) AS key,
    arrived, trace_id
FROM {parts}
