-- Parts with what the join takes of each: an engine's figures, a slice's, or a gateway's.
--
-- {figure}           the column of an engine's figures
-- {slice}, {gateway} the types of the other two
-- {parts}            which parts, from `FROM` on
SELECT *, {figure},
  CAST(tuple(reported_queue_ns, reported_prefill_ns, parent_span_id), '{slice}') AS a_slice,
  CAST(tuple(start, span_id, parent_span_id, toString(service), reported_gateway_ns,
    toString(gateway), cache_hit), '{gateway}') AS gateway_part
{parts}
