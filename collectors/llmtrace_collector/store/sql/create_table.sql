-- Make a table.
--
-- {name}         of it
-- {on}           the cluster; empty = this node
-- {columns}      their declarations
-- {engine}       of the table, with its arguments
-- {partition}    what one part of it on disk shares
-- {primary}      the clause of a primary key other than the order, or nothing
-- {order}        what its lines are ordered by
-- {time}         of a line
-- {days}         how long lines are kept
-- {granularity}  how many lines one entry of the index stands for
-- {replicated}   the setting's prefix: replicated or non_replicated
-- {remembered}   how many blocks are known again
-- {settings}     more of them, or nothing
CREATE TABLE IF NOT EXISTS {name}{on} (
    {columns}
) ENGINE = {engine}
PARTITION BY {partition}
{primary}ORDER BY ({order})
TTL {time} + INTERVAL {days} DAY
SETTINGS index_granularity = {granularity}, ttl_only_drop_parts = 1,
    {replicated}_deduplication_window = {remembered}{settings}
