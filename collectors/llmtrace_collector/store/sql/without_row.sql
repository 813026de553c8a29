-- Of fresh parts that make no row: why, and how many.
--
-- {requests}    the condition of parts that are requests
-- {longest_ns}  how long a request may have taken to be believed
SELECT multiIf(NOT {requests}, '', e2e_ns IS NULL, 'unreadable', e2e_ns < 0, 'negative',
    e2e_ns > {longest_ns}, 'too_long', '') AS reason, count()
FROM join_fresh
WHERE reason != ''
GROUP BY reason
