"""Read rows from CSV, as spreadsheets and databases export them, into Arrow tables.

The header names the keys of a row, in upper or lower case. `start` may be a date and time (ISO
8601; UTC where it has no zone) as well as Unix time in nanoseconds. With semicolons as separators,
as European spreadsheets write them, numbers may have a decimal comma.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

from llmtrace.core.errors import SourceError, explain_error, needs_extra
from llmtrace.core.flat_row import flat_kinds
from llmtrace.core.sanitize import printable
from llmtrace.exporters.row_files.forms import check_columns

_SEPARATORS: Final = ",;\t|"
_STATED_SEPARATOR: Final = re.compile(r'"?sep=(.)"?')  # a first line that Excel writes
_NUMBER: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_THOUSANDS: Final = r"^[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]*)?$"
_FLAG: Final = r"^[01](\.0*)?$"
_FLAGS: Final = {"true": "1", "t": "1", "yes": "1", "false": "0", "f": "0", "no": "0"}
_REST_OF_FIELD: Final = re.compile(r'[^"]*+(?:""[^"]*+)*+"')  # after the quote that opens it
_SHOWN: Final = 30  # characters of a value
_MAX_QUOTED_LINES: Final = 1000  # that a field in quotes may span
_BINARY: Final = {
    b"PAR1": "it is Parquet; its name must end in .parquet",
    b"\xff\xfe": "it is UTF-16; save it as UTF-8",
    b"\xfe\xff": "it is UTF-16; save it as UTF-8",
}


def csv_tables(
    path: Path,
    content: Iterable[bytes],
    kept_out: Counter[str],
    wanted: Collection[str] = flat_kinds().keys(),
) -> Iterator[tuple[list[str], Any, Any]]:
    """Yield the rows of a CSV file, many at once.

    Args:
        path: of the file, for errors.
        content: its `blocks`. The first line is the header; commas, semicolons, tabs or `|`
            separate.
        kept_out: counts lines that are no row, and values that are no number.
        wanted: the columns to read, if they are there.

    Yields:
        The header, an Arrow table of the columns that a row has as text, and the same with numbers
        and flags as such, null where they cannot be read.

    Raises:
        SourceError: the file cannot be read.
        DataError: two columns have the same name.
    """
    with needs_extra("reading CSV", "triage", "pyarrow"):
        import pyarrow as pa
        from pyarrow import csv

    def skip(row: Any) -> str:
        kept_out["line: not as many fields as the header"] += 1 + row.text.count("\n")
        return "skip"

    texts = _texts(path, content)
    separator, names, rest = header(next(texts, ""))
    if not names:
        raise SourceError(f"{path}: cannot read it: it is empty")
    check_columns(path, names, wanted)
    columns = [name for name in names if name in wanted] or names[:1]
    try:
        for records in _whole_records(chain((rest,), texts), separator, kept_out):
            if not records.strip():
                continue
            encoded = records.encode()
            raw = csv.read_csv(
                pa.BufferReader(encoded),
                csv.ReadOptions(column_names=names, block_size=len(encoded) + 1),
                csv.ParseOptions(
                    delimiter=separator, newlines_in_values=True, invalid_row_handler=skip
                ),
                csv.ConvertOptions(
                    include_columns=columns,
                    column_types=dict.fromkeys(columns, pa.string()),
                    strings_can_be_null=True,
                ),
            )
            yield names, raw, _typed(raw, kept_out, "," if separator == ";" else ".")
    except pa.ArrowException as error:
        raise SourceError(f"{path}: cannot read it: {explain_error(error)}") from error


def _texts(path: Path, content: Iterable[bytes]) -> Iterator[str]:
    """Yield whole lines, many at once, as text."""
    line = 1
    for block in content:
        what = next((what for magic, what in _BINARY.items() if block.startswith(magic)), None)
        if line == 1 and what is not None:
            raise SourceError(f"{path}: is not CSV: {what}")
        try:
            yield block.decode("utf-8-sig" if line == 1 else "utf-8")
        except UnicodeDecodeError as error:
            line += block.count(b"\n", 0, error.start)
            raise SourceError(
                f"{path}: cannot read it: line {line} is no text in UTF-8"
            ) from error
        line += block.count(b"\n")


def header(text: str) -> tuple[str, list[str], str]:
    """Return the separator, the names of the columns, and the text after the header.

    Blank lines above the header do not count, nor does `sep=,`, which Excel writes.
    """
    separator = None
    while text:
        line, _, text = text.partition("\n")
        line = line.strip("\r ")
        if stated := _STATED_SEPARATOR.fullmatch(line):
            separator = stated[1]
        elif line.strip(f'{_SEPARATORS}" '):
            separator = separator or max(_SEPARATORS, key=line.count)
            return separator, [_key(name) for name in line.split(separator)], text
    return ",", [], ""


def _key(name: str) -> str:
    """Return the key of a row that a column's name means: some databases export upper case."""
    name = name.strip().strip('"')
    return name.lower() if name.lower() in flat_kinds() else name


def _whole_records(texts: Iterable[str], separator: str, kept_out: Counter[str]) -> Iterator[str]:
    """Yield the text without the lines in which a quote opens a field that does not end.

    Otherwise a stray quote would make all that follows it one field.
    """
    # A quote at the start of a field that may not end on its line: most files have none.
    in_doubt = re.compile(rf'"(?<=[{re.escape(separator)}\n]")(?![^"\n]*+(?:""[^"\n]*+)*+")')
    rest = ""
    for text in chain(texts, (None,)):
        if text is not None and not rest and not in_doubt.search(f"\n{text}"):
            yield text
            continue
        lines = f"{rest}{text or ''}".split("\n")
        whole: list[str] = []
        at, rest = 0, ""
        while at < len(lines):
            end = _end_of_record(lines, at, separator)
            if end is None and text is not None and len(lines) - at < _MAX_QUOTED_LINES:
                rest = "\n".join(lines[at:])
                whole.append("")
                break
            if end is None or end == at:
                kept_out["line: a quote in it does not end"] += 1
                end = at + 1
            else:
                whole += lines[at:end]
            at = end
        yield "\n".join(whole)


def _end_of_record(lines: Sequence[str], at: int, separator: str) -> int | None:
    """Return the index after the last line of the record that begins at `at`.

    It is `at` if what follows a quote shows that it is a stray one, and `None` if no line ends it.
    """
    if not _opens(lines[at], separator):
        return at + 1
    for number in range(at + 1, min(at + _MAX_QUOTED_LINES, len(lines))):
        line = lines[number].removesuffix("\r")
        if (end := _REST_OF_FIELD.match(line)) is None:
            continue
        after = line[end.end() :]
        if after and not after.startswith(separator):
            return at
        if not _opens(after, separator):
            return number + 1
    return None


def _opens(line: str, separator: str) -> bool:
    """Return whether a quote opens a field that does not end on this line."""
    before = f"(^|{re.escape(separator)})"
    without = re.sub(f'{before}"{_REST_OF_FIELD.pattern}', r"\1", line) if '"' in line else ""
    return re.search(f'{before}"', without) is not None


def quoting(why: str, value: object, known: Iterable[str]) -> str:
    """Return why values are left out, with the first of them, as one of `known` has it."""
    why += ", as "
    quoted = f"{why}{printable(repr(value)[:_SHOWN])}"
    return next((one for one in known if one.startswith(why)), quoted)


def _typed(table: Any, kept_out: Counter[str], decimal: str) -> Any:
    """Return a table of text with the columns of numbers and flags as such."""
    kinds = flat_kinds()
    for at, name in enumerate(table.column_names):
        if name != "start" and kinds.get(name) in {int, float, bool}:
            numbers = _numbers(table[name], name, kept_out, decimal)
            table = table.set_column(at, name, numbers)
    return table


def _numbers(column: Any, name: str, kept_out: Counter[str], decimal: str) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    flag = flat_kinds()[name] is bool
    text = pc.utf8_trim_whitespace(column)
    if flag:
        text = pc.utf8_lower(text)
        for word, digit in _FLAGS.items():
            text = pc.if_else(pc.equal(text, word), digit, text)
    if decimal == ".":
        grouped = pc.match_substring_regex(text, _THOUSANDS)
        text = pc.if_else(grouped, pc.replace_substring(text, ",", ""), text)
    text = pc.replace_substring(text, decimal, ".")
    usable = pc.match_substring_regex(text, _FLAG if flag else _NUMBER)
    odd = len(column) - column.null_count - (pc.sum(usable).as_py() or 0)
    if odd:
        first = pc.index(usable, False).as_py()
        why = f"{name}: not {'true or false' if flag else 'a number'}"
        kept_out[quoting(why, column[first].as_py(), kept_out)] += odd
    numbers = pc.cast(pc.if_else(usable, text, None), pa.float64())
    return pc.cast(numbers, pa.bool_()) if flag else numbers
