-- An AnyValue that does not nest, as JSON.
--
-- {value}  the value
multiIf({value}.value = 'string_value', toJSONString({value}.string_value),
  {value}.value = 'int_value', toString({value}.int_value),
  {value}.value = 'double_value', toString({value}.double_value),
  {value}.value = 'bool_value', if({value}.bool_value, 'true', 'false'),
  {value}.value = 'bytes_value', toJSONString(base64Encode({value}.bytes_value)), 'null')
