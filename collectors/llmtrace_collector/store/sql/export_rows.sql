-- {fields} of the rows of a stretch of time that meet {conditions}, by the last version of each. They
-- are called otherwise than the table's columns: there a name in WHERE means what is selected.
SELECT {fields} FROM requests FINAL
WHERE start >= fromUnixTimestamp64Nano({since:Int64})
  AND start < fromUnixTimestamp64Nano({until:Int64}){conditions}
