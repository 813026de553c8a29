"""Read rows from CSV, as spreadsheets and databases export them, into Arrow tables.

The header names the keys of a row. `start` may be a date and time (ISO 8601; UTC where it has no
zone) as well as Unix time in nanoseconds. With semicolons as separators, as European spreadsheets
write them, numbers may have a decimal comma.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from llmtrace.core.errors import SourceError, explain_error, needs_extra
from llmtrace.core.json_values import start_ns
from llmtrace.dataset.columns import FLAGS, IDS, NUMBERS, WORDS

_SEPARATORS: Final = ",;\t"
_NUMBER: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_WHOLE: Final = r"^[0-9]{1,18}$|^[0-8][0-9]{18}$"


def csv_tables(path: Path, kept_out: Counter[str]) -> Iterator[tuple[list[str], Any]]:
    """Yield the header and the rows of a CSV file, plain or `.gz`, as tables of a row's columns.

    Args:
        path: of the file. Its first line is the header, separated by commas, semicolons or tabs.
        kept_out: counts lines that have too few or too many fields, and values that are no number.

    Raises:
        SourceError: the file cannot be read.
    """
    with needs_extra("reading CSV", "triage", "pyarrow"):
        import pyarrow as pa
        from pyarrow import csv

    def skip(_row: Any) -> str:
        kept_out["line: not as many fields as the header"] += 1
        return "skip"

    try:
        with pa.input_stream(str(path), compression="detect") as peeked:
            header = peeked.read(1 << 16).partition(b"\n")[0].decode("utf-8-sig", "replace")
        separator = max(_SEPARATORS, key=header.count)
        names = [name.strip().strip('"') for name in header.split(separator)]
        with pa.input_stream(str(path), compression="detect") as file:
            reader = csv.open_csv(
                file,
                csv.ReadOptions(column_names=names, skip_rows=1),
                csv.ParseOptions(delimiter=separator, invalid_row_handler=skip),
                csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True
                ),
            )
            for batch in reader:
                table = pa.Table.from_batches([batch])
                yield names, _typed(table, kept_out, decimal="," if separator == ";" else ".")
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"{path}: cannot read it: {explain_error(error)}") from error


def _typed(table: Any, kept_out: Counter[str], *, decimal: str) -> Any:
    """Return a table of strings with the columns of a row as numbers and flags."""
    import pyarrow as pa

    typed = {}
    for name in table.column_names:
        column = table[name]
        if name == "start":
            typed[name] = _starts(column)
        elif name in NUMBERS:
            typed[name] = _numbers(column, name, kept_out, decimal=decimal)
        elif name in WORDS or name in IDS:
            typed[name] = column
    return pa.table(typed or {"": pa.nulls(len(table))})


def _numbers(column: Any, name: str, kept_out: Counter[str], *, decimal: str) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if name in FLAGS:
        lower = pc.utf8_lower(column)
        flags = {"true": "1", "t": "1", "yes": "1", "false": "0", "f": "0", "no": "0"}
        for word, digit in flags.items():
            lower = pc.if_else(pc.equal(lower, word), digit, lower)
        column = lower
    column = pc.replace_substring(pc.utf8_trim_whitespace(column), decimal, ".")
    usable = pc.match_substring_regex(column, _NUMBER)
    odd = len(column) - column.null_count - (pc.sum(usable).as_py() or 0)
    if odd:
        kept_out[f"{name}: not a number"] += odd
    return pc.cast(pc.if_else(usable, column, None), pa.float64())


def _starts(column: Any) -> Any:
    """Return Unix nanoseconds; null where a value is neither them nor a date and time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = pc.fill_null(pc.match_substring_regex(column, _WHOLE), fill_value=False)
    numbers = pc.cast(pc.if_else(whole, column, None), pa.int64())
    if pc.all(whole).as_py():
        return numbers
    return pc.coalesce(
        numbers, pa.array([start_ns(text) for text in column.to_pylist()], pa.int64())
    )
