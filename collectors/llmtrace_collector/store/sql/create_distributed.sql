-- Make the table that stands for those of all nodes of a cluster.
--
-- {name}     of it
-- {on}       the cluster, as a statement names it
-- {cluster}  the cluster's name
-- {local}    the suffix of the nodes' own tables
-- {shard}    the expression of the shard of a line
CREATE TABLE IF NOT EXISTS {name}{on} AS {name}{local}
ENGINE = Distributed('{cluster}', currentDatabase(), {name}{local}, {shard})
