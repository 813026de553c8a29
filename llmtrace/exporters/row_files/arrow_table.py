"""Convert rows to an Arrow table and back: a column for each key of `Row.as_dict`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from llmtrace.core.errors import needs_extra
from llmtrace.core.flat_row import flat_kinds
from llmtrace.core.row import Row
from llmtrace.core.sanitize import encodable

if TYPE_CHECKING:
    import pyarrow as pa

_EXTRA: Final = "triage"
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
                name: json.loads(value) if _is_json(kinds.get(name), value) else value
                for name, value in values.items()
                if value is not None
            }


def _is_json(kind: Any, value: object) -> bool:
    return kind is _AS_JSON and isinstance(value, str)


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
