-- The condition of parts of traces that are too large, and that name an id that a fresh part names.
trace_id GLOBAL IN (SELECT trace_id FROM join_traces WHERE large)
  AND (response_id GLOBAL IN (SELECT response_id FROM join_fresh WHERE response_id != '')
    OR request_id GLOBAL IN (SELECT request_id FROM join_fresh WHERE request_id != ''))
