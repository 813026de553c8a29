"""Read rows from a file, a folder or a running collector: as rows, an Arrow table, a DataFrame."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llmtrace.core.errors import ConfigError, DataError, SourceError, explain_error
from llmtrace.core.flat_row import flat_kinds
from llmtrace.core.row import Row, from_dict
from llmtrace.core.row_html import many_rows
from llmtrace.exporters.row_files.arrow_table import arrow, from_arrow, starts_ns, to_arrow
from llmtrace.exporters.row_files.csv_tables import csv_tables
from llmtrace.exporters.row_files.forms import SUFFIXES, check_columns, is_row_file
from llmtrace.exporters.row_files.other_formats import open_rows

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from llmtrace.api_clients.collector_client import Collector

_HOUR_S: Final = 3600.0
_MAX_ROWS: Final = 5_000_000
_MAX_ODD: Final = 1000  # lines that are no rows, before a first one that is
_Found = tuple[str, Mapping[str, Any] | bytes | DataError]  # the place, and what is there
# The rows of a saved case; the other files of its folder hold none.
CASE_ROWS: Final = ("rows.parquet", "rows.jsonl", "rows.jsonl.gz")


class Rows(tuple[Row, ...]):
    """Rows in a sequence, which a notebook shows as a table with a bar of stages a line."""

    __slots__ = ()

    def to_arrow(self) -> pa.Table:
        """Return a table with a column for each key of `Row.as_dict`; null is not known.

        Raises:
            ConfigError: pyarrow is not installed.
        """
        return to_arrow(self)

    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame with the same columns.

        Raises:
            ConfigError: pandas or pyarrow is not installed.
        """
        try:
            import pandas as pd  # noqa: F401 - `to_pandas` needs it
        except ImportError:
            raise ConfigError(
                "rows as a DataFrame need the package 'pandas', which is not installed; run: "
                "python -m pip install pandas"
            ) from None
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def _repr_html_(self) -> str:
        return many_rows(self)


def read_rows(
    source: str | Path | Iterable[Mapping[str, Any]],
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    token_file: Path | None = None,
) -> Rows:
    """Read rows from a file, a folder, the address of a collector, or any flat rows.

    Args:
        source: a file (`.parquet`, `.csv` or `.tsv`, else JSON lines, also `.gz`), the folder of a
            saved case, another folder with such files, the address of a running collector
            (`http://127.0.0.1:4319`), or mappings as `Row.as_dict` makes. `start` may be an ISO
            8601 date and time. Empty lines do not count. A wait below 0 is not reported.
        start: rows that began at or after it; default: all, of a collector those of the last hour.
        end: rows that began before it; default: all.
        token_file: a file with the collector's token.

    Raises:
        SourceError: the source cannot be read.
        DataError: it holds what is no row; the message says where.
        ConfigError: an address is invalid, or Parquet or CSV is to be read without pyarrow.

    Example:
        >>> rows = read_rows([{"start": 1, "e2e_s": 2.0}])
        >>> rows[0].e2e_s
        2.0
    """
    flats: Iterable[_Found]
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        # Not at the top: it brings HTTP and TLS along, which an application may do without.
        from llmtrace.api_clients.collector_client import Collector

        flats = _from_collector(Collector(source, token_file), start, end)
    elif isinstance(source, str | Path):
        flats = _from_files(Path(source), notes=[])
    else:
        flats = ((f"row {number}", flat) for number, flat in enumerate(source, 1))
    rows = (_row(place, flat) for place, flat in flats)
    since, until = (None if at is None else round(at.timestamp() * 1e9) for at in (start, end))
    return Rows(
        row
        for row in rows
        if (since is None or since <= row.start) and (until is None or row.start < until)
    )


def read_usable_rows(*paths: Path) -> tuple[Rows, list[str]]:
    """Read the rows of files or folders, and return notes for people of what is left out.

    Raises:
        SourceError: the file cannot be read.
        DataError: nothing in it is a row.
    """
    rows: list[Row] = []
    odd, first = 0, ""
    notes: list[str] = []
    for place, flat in _from_files(*paths, notes=notes):
        try:
            rows.append(_row(place, flat))
        except DataError as error:
            odd, first = odd + 1, first or str(error)
            if not rows and odd >= _MAX_ODD:
                break
    if odd and not rows:
        raise DataError(first)
    count = f"{odd} line{'' if odd == 1 else 's'}"
    notes += [f"{count} left out, the first: {first}"] if odd else []
    return Rows(rows), [f"Note: {note}" for note in notes]


def _row(place: str, flat: Mapping[str, Any] | bytes | DataError) -> Row:
    if isinstance(flat, DataError):
        raise flat
    try:
        return from_dict(_flat(flat) if isinstance(flat, bytes) else flat)
    except (DataError, RecursionError) as error:
        raise _no_row(place, error) from error


def _no_row(place: str, why: object) -> DataError:
    return DataError(
        f"{place}: {why}; rows are what the exporter jsonl:FILE writes, or"
        " Parquet or CSV in a file of such a name"
    )


def case_rows(folder: Path) -> Path | None:
    """Return the file with the rows in the folder of a saved case; `None` = there is none."""
    return next((folder / name for name in CASE_ROWS if (folder / name).is_file()), None)


def _from_collector(
    collector: Collector, start: datetime | None, end: datetime | None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    until = time.time() if end is None else end.timestamp()
    since = until - _HOUR_S if start is None else start.timestamp()
    for flat in collector.lines("rows", start=since, end=until, limit=_MAX_ROWS):
        yield collector.url, flat


def files_of(path: Path, notes: list[str]) -> list[Path]:
    """Return the files of rows that a path means: itself, or those of a folder.

    A note for people is added if files of the folder are left out.

    Raises:
        SourceError: the folder cannot be listed, or has no file of rows.
    """
    if not path.is_dir():
        return [path]
    saved = case_rows(path)
    if saved is not None:
        return [saved]
    try:
        there = sorted(file for file in path.iterdir() if file.is_file())
    except OSError as error:
        raise SourceError(f"{path}: cannot read it: {explain_error(error)}") from error
    files = [file for file in there if is_row_file(file)]
    if not files:
        raise SourceError(f"{path}: contains no file of rows ({', '.join(SUFFIXES)})")
    if others := [one.name for one in there if not is_row_file(one) and one.name[0] != "."]:
        count = f"{path}: {len(others)} of {len(there)} files left out"
        notes.append(f"{count}, named as none of {', '.join(SUFFIXES)}: {others[0]}")
    return files


def _from_files(*paths: Path, notes: list[str]) -> Iterator[_Found]:
    there = (file for path in paths for file in files_of(path, notes))
    return chain.from_iterable(_from_file(file, notes) for file in there)


def _from_file(path: Path, notes: list[str]) -> Iterator[_Found]:
    form, content = open_rows(path, notes)
    if form == "jsonl":
        yield from _from_lines(path, content)
        return
    flats: Iterator[dict[str, Any] | DataError]
    flats = _from_parquet(path) if form == "parquet" else _from_csv(path, content)
    number = 0
    try:
        for number, flat in enumerate(flats, 1):
            yield f"{path}: row {number}", flat
    except ValueError as error:  # a column of JSON
        raise _no_row(f"{path}: row {number + 1}", f"not a row: {error}") from error


def _from_parquet(path: Path) -> Iterator[dict[str, Any]]:
    pa = arrow("reading Parquet")
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            check_columns(path, file.schema_arrow.names, flat_kinds())
            table = file.read()
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"{path}: cannot read it: {explain_error(error)}") from error
    for at, name in enumerate(table.column_names):
        if pa.types.is_decimal(table[at].type):
            table = table.set_column(at, name, table[at].cast(pa.float64()))
        elif name == "start" and pa.types.is_temporal(table[at].type):
            table = table.set_column(at, name, starts_ns(table[at]))
    yield from from_arrow(table)


def _from_csv(path: Path, content: Iterable[bytes]) -> Iterator[dict[str, Any] | DataError]:
    kept_out: Counter[str] = Counter()
    for _, raw, typed in csv_tables(path, content, kept_out):
        # A number that cannot be read stays text, and the error quotes it.
        for text, flat in zip(from_arrow(raw), from_arrow(typed), strict=True):
            yield text | flat
        yield from _odd_lines(path, kept_out)
    yield from _odd_lines(path, kept_out)


def _odd_lines(path: Path, kept_out: Counter[str]) -> Iterator[DataError]:
    for why in [why for why in kept_out if why.startswith("line: ")]:
        for _ in range(kept_out.pop(why)):
            yield DataError(f"{path}: a line is no row: {why[6:]}")


def _from_lines(path: Path, content: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    lines = (line for block in content for line in block.removesuffix(b"\n").split(b"\n"))
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield f"{path}:{number}", line


def _flat(line: bytes) -> Mapping[str, Any]:
    try:
        flat = json.loads(line)
    except UnicodeDecodeError as error:
        raise DataError("not a row: no text in UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise DataError("not a row: no JSON, or cut off") from error
    if not isinstance(flat, dict):
        raise DataError("not a row: no JSON object")
    return flat
