-- A request's attributes by their present names, none empty, those within JSON too.
--
-- {theirs}, {ours}  names as instrumentations write them, and the present ones
-- {noise}           regular expression of attributes that are of no use
-- {nested}          attributes that hold an object in JSON
-- {also}            pairs of further names and their expressions
CAST(arrayFilter(one -> one.2 != '' AND NOT match(one.1, '^({noise})'), arrayConcat(
  arrayMap(one -> (transform(one.1, {theirs}, {ours}, one.1),
      if(startsWith(one.1, 'langfuse.'), trim(BOTH '"' FROM one.2), one.2)),
    arrayConcat(CAST(SpanAttributes, 'Array(Tuple(String, String))'), arrayFlatten(arrayMap(name ->
      arrayMap(one -> (concat(name, '.', one.1), if(one.2 = 'null', '', trim(BOTH '"' FROM one.2))),
        JSONExtractKeysAndValuesRaw(SpanAttributes[name])), {nested})))),
  [{also}])), 'Map(String, String)')
