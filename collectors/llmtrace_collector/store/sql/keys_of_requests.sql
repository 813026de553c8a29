-- The lines of `request_keys` of rows as they are written to {requests}.
SELECT trace_id, span_id, start, parts, version_ns FROM {requests}
