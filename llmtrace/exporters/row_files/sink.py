"""Write rows to files: appended to a file of JSON lines, or as Parquet files in a folder."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Final, TextIO

from llmtrace.core.errors import ConfigError, explain_error
from llmtrace.core.row import Row
from llmtrace.core.sanitize import encodable
from llmtrace.exporters.queued_sink import QueuedSink
from llmtrace.exporters.row_files.arrow_table import arrow, to_arrow

_PARQUET_INTERVAL_S: Final = 60.0
_PARQUET_ROWS: Final = 10_000


def write_rows(file: TextIO, rows: Iterable[Row]) -> None:
    """Write each row's `as_dict` as one line."""
    file.writelines(_lines(rows))


def _lines(rows: Iterable[Row]) -> Iterator[str]:
    return (encodable(json.dumps(row.as_dict(), ensure_ascii=False)) + "\n" for row in rows)


def jsonl_sink(path: Path, *, interval_s: float = 1.0) -> QueuedSink[Row]:
    """Make the sink that appends each row to a file, one JSON object a line.

    Several processes may append to one file: a batch is written by one call.

    Args:
        path: of the file; it is made where it is not there.
        interval_s: longest a row waits, in seconds.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        raise ConfigError(f"exporters: cannot write {path}: {explain_error(error)}") from error

    def append(rows: Sequence[Row]) -> None:
        with path.open("ab", buffering=0) as file:
            rest = memoryview("".join(_lines(rows)).encode())
            while rest:
                rest = rest[file.write(rest) or 0 :]

    return QueuedSink("export.jsonl", append, interval_s=interval_s)


def parquet_sink(
    folder: Path, *, interval_s: float = _PARQUET_INTERVAL_S, batch: int = _PARQUET_ROWS
) -> QueuedSink[Row]:
    """Make the sink that writes a Parquet file a minute, or for each ten thousand rows.

    A file is complete once it has its name: the time, the process, the sink and a number, so that
    no other file ever has the same.

    Args:
        folder: of the files; it is made where it is not there.
        interval_s: longest a row waits, in seconds.
        batch: most rows of a file.

    Raises:
        ConfigError: pyarrow is not installed, or the folder cannot be written.
    """
    arrow("the exporter parquet")
    from pyarrow import parquet  # here: at exit there is no time to import it

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"exporters: cannot make {folder}: {explain_error(error)}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"exporters: cannot write to {folder}")
    numbers, sink = count(1), secrets.token_hex(4)

    def write(rows: Sequence[Row]) -> None:
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        path = folder / f"rows-{now}-{os.getpid()}-{sink}-{next(numbers)}.parquet"
        unfinished = path.with_suffix(".unfinished")
        try:
            parquet.write_table(to_arrow(rows), unfinished, compression="zstd")
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)

    return QueuedSink(
        "export.parquet", write, capacity=4 * batch, batch=batch, interval_s=interval_s
    )
