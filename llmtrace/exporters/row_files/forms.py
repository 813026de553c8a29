"""The forms of files of rows, and their bytes: whole lines, many at once."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import Final, Literal

from llmtrace.core.errors import DataError, SourceError, explain_error

Progress = Callable[[str, float], None]  # what is being done, and how much of it, 0 to 1
Form = Literal["jsonl", "csv", "parquet"]

LINE_BYTES: Final = 1 << 20  # a longer line is no row
FORMS: Final = "JSON lines (one object per line), a JSON array, Parquet or CSV"
_BY_SUFFIX: Final[dict[str, Form]] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".csv": "csv", ".tsv": "csv",
    ".parquet": "parquet",
}  # fmt: skip
SUFFIXES: Final = (*_BY_SUFFIX,)
_ROTATED: Final = re.compile(r"([.-]\d[\d-]*)?(\.gz)?$")  # as logrotate names it, in both ways
_BLOCK_BYTES: Final = 16 << 20
_STDIN: Final = Path("/dev/stdin")
_GZIPPED: Final = b"\x1f\x8b"
_MAX_ARRAY_BYTES: Final = 128 << 20  # all of it is in memory at once, as a line is
_CUT: Final = b"-"  # what begins so is no JSON object


def form_of(path: Path) -> Form:
    """Return the form that a file's name implies, in either case; by default JSON lines."""
    return _BY_SUFFIX.get(_suffix(path), "jsonl")


def is_row_file(path: Path) -> bool:
    """Return whether a file's name is that of a file of rows, as `gateway.csv.2.gz`."""
    name = path.name.lower()
    return _suffix(path) in _BY_SUFFIX and not (".parquet" in name and name.endswith(".gz"))


def _suffix(path: Path) -> str:
    return Path(_ROTATED.sub("", path.name.lower())).suffix


def check_columns(path: Path, names: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a table in which two columns have the name of the same key.

    Raises:
        DataError: it has; the message names the column.
    """
    counts = Counter(names)
    for name in known:
        if counts[name] > 1:
            raise DataError(
                f"{path}: {counts[name]} columns are named {name!r}: rename all but one"
            )


def silent(_what: str, _share: float) -> None:
    """Ignore how far a file has been read."""


def _lines_of_array(path: Path, text: bytes) -> bytes:
    """Return the values of a JSON array, a line each; a text that is none, as it is."""
    if len(text) > _MAX_ARRAY_BYTES:
        raise DataError(
            f"{path}: a JSON array may have {_MAX_ARRAY_BYTES >> 20} MiB: write an object per "
            "line instead, as `jq -c '.[]'` does"
        )
    try:
        return b"".join(json.dumps(value).encode() + b"\n" for value in json.loads(text))
    except (ValueError, RecursionError):
        return text


def blocks(path: Path, progress: Progress = silent) -> Iterator[bytes]:
    """Yield a file's whole lines, many at once; of an overlong one, a part that is no object.

    What is gzipped is unpacked, whatever its name; of a JSON array, each value is a line.

    Raises:
        SourceError: the file cannot be read.
        DataError: it is a JSON array that is too large.
    """
    path = _STDIN if str(path) == "-" else path
    try:
        size = path.stat().st_size or 1
        with path.open("rb") as raw:
            zipped = raw.peek(2).startswith(_GZIPPED)
            file: BufferedIOBase = gzip.GzipFile(fileobj=raw) if zipped else raw
            rest, first = b"", True
            while block := file.read(_BLOCK_BYTES):
                if first and block.lstrip().startswith(b"["):
                    yield _lines_of_array(path, block + file.read(_MAX_ARRAY_BYTES))
                    return
                first = False
                if raw.seekable():  # what is piped has no size
                    progress(f"reading {path.name}", min(1.0, raw.tell() / size))
                lines, newline, tail = block.rpartition(b"\n")
                if newline:
                    yield rest + lines + newline
                    rest = tail
                else:
                    rest += tail
                rest = rest if len(rest) <= _MAX_ARRAY_BYTES else _CUT
            if rest:
                yield rest
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{path}: cannot read it: {explain_error(error)}") from error
