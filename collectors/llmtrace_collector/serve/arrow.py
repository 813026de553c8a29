"""Write rows and signals as Arrow, for programs that want columns and not text.

A stream of record batches with fixed columns, so that all responses can be concatenated. What has
no column of its own (an application's attributes) is left out: NDJSON has it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from llmtrace_collector.serve.query_params import QueryParamError

if TYPE_CHECKING:
    import pyarrow as pa

MEDIA_TYPE: Final = "application/vnd.apache.arrow.stream"
_AT_ONCE: Final = 20_000

Encode = Callable[[Iterable[Mapping[str, Any]]], Iterator[bytes]]


def encoder(what: str) -> Encode:
    """Return the encoder of `rows` or `signals`.

    Raises:
        QueryParamError: Arrow is not installed here.
    """
    try:
        schema = _rows() if what == "rows" else _signals()
    except ImportError as error:
        raise QueryParamError("this collector has no Arrow; ask for NDJSON") from error
    return partial(_stream, schema)


def _stream(schema: pa.Schema, found: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    import pyarrow as pa

    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as stream:
        rest = iter(found)
        while rows := [*islice(rest, _AT_ONCE)]:
            stream.write_batch(pa.RecordBatch.from_pylist(rows, schema))
            yield _taken(sink)
    # The end of the stream, and its schema if there were no rows.
    yield _taken(sink)


def _taken(sink: io.BytesIO) -> bytes:
    """Return what was written so far, and remove it."""
    written = sink.getvalue()
    sink.seek(0)
    sink.truncate()
    return written


def _rows() -> pa.Schema:
    import pyarrow as pa

    from llmtrace.dataset.columns import COUNTS, FLAGS, IDS, SECONDS, WORDS

    return pa.schema(
        [("start", pa.int64())]
        + [(name, pa.string()) for name in (*IDS, *WORDS)]
        + [(name, pa.float64()) for name in (*SECONDS, *COUNTS, "weight")]
        + [(name, pa.bool_()) for name in FLAGS]
    )


def _signals() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("t", pa.float64()),
            ("instance", pa.string()),
            ("signal", pa.string()),
            ("value", pa.float64()),
            ("labels", pa.map_(pa.string(), pa.string())),
        ]
    )
