-- The keys of the rows that an older schema stored.
INSERT INTO request_keys (trace_id, span_id, start, parts, version_ns)
SELECT trace_id, span_id, start, length(reported_by), version_ns FROM requests
