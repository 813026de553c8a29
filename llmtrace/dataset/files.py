"""Read rows from a file into columns, fast, and robust against anything the file contains.

`rows.jsonl`, `rows.parquet` or `rows.csv`, the first and the last also gzipped. JSON lines are
parsed in blocks: by pyarrow where it is installed and a block contains nothing odd, line by line
otherwise, with the same result.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.core.errors import DataError, SourceError, closest, explain_error, needs_extra
from llmtrace.core.flat_row import flat_kinds
from llmtrace.core.json_values import START_FORMS, start_ns
from llmtrace.dataset.columns import FLAGS, IDS, NUMBERS, WORDS, Builder, Columns, as_ids, short
from llmtrace.dataset.sampling import Sample
from llmtrace.exporters.row_files.arrow_table import starts_ns
from llmtrace.exporters.row_files.csv_tables import csv_tables
from llmtrace.exporters.row_files.forms import (
    FORMS,
    LINE_BYTES,
    Progress,
    blocks,
    check_columns,
    silent,
)
from llmtrace.exporters.row_files.other_formats import open_rows
from llmtrace.exporters.row_files.read_back import files_of
from llmtrace.stats.arrays import Floats

_PLAIN_LINE: Final = 1 << 16
_DEPTH: Final = 64  # of brackets: no row nests deeper, and a parser may recurse
_PIECE: Final = 500_000  # rows that are added to the sample at once
_YEAR_NS: Final = 31_557_600_000_000_000
_NO_TIME_YET_NS: Final = 10**18  # the year 2001: what is earlier counts in another unit
_LONG_S: Final = {"ttft_s": 100.0, "e2e_s": 1000.0}  # typical requests take less
_METRICS: Final = ("ttft_s", "tpot_s", "e2e_s", "render_s")
_ALIKE: Final = 0.75  # keys as alike as `e2e` and `e2e_s`, but not `user` and `server`
_SHOWN: Final = 60  # characters of a line
_PARTS: Final = 20  # of the time: a deployment may change the unit
_FEWEST: Final = 50  # rows in each
_FACTORS: Final = {"ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
# What OpenTelemetry, providers' interfaces and access logs call it.
_OTHER_KEYS: Final = {
    "input_tokens": "prompt_tokens", "completion_tokens": "output_tokens",
    "cache_read_input_tokens": "cached_tokens", "status_code": "http_status",
    "request_time": "e2e_s", "duration": "e2e_s", "duration_s": "e2e_s", "latency": "e2e_s",
    "latency_s": "e2e_s", "customer": "tenant", "endpoint": "route", "pod": "replica",
    "model_name": "model", "zone": "region",
    "status": "http_status", **dict.fromkeys(("time", "timestamp", "ts", "date", "datetime",
                                             "@timestamp", "created_at"), "start"),
}  # fmt: skip


def read_columns(*paths: str | Path, progress: Progress = silent) -> Columns:
    """Read rows: `.parquet`, `.csv` or `.tsv`, else JSON lines or CSV, also `.gz`; `-` is stdin.

    Of a folder, all such files are read, or the rows of the case that is saved in it. What is no
    row, and files left out, are in the columns' `warnings`. Of more than two million rows a sample
    is kept, each standing for those left out by its `weight`.

    Raises:
        SourceError: the file cannot be read.
        DataError: it contains lines, and none of them is a row; or most starts are of other units.
    """
    builder, sample, path = Builder(), Sample(), ", ".join(map(str, paths))
    files = [file for one in paths for file in files_of(Path(one), builder.doubts)]
    for file in dict.fromkeys(files):  # each once, however often it is named
        for _ in _read(file, builder, progress):
            if builder.n >= _PIECE:
                sample.add(builder.flush())
    sample.add(builder.flush())
    rows = sample.rows()
    if not rows.n and builder.kept_out:
        what = "; ".join(f"{what} ({count})" for what, count in builder.kept_out.items())
        how = "; ".join(builder.notes) or _no_row(builder.first)
        raise DataError(f"{path}: contains no row of llmtrace: {what}; {how}")
    rows = _plausible(rows, builder, path) if rows.n else rows
    return replace(rows, warnings=(*builder.warnings, *rows.warnings))


def _plausible(rows: Columns, builder: Builder, path: str) -> Columns:
    """Leave out rows whose start is years from that of most; doubt unlikely units and keys."""
    middle = int(np.partition(rows.start, rows.n // 2)[rows.n // 2])
    if middle < _NO_TIME_YET_NS:
        raise DataError(f"{path}: start is {middle} in most rows: it must be {START_FORMS}")
    far = np.abs(rows.start - middle) > _YEAR_NS
    if far.any():
        builder.kept_out["row: start over a year from that of most"] += int(far.sum())
    builder.doubts += unlikely_units(rows)
    row = _object(builder.first) or {}
    unknown: list[str] = []
    for key, name in _meanings(row):
        text = f"unknown key {short(key)!r}. Did you mean {name!r}{_unit_of(key)}?"
        (builder.doubts if name in NUMBERS else unknown).append(text)
    if all(np.isnan(rows.numbers[name]).all() for name in _METRICS):
        lacks = f"no row has a usable {' or '.join(_METRICS)}; "
        lacks += f"the first has {short(', '.join(row))}"
        builder.doubts.insert(0, lacks)
    return replace(rows.take(~far), warnings=(*unknown, *rows.warnings))


def unlikely_units(rows: Columns) -> Iterator[str]:
    """Yield a doubt for each duration that is too long at the median, for part of the time too."""
    in_order = np.argsort(rows.start, kind="stable")
    for name, limit_s in _LONG_S.items():
        values = rows.numbers[name][in_order]
        known = values[~np.isnan(values)]
        parts = np.array_split(known, min(_PARTS, len(known) // _FEWEST + 1)) if known.size else ()
        longest = max((float(np.median(part)) for part in parts), default=0.0)
        if longest > limit_s:
            odd = f"{name} is {longest:,.0f} s at the median"
            some = "" if float(np.median(known)) > limit_s else " for part of the time"
            yield f"{odd}{some}: are these milliseconds?"


def _meanings(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the unknown keys of a row that seem to mean another, each with that."""
    lacking = {"start", *NUMBERS, *WORDS, *IDS} - row.keys()
    for key in sorted(row.keys() - flat_kinds().keys()):
        name = _meant(key, lacking)
        if name == "http_status" and isinstance(row[key], str) and not row[key][:1].isdecimal():
            name = "outcome" if "outcome" in lacking else ""  # LiteLLM writes `success`
        if name:
            lacking.remove(name)
            yield key, name


def _meant(key: str, lacking: set[str]) -> str:
    """Return the key of a row, of those lacking, that another key seems to mean; empty = none."""
    if _unit_of(key):
        key = f"{key.rpartition('_')[0]}_s"
        if key in lacking:
            return key
    if (other := _OTHER_KEYS.get(key.lower())) is not None:
        return other if other in lacking else ""
    return closest(key, sorted(lacking), _ALIKE)


def _unit_of(key: str) -> str:
    """Say how to get seconds of a key that names another unit; empty = it names none."""
    factor = _FACTORS.get(key.rpartition("_")[2])
    return "" if factor is None else f", in seconds (divided by {factor:,})"


def _no_row(first: bytes) -> str:
    """Say what rows are, and what a file's first line is instead."""
    if (row := _object(first)) is None:
        shown = short(first[:_SHOWN].decode("utf-8", "replace"))
        wanted = f"rows are {FORMS} with a column `start`: docs/on-call/triage.md"
        return f"its first line is {shown!r}; {wanted}"
    start = f"is {json.dumps(row['start'])[:_SHOWN]}" if "start" in row else "is missing"
    meant = [f"{short(key)} → {name}{_unit_of(key)}" for key, name in _meanings(row)]
    rename = f"; rename {'; '.join(meant)}" if meant else ""
    has = f"the first row has {short(', '.join(row))}"
    return f"`start` {start}, and must be {START_FORMS}; {has}{rename}"


def write_columns(path: Path, columns: Columns) -> None:
    """Write rows as JSON lines, gzipped if the name ends in `.gz`."""
    with gzip.open(path, "wb", 6) if path.suffix == ".gz" else path.open("wb") as file:
        for flat in columns.to_dicts():
            file.write(json.dumps(flat, ensure_ascii=False, separators=(",", ":")).encode())
            file.write(b"\n")


def objects(path: Path, progress: Progress = silent) -> Iterator[dict[str, Any] | None]:
    """Yield each line's JSON object; `None` for a line that is none. Empty lines do not count.

    Raises:
        SourceError: the file cannot be read.
    """
    for block in blocks(path, progress):
        yield from _objects(block)


def _objects(block: bytes) -> Iterator[dict[str, Any] | None]:
    for line in block.split(b"\n"):
        if line.strip():
            yield _object(line)


def _object(line: bytes) -> dict[str, Any] | None:
    if len(line) > LINE_BYTES or _too_deep(line):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _too_deep(line: bytes) -> bool:
    return line.count(b"[") + line.count(b"{") > _DEPTH and _depth(line) > _DEPTH


def _depth(line: bytes) -> int:
    deepest = depth = 0
    for byte in line:
        depth += (byte in b"[{") - (byte in b"]}")
        deepest = max(deepest, depth)
    return deepest


def _read(path: Path, builder: Builder, progress: Progress) -> Iterator[None]:
    """Add the rows of one file, some at each step."""
    form, content = open_rows(path, builder.notes, progress)
    if form == "parquet":
        return _parquet(path, builder, progress)
    return _csv(path, content, builder) if form == "csv" else _lines(content, builder)


def _lines(content: Iterable[bytes], builder: Builder) -> Iterator[None]:
    for block in content:
        builder.first = builder.first or block[:LINE_BYTES].lstrip().partition(b"\n")[0]
        _add_json(block, builder)
        yield


def _add_json(block: bytes, builder: Builder) -> None:
    if _add_json_fast(block, builder):
        return
    rows = []
    for flat in _objects(block):
        if flat is None:
            builder.kept_out["line: not a row"] += 1
        else:
            rows.append(flat | {"start": start_ns(flat.get("start"))})
    builder.add(rows)


def _add_json_fast(block: bytes, builder: Builder) -> bool:
    """Add a block through pyarrow; return whether that was possible."""
    try:
        import pyarrow as pa
        from pyarrow import json as pa_json
    except ImportError:
        return False
    # What pyarrow reads differently, or by a recursion of its own, goes line by line.
    odd = b"\\u" in block or any(
        len(line) > _PLAIN_LINE or _too_deep(line) for line in block.split(b"\n")
    )
    if odd:
        return False
    kinds = {name: pa.bool_() if name in FLAGS else pa.float64() for name in NUMBERS}
    kinds |= dict.fromkeys((*WORDS, *IDS), pa.string())
    first = _object(block.lstrip().partition(b"\n")[0]) or {}
    start = pa.string() if isinstance(first.get("start"), str) else pa.int64()
    schema = pa.schema([("start", start), *kinds.items()])
    try:
        block.decode()  # pyarrow takes any bytes for text
        table = pa_json.read_json(
            pa.BufferReader(block),
            pa_json.ReadOptions(block_size=LINE_BYTES),
            pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except (pa.ArrowException, UnicodeDecodeError, ValueError):
        return False
    starts = starts_ns(table["start"])
    if starts.null_count:
        return False
    table = table.set_column(table.column_names.index("start"), "start", starts)
    add_table(table, builder)
    return True


def add_table(table: Any, builder: Builder) -> None:
    """Add a pyarrow table that has a column `start` and any of the columns of a row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = table.num_rows
    present = set(table.column_names)

    def number(name: str) -> Floats:
        if name not in present:
            return np.full(rows, np.nan)
        column = table[name]
        try:
            values = pc.cast(column, pa.float64(), safe=False)
        except pa.ArrowException:
            builder.kept_out[f"{name}: not a number"] += rows - column.null_count
            return np.full(rows, np.nan)
        found: Floats = values.to_numpy(zero_copy_only=False).astype(np.float64)
        odd = int(np.isnan(found).sum()) - column.null_count
        if odd:
            builder.kept_out[f"{name}: not a number"] += odd
        return found

    def text(name: str) -> Any | None:
        if name not in present:
            return None
        column = table[name]
        if pa.types.is_dictionary(column.type):
            column = pc.cast(column, column.type.value_type)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            return column
        builder.kept_out[f"{name}: not text"] += rows - column.null_count
        return None

    def word(name: str) -> tuple[NDArray[np.int32], Sequence[str]]:
        column = text(name)
        if column is None:
            return np.full(rows, -1, np.int32), ()
        coded = column.combine_chunks().dictionary_encode()
        if isinstance(coded, pa.ChunkedArray):
            coded = coded.combine_chunks()
        names = [short(name) for name in coded.dictionary.to_pylist()]
        codes = pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int32)
        # Shortened, two words may have become one, and an empty one is an unknown one.
        merged: dict[str, int] = {}
        new = [merged.setdefault(name, len(merged)) if name else -1 for name in names]
        return np.array([*new, -1], np.int32)[codes], tuple(merged)

    def identity(name: str) -> NDArray[np.bytes_]:
        column = text(name)
        return as_ids([None] * rows if column is None else column.to_pylist())

    builder.add_arrays(table["start"].to_numpy().astype(np.int64), number, word, identity)


def _parquet(path: Path, builder: Builder, progress: Progress) -> Iterator[None]:
    with needs_extra("reading rows.parquet", "triage", "pyarrow"):
        import pyarrow as pa
        from pyarrow import parquet
    try:
        with parquet.ParquetFile(path) as file:
            wanted = ["start", *NUMBERS, *WORDS, *IDS]
            check_columns(path, file.schema_arrow.names, wanted)
            columns = [name for name in wanted if name in file.schema_arrow.names]
            total, read = file.metadata.num_rows or 1, 0
            for batch in file.iter_batches(1 << 18, columns=columns):
                table = pa.Table.from_batches([batch])
                _quote_first(builder, file.schema_arrow.names, table)
                _add_started(table, builder)
                read += batch.num_rows
                progress(f"reading {path.name}", min(1.0, read / total))
                yield
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"{path}: cannot read it: {explain_error(error)}") from error


def _csv(path: Path, content: Iterable[bytes], builder: Builder) -> Iterator[None]:
    wanted = {*flat_kinds(), "status"}  # what that means depends on its value
    for names, raw, typed in csv_tables(path, content, builder.kept_out, wanted):
        _quote_first(builder, names, raw)
        _add_started(typed, builder)
        yield


def _quote_first(builder: Builder, names: Sequence[str], table: Any) -> None:
    if not builder.first:
        row = dict.fromkeys(names)
        for values in table.slice(0, 1).to_pylist():
            row |= values
        builder.first = json.dumps(row, default=str).encode()


def _add_started(table: Any, builder: Builder) -> None:
    """Add the rows of a table that have a `start`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if "start" not in table.column_names:
        table = table.append_column("start", pa.nulls(len(table)))
    starts = starts_ns(table["start"])
    if starts.null_count:
        builder.kept_out["row: no usable start"] += starts.null_count
    table = table.set_column(table.column_names.index("start"), "start", starts)
    add_table(table.filter(pc.is_valid(starts)), builder)
