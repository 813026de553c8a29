-- Attributes as the exporter writes them: each value is text, or JSON of what nests.
--
-- {attributes}                   the list
-- {member_json}, {pair_json}     the expressions of JSON of `x`, and of `x.value`
mapFromArrays(arrayMap(kv -> kv.key, {attributes}), arrayMap(kv ->
  multiIf(kv.value.value = 'array_value', concat('[', arrayStringConcat(
      arrayMap(x -> {member_json}, kv.value.array_value.values), ','), ']'),
    kv.value.value = 'kvlist_value', concat('{', arrayStringConcat(
      arrayMap(x -> concat(toJSONString(x.key), ':', {pair_json}),
        kv.value.kvlist_value.values), ','), '}'),
    multiIf(kv.value.value = 'string_value', kv.value.string_value,
      kv.value.value = 'int_value', toString(kv.value.int_value),
      kv.value.value = 'double_value', toString(kv.value.double_value),
      kv.value.value = 'bool_value', if(kv.value.bool_value, 'true', 'false'),
      kv.value.value = 'bytes_value', base64Encode(kv.value.bytes_value), '')),
  {attributes}))
