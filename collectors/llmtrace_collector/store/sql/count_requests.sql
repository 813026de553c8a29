-- {figures} of the rows that meet {where}. A row that was written again counts twice until the store
-- has merged it: finding the last version of each would cost ten times as much.
SELECT {figures} FROM requests WHERE {where}
