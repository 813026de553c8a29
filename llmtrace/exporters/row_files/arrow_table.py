"""Convert rows to an Arrow table and back: a column for each key of `Row.as_dict`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from llmtrace.core.errors import needs_extra
from llmtrace.core.flat_row import flat_kinds
from llmtrace.core.json_values import MAX_START_NS, UNITS_NS, start_ns
from llmtrace.core.row import Row
from llmtrace.core.sanitize import encodable

if TYPE_CHECKING:
    import pyarrow as pa

_EXTRA: Final = "triage"
_WHOLE: Final = r"^[0-9]{1,18}$|^[0-8][0-9]{18}$"
_UNITS_NS: Final = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
# A mapping or a list is a column of JSON.
_AS_JSON: Final = object


def to_arrow(rows: Iterable[Row]) -> pa.Table:
    """Return rows as a table with the same columns whatever the rows; unknown values are null.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    pa = arrow("rows as an Arrow table")
    types = {
        str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64(),
        _AS_JSON: pa.string(),
    }  # fmt: skip
    kinds = flat_kinds()
    schema = pa.schema([(name, types[kind]) for name, kind in kinds.items()])
    return pa.Table.from_pylist([_for_arrow(row.as_dict(), kinds) for row in rows], schema)


def from_arrow(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the flat rows of a table, unknown values left out."""
    kinds = flat_kinds()
    for batch in table.to_batches(max_chunksize=10_000):
        for values in batch.to_pylist():
            yield {
                name: json.loads(value)
                if kinds.get(name) is _AS_JSON and isinstance(value, str)
                else value
                for name, value in values.items()
                if value is not None
            }


def starts_ns(column: Any) -> Any:
    """Return a column of starts in Unix nanoseconds; null where a value is no time after 1970.

    It has timestamps, dates, numbers, or text as `start_ns` reads it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    if types.is_dictionary(column.type):
        column = pc.cast(column, column.type.value_type)
    if types.is_date(column.type):
        column = pc.cast(column, pa.timestamp("ms"))
    unit_ns = 1
    if types.is_timestamp(column.type):
        unit_ns = _UNITS_NS[column.type.unit]
        column = pc.cast(column, pa.int64())
    elif types.is_string(column.type) or types.is_large_string(column.type):
        whole = pc.fill_null(pc.match_substring_regex(column, _WHOLE), fill_value=False)
        if pc.all(whole).as_py():
            column = pc.cast(column, pa.int64())
        else:
            column = pa.array([start_ns(text) for text in column.to_pylist()], pa.int64())
    elif types.is_decimal(column.type) or types.is_floating(column.type):
        numbers = pc.cast(column, pa.float64()).to_pylist()
        column = pa.array([start_ns(number) for number in numbers], pa.int64())
    elif not types.is_integer(column.type):
        return pa.nulls(len(column), pa.int64())
    column = pc.cast(column, pa.int64(), safe=False)
    for least, ns in UNITS_NS.items() if unit_ns == 1 else ():
        shown = pc.and_(pc.greater_equal(column, least), pc.less(column, 10 * least))
        column = pc.if_else(shown, pc.multiply(column, ns), column)
    latest = MAX_START_NS // unit_ns
    past_1970 = pc.and_(pc.greater(column, 0), pc.less_equal(column, latest))
    return pc.multiply(pc.if_else(past_1970, column, None), unit_ns)


def _for_arrow(flat: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    as_json = {
        name: json.dumps(value, ensure_ascii=False)
        for name, value in flat.items()
        if kinds.get(name) is _AS_JSON
    }
    texts = {name: value for name, value in flat.items() if isinstance(value, str)} | as_json
    return {**flat, **{name: encodable(text) for name, text in texts.items()}}


def arrow(feature: str) -> Any:
    """Import pyarrow.

    Raises:
        ConfigError: it is not installed.
    """
    with needs_extra(feature, _EXTRA, "pyarrow"):
        import pyarrow as pa
    return pa
