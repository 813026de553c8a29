-- The parts that no line of `part_keys` finds: an insert ended between the two tables, and again the
-- first takes it for stored, while the second gets the moment of the new try.
--
-- {since}  the expression of the moment after which they arrived
SELECT * FROM request_parts WHERE arrived > {since} AND (arrived, trace_id) GLOBAL NOT IN (
  SELECT arrived, trace_id FROM part_keys WHERE arrived > {since})
