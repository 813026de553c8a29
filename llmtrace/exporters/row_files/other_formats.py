"""Read the logs of other programs as rows, by the table in `other_formats.toml`.

A file is opened here, whatever its form. If its columns are those of a format, its records become
rows as JSON lines, so that whatever reads rows reads them as well.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import cache, lru_cache
from importlib.resources import files
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from llmtrace.core.errors import SourceError, explain_error
from llmtrace.core.flat_row import flat_kinds
from llmtrace.core.json_values import start_ns
from llmtrace.core.row import Row
from llmtrace.core.sanitize import printable
from llmtrace.core.stages import PARTITION
from llmtrace.exporters.langfuse import observations
from llmtrace.exporters.otlp import exported_spans
from llmtrace.exporters.row_files.arrow_table import arrow
from llmtrace.exporters.row_files.csv_tables import csv_tables, header
from llmtrace.exporters.row_files.forms import Form, Progress, blocks, form_of, silent

_SOURCE: Final = re.compile(r"(?:(last|count) )?(\S+)(?: - (\S+))?(?: (ms|\+ 1|host))?")
_DECIMAL_COMMA: Final = re.compile(r"\A(-?\d+),(\d+)\Z")
_UNKNOWN: Final = (None, "", "-", "None", "null")
_ZERO_UNKNOWN: Final = ("prompt_tokens", "output_tokens", "http_status")  # 0 is their default
_FIRST_LINES: Final = 100  # of which one must be an object
_AT_ONCE: Final = 10_000
_NO_ROW: Final = b"a record that cannot be read"  # a line that readers count as none
_NAMED: Final = 12  # columns
_BOM: Final = b"\xef\xbb\xbf"
_Reader = Callable[[Mapping[str, Any]], Iterator[tuple[Row, bool] | None]]
_READERS: Final[Mapping[str, _Reader]] = {
    "langfuse": observations.exported_rows, "otlp": exported_spans.exported_rows,
}  # fmt: skip
_KINDS: Final = flat_kinds()
_time_ns: Final = lru_cache(maxsize=16)(start_ns)  # a start is read for each duration
# What a row says of a request that was not observed is no measurement.
_NOT_OBSERVED: Final = {
    "attempts", "chunks", "nested", "retry_s", "unwatched", *(f"{stage}_s" for stage in PARTITION),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Format:
    """A program's log, as a table of `other_formats.toml` describes it."""

    name: str
    columns: Sequence[str]
    without: Sequence[str] = ()
    reader: str = ""
    note: str = ""
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    words: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def used(self) -> set[str]:
        """The columns that are read, if they are there."""
        return {name for sources in self.keys.values() for one in sources
                for name in _columns_of(one)}  # fmt: skip


@cache
def _formats() -> tuple[Format, ...]:
    table = files(__package__).joinpath("other_formats.toml").read_text(encoding="utf-8")
    return tuple(Format(**one) for one in tomllib.loads(table)["format"])


def open_rows(
    path: Path, notes: list[str], progress: Progress = silent
) -> tuple[Form, Iterator[bytes]]:
    """Return a file's form, and its `blocks`; of Parquet of rows, none.

    A text is CSV by its name, or by a header with `start` or the columns of a format. Of another
    program's log, the blocks are rows as JSON lines, and a note for people says how it is read.

    Raises:
        SourceError: the file cannot be read.
    """
    if form_of(path) == "parquet":
        return _open_parquet(path, notes)
    found = blocks(path, progress)
    begin = next(found, b"").removeprefix(_BOM)
    content = chain((begin,), found)
    firsts = [*filter(None, map(_object, begin.split(b"\n", _FIRST_LINES)[:_FIRST_LINES]))]
    if form_of(path) != "csv" and (firsts or begin.lstrip().startswith((b"{", b"["))):
        if (format_ := _noted(path, {*chain(*firsts)}, notes, firsts)) is None:
            return "jsonl", content
        records = (_object(line) for block in content for line in block.split(b"\n") if line)
        return "jsonl", _as_lines(records, format_)
    separator, names, _ = header(begin.decode("utf-8", "replace"))
    if (format_ := _noted(path, names, notes)) is not None:
        return "jsonl", _as_lines(_csv_records(path, content, names, separator), format_)
    return "csv" if form_of(path) == "csv" or "start" in names else "jsonl", content


def _open_parquet(path: Path, notes: list[str]) -> tuple[Form, Iterator[bytes]]:
    pa = arrow("reading Parquet")
    from pyarrow import parquet

    def records(format_: Format, names: Sequence[str]) -> Iterator[Any]:
        used = {*_KINDS, *format_.used}
        wanted = [name for name in names if name in used or format_.reader]
        try:
            with parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(_AT_ONCE, columns=wanted):
                    yield from batch.to_pylist()
        except (OSError, OverflowError, ValueError, pa.ArrowException) as error:
            raise SourceError(f"{path}: cannot read it: {explain_error(error)}") from error

    try:
        names = parquet.read_schema(path).names
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"{path}: cannot read it: {explain_error(error)}") from error
    if (format_ := _noted(path, names, notes)) is None:
        return "parquet", iter(())
    return "jsonl", _as_lines(records(format_, names), format_)


def _csv_records(
    path: Path, content: Iterable[bytes], names: Sequence[str], separator: str
) -> Iterator[Any]:
    """Yield the records of CSV; `None` for a line that is none.

    Columns that are keys of a row have their kind; others are text, with decimal points.
    """
    kept_out: Counter[str] = Counter()
    for _, raw, typed in csv_tables(path, content, kept_out, names):
        for texts, values in zip(raw.to_pylist(), typed.to_pylist(), strict=True):
            known = {name: value for name, value in values.items() if name in _KINDS}
            if separator == ";":
                texts = {name: text and _DECIMAL_COMMA.sub(r"\1.\2", text)  # noqa: PLW2901
                         for name, text in texts.items()}  # fmt: skip
            yield texts | {name: value for name, value in known.items() if value is not None}
        yield from [None] * sum(n for why, n in kept_out.items() if why.startswith("line: "))
        kept_out.clear()


def _object(line: bytes | str) -> dict[str, Any] | None:
    with suppress(ValueError, RecursionError):
        value = json.loads(line)
        return value if isinstance(value, dict) else None
    return None


_held: Final = lru_cache(maxsize=16)(_object)  # several keys of a row are in the same text


def _noted(
    path: Path, columns: Iterable[str], notes: list[str], firsts: Sequence[dict[str, Any]] = ()
) -> Format | None:
    """Return the format that has these columns, and note how it is read; `None` = no known one.

    Of the `firsts` records, one must have what is in a column's object.
    """
    names = sorted(columns)

    def is_there(source: str) -> bool:
        path = _parts(source)[1]
        inside = not firsts or "." not in path or any(_at(one, path) is not None for one in firsts)
        return inside and _columns_of(source) <= {*names}

    for one in _formats():
        known = {key: source for key, sources in one.keys.items() for source in reversed(sources)
                 if is_there(source)}  # fmt: skip
        all_there = {*one.columns} <= {*names} and (one.reader or "start" in known)
        if not all_there or {"start", *one.without} - {*one.columns} & {*names}:
            continue
        used = {column for source in known.values() for column in _columns_of(source)}
        unread = [name for name in names if name not in {*used, *_KINDS}]
        how = one.note or ", ".join(f"{s} → {key}" for key, s in known.items() if s != key)
        more = f" and {len(unread) - _NAMED} more" if len(unread) > _NAMED else ""
        rest = f"; not read: {', '.join(map(printable, unread[:_NAMED]))}{more}" if unread else ""
        said = f"is read as {one.name}: {how}{'' if one.reader else rest}"
        if not any(note.endswith(said) for note in notes):  # of several files, the first
            notes.append(f"{printable(path.name)} {said}")
        return one
    return None


def _columns_of(source: str) -> set[str]:
    return {path.partition(".")[0] for path in _parts(source)[1:3] if path}


@cache
def _parts(source: str) -> tuple[str, ...]:
    """Return which of a list, the path, what is subtracted, and the unit of a source."""
    parts: tuple[str, ...] = _SOURCE.findall(source)[0]
    return parts


def _as_lines(records: Iterable[dict[str, Any] | None], format_: Format) -> Iterator[bytes]:
    rows = (row for record in records for row in _rows(record, format_))
    while lines := [*islice(rows, _AT_ONCE)]:
        yield b"".join(line + b"\n" for line in lines)


def _rows(record: dict[str, Any] | None, format_: Format) -> Iterator[bytes]:
    """Yield the rows of one record as JSON."""
    if record is None:
        yield _NO_ROW
    elif not format_.reader:
        yield _line(_flat(record, format_))
    else:
        for found in _READERS[format_.reader](record):
            yield _NO_ROW if found is None else _of_row(*found)


def _line(flat: Mapping[str, Any], dropped: Collection[str] = ()) -> bytes:
    known = {
        key: value
        for key, value in flat.items()
        if value not in _UNKNOWN and (value != 0 or key not in _ZERO_UNKNOWN)
    }
    return json.dumps({k: v for k, v in known.items() if k not in dropped}, default=str).encode()


def _of_row(row: Row, stream_known: bool) -> bytes:
    """Return a row as JSON, without what is only assumed of a request that was not observed."""
    if row.timeline.watched:
        return json.dumps(row.as_dict()).encode()
    return _line(row.as_dict(), _NOT_OBSERVED if stream_known else {*_NOT_OBSERVED, "stream"})


def _flat(record: dict[str, Any], format_: Format) -> dict[str, Any]:
    """Return the flat row of a record; what cannot be read stays as it is, for the reader."""
    flat = {key: value for key, value in record.items() if key in _KINDS}
    for key, sources in format_.keys.items():
        values = (_read(record, source, key) for source in sources)
        flat[key] = next((value for value in values if value not in _UNKNOWN), None)
    for key, words in format_.words.items():
        flat[key] = words.get(flat[key])
    return {key: _as_kind(value, _KINDS[key]) for key, value in flat.items()}


def _read(record: dict[str, Any], source: str, key: str) -> Any:
    """Return what a record says by a source; `None` = unknown."""
    which, path, less, unit = _parts(source)
    value, other = _at(record, path), _at(record, less) if less else 0
    if value in _UNKNOWN or other in _UNKNOWN:
        return None
    with suppress(AttributeError, OverflowError, TypeError, ValueError):
        if which:  # upstreams of an internal redirect follow a colon
            upstreams = value.rpartition(" : ")[2].split(",")
            return upstreams[-1].strip() if which == "last" else len(upstreams)
        if less or key == "start":
            until: Any = _time_ns(value)
            since: Any = _time_ns(other) if key != "start" else round(float(other) * 1e9)
            return until - since if key == "start" else (until - since) / 1e9
        if unit == "host":  # a URL may hold a password or a key
            return urlsplit(value).netloc.rpartition("@")[2] or None
        if unit:
            return float(value) / 1000 if unit == "ms" else int(value) + 1
    return None if key == "start" else value


def _at(record: dict[str, Any], path: str) -> Any:
    """Return what is at a path, through objects and texts that are JSON."""
    value: Any = record
    for name in path.split("."):
        if isinstance(value, str):
            value = _held(value)
        value = value.get(name) if isinstance(value, dict) else None
    return value.isoformat() if isinstance(value, datetime) else value


def _as_kind(value: Any, kind: type) -> Any:
    """Return a value as its key has it: logs quote numbers and flags, and names may be numbers."""
    if isinstance(value, Decimal):
        value = int(value) if value == value.to_integral_value() else float(value)
    if kind is str:
        return str(value) if isinstance(value, int | float) else value
    with suppress(ValueError, RecursionError):
        return json.loads(value.lower()) if isinstance(value, str) else value
    return value
