-- Parts elsewhere that name an id of an affected request, each once, as it came last.
--
-- {figure}  the column of an engine's figures
-- {stored}  which parts, from `FROM` on
SELECT kind, trace_id, span_id, response_id, request_id, {figure} FROM (
  SELECT kind, arrived, trace_id, span_id, response_id, request_id, parent_span_id, service,
    reported_queue_ns, reported_prefill_ns, reported_decode_ns, first_chunk_frontend_ns,
    prompt_tokens, cached_tokens, output_tokens, preemptions, replica, kv_connector
  {stored}
) ORDER BY arrived DESC LIMIT 1 BY trace_id, span_id, kind
