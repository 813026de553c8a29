"""Read and write rows in files: JSON objects a line, and the compressed and columnar forms."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from llmtrace.core.row import Row, from_dict
from llmtrace.errors import DataError, SourceError, explain_error, missing_extra

CASE_ROWS: Final = ("rows.parquet", "rows.jsonl", "rows.jsonl.gz")


def write_rows(file: TextIO, rows: Iterable[Row]) -> None:
    """Write each row's `as_dict` as one line."""
    file.writelines(json.dumps(row.as_dict(), ensure_ascii=False) + "\n" for row in rows)


def read_rows(path: Path) -> list[Row]:
    """Read the rows that any command writes: `.parquet`, else JSON lines, gzipped if named `.gz`.

    Of a folder with a saved case the rows are read. Empty lines do not count.

    Raises:
        SourceError: the file cannot be read.
        DataError: a line is not a row; the message names it.
        ConfigError: the package that reads Parquet is missing.
    """
    if path.is_dir():
        path = case_rows(path)
    if path.suffix == ".parquet":
        return _parquet(path)
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: cannot read rows from it: {explain_error(error)}") from error
    lines = enumerate(text.split("\n"), 1)
    return [_row(path, number, line) for number, line in lines if line.strip()]


def case_rows(folder: Path) -> Path:
    """Return the file with the rows in the folder of a saved case.

    Raises:
        SourceError: there is none.
    """
    path = next((folder / name for name in CASE_ROWS if (folder / name).is_file()), None)
    if path is None:
        raise SourceError(f"{folder}: contains none of {', '.join(CASE_ROWS)}; a case needs one")
    return path


def _parquet(path: Path) -> list[Row]:
    try:
        from llmtrace.dataset.files import read_columns
    except ImportError as error:
        raise missing_extra("reading rows.parquet", "triage", error.name or "numpy") from error
    flats = read_columns(path).to_dicts()
    return [_from_flat(path, number, flat) for number, flat in enumerate(flats, 1)]


def _row(path: Path, number: int, line: str) -> Row:
    try:
        flat = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _no_row(path, number, str(error)) from error
    if not isinstance(flat, dict):
        raise _no_row(path, number, "not a row: no JSON object")
    return _from_flat(path, number, flat)


def _from_flat(path: Path, number: int, flat: Mapping[str, Any]) -> Row:
    try:
        return from_dict(flat)
    except (RecursionError, DataError) as error:
        raise _no_row(path, number, str(error)) from error


def _no_row(path: Path, number: int, what: str) -> DataError:
    return DataError(f"{path}:{number}: {what}; rows are what `llmtrace demo --rows-out` writes")
