"""The forms of files of rows, and their bytes: whole lines, many at once."""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import Final, Literal

from llmtrace.core.errors import DataError, SourceError, explain_error

Progress = Callable[[str, float], None]  # what is being done, and how much of it, 0 to 1
Form = Literal["jsonl", "csv", "parquet"]

LINE_BYTES: Final = 1 << 20  # a longer line is cut
FORMS: Final = "JSON lines (one object per line), Parquet or CSV"
_BY_SUFFIX: Final[dict[str, Form]] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".csv": "csv", ".tsv": "csv",
    ".parquet": "parquet",
}  # fmt: skip
SUFFIXES: Final = (*_BY_SUFFIX, *(f"{name}.gz" for name in _BY_SUFFIX if name != ".parquet"))
_BLOCK_BYTES: Final = 16 << 20
_STDIN: Final = Path("/dev/stdin")


def form_of(path: Path) -> Form:
    """Return the form that a file's name implies, in either case; by default JSON lines."""
    name = Path(path.name.lower().removesuffix(".gz"))
    return _BY_SUFFIX.get(name.suffix, "jsonl")


def is_row_file(path: Path) -> bool:
    """Return whether a file's name is that of a file of rows."""
    return path.name.lower().endswith(SUFFIXES)


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


def blocks(path: Path, progress: Progress = silent) -> Iterator[bytes]:
    """Yield a file's whole lines, many at once; an overlong line is cut, and so will not parse.

    Raises:
        SourceError: the file cannot be read, or is not of the kind that its name implies.
    """
    path = _STDIN if str(path) == "-" else path
    try:
        size = path.stat().st_size or 1
        with path.open("rb") as raw:
            zipped = path.suffix.lower() == ".gz"
            file: BufferedIOBase = gzip.GzipFile(fileobj=raw) if zipped else raw
            rest = b""
            while block := file.read(_BLOCK_BYTES):
                if raw.seekable():  # what is piped has no size
                    progress(f"reading {path.name}", min(1.0, raw.tell() / size))
                lines, newline, tail = block.rpartition(b"\n")
                if newline:
                    yield rest + lines + newline
                    rest = tail
                else:
                    rest += tail
                rest = rest[: LINE_BYTES + 1]
            if rest:
                yield rest
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{path}: cannot read it: {explain_error(error)}") from error
