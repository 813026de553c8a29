-- The line of `joins` of rows as they are written to {requests}.
SELECT max(version_ns) AS version_ns, count() AS rows, min(start) AS first_start FROM {requests}
