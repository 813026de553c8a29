-- Read the text of a view as it is stored and as it should be, each without the database's name.
--
-- {name:String}    of the view
-- {select:String}  the query that it should have
WITH
    concat('`', currentDatabase(), '`.') AS quoted,
    concat(currentDatabase(), '.') AS plain
SELECT
    replaceAll(replaceAll(as_select, quoted, ''), plain, ''),
    replaceAll(replaceAll(formatQuerySingleLine({select:String}), quoted, ''), plain, '')
FROM system.tables
WHERE database = currentDatabase() AND name = {name:String}
