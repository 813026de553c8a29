-- All versions of the rows that began at some moments, and whether a list has them.
--
-- {columns}  what is shown of them
-- {value}    what they are ordered by
-- {where}    the condition of the list
-- {starts}   the moments, as literals: by an array that is a parameter the table's index is not used
SELECT toUnixTimestamp64Nano(start), trace_id, span_id, version_ns, {columns}, {value},
    {where} AS listed
FROM requests
PREWHERE start IN ({starts})
