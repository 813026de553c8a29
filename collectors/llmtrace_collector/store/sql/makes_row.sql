-- The condition that a part makes a row. A plain GenAI span makes none in a trace where its service
-- wrote a row, nor directly around another of its service: a framework's around its SDK's.
(kind = 'row' OR kind = 'genai'
  AND (trace_id, service) NOT IN (SELECT trace_id, service FROM join_around WHERE kind = 'row')
  AND (trace_id, service, span_id) NOT IN
    (SELECT trace_id, service, parent_span_id FROM join_around WHERE kind = 'genai'))
