-- How many requests there are, how many have what kind of part, how many had a figure that did not
-- fit, and from which sources each stage is known.
--
-- {sources}  for each stage, how many report it, and a map of how many by source
-- {where}    the condition of their rows
SELECT count(),
    sumMap(arrayMap(x -> toString(x), reported_by), arrayMap(x -> toUInt64(1), reported_by)),
    countIf(notEmpty(inconsistent)), {sources}
FROM requests FINAL
WHERE {where}
