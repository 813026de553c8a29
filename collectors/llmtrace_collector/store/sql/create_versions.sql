-- Make the table that holds the number of the schema.
--
-- {name}    of it
-- {on}      the cluster; empty = this node
-- {engine}  of the table
CREATE TABLE IF NOT EXISTS {name}{on} (
    version UInt32,
    at DateTime64(6, 'UTC') DEFAULT now64(6)
) ENGINE = {engine}
ORDER BY version
