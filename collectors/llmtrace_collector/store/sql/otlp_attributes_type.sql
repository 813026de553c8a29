-- The type of a list of attributes. Lists and maps are kept one level deep; what is inside is not.
--
-- {scalar}  the columns of an AnyValue that does not nest
Array(Tuple(key String, value Tuple({scalar},
  array_value Tuple(values Array(Tuple({scalar}))),
  kvlist_value Tuple(values Array(Tuple(key String, value Tuple({scalar})))))))
