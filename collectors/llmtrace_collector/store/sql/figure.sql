-- One engine record's figures, as a tuple. Of an engine's own span only its durations are taken.
--
-- {type}  of the tuple
CAST(tuple(span_id, reported_queue_ns, reported_prefill_ns, reported_decode_ns,
  first_chunk_frontend_ns, if(kind = 'plugin', prompt_tokens, NULL),
  if(kind = 'plugin', cached_tokens, NULL), if(kind = 'plugin', output_tokens, NULL),
  if(kind = 'plugin', preemptions, NULL), if(kind = 'plugin', toString(replica), ''),
  if(kind = 'plugin', toString(kv_connector), ''), response_id, multiIf(kind = 'plugin',
  toString(replica), parent_span_id = '', '', concat(toString(service), ' ', parent_span_id))),
  '{type}') AS figure
