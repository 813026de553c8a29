-- The columns of an AnyValue that does not nest. Which member was sent is `value`: without it 0 and
-- "" could not be distinguished from nothing.
value Enum8('no' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3,
  'double_value' = 4, 'array_value' = 5, 'kvlist_value' = 6, 'bytes_value' = 7),
  string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String
