"""How do rows get into a file, one JSON object a line, and back?"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from llmtrace.errors import DataError, SourceError
from llmtrace.rows import Row, from_dict


def write_rows(file: TextIO, rows: Iterable[Row]) -> None:
    """Write each row's `as_dict` as one line."""
    file.writelines(json.dumps(row.as_dict(), ensure_ascii=False) + "\n" for row in rows)


def read_rows(path: Path) -> list[Row]:
    """Read what `write_rows` wrote; empty lines do not count.

    Raises:
        SourceError: the file cannot be read.
        DataError: a line is not a row; the message says which.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path}: cannot read rows from it: {error}"
        raise SourceError(msg) from error
    return [_row(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _row(path: Path, number: int, line: str) -> Row:
    try:
        flat = json.loads(line)
        if isinstance(flat, dict):
            return from_dict(flat)
        what = "not a row: no JSON object"
    except (ValueError, RecursionError, DataError) as error:
        what = str(error)
    msg = f"{path}:{number}: {what}; rows are what `llmtrace demo --json` writes"
    raise DataError(msg)
