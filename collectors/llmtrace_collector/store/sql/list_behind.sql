-- The condition of rows that a list has behind a place, or at it.
--
-- {value}             what the list is ordered by
-- at_value, at_start  that of the place, and its start (unix nanoseconds)
({value}, start) <= ({at_value:Int64}, fromUnixTimestamp64Nano({at_start:Int64}))
