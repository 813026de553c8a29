-- The condition of parts elsewhere that name an id of an affected request.
(response_id GLOBAL IN (SELECT response_id FROM join_affected WHERE response_id != '')
    OR request_id GLOBAL IN (SELECT request_id FROM join_affected WHERE request_id != ''))
  AND (trace_id, span_id) GLOBAL NOT IN (SELECT trace_id, span_id FROM join_around)
