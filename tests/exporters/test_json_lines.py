"""Rows in files of JSON lines, and in the folder of a saved case."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import llmtrace
from llmtrace.core.errors import DataError, SourceError
from llmtrace.exporters.row_files.read_back import read_rows
from llmtrace.exporters.row_files.sink import write_rows
from llmtrace.testing import make_row
from tests.strategies import rows


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(rows, max_size=5))
def test_rows_come_back_as_they_were(tmp_path, some):
    """Writing and reading changes nothing, whatever characters are in them."""
    path = tmp_path / "rows.jsonl"
    with path.open("w", encoding="utf-8") as file:
        write_rows(file, some)

    assert list(read_rows(path)) == some


def test_empty_lines_do_not_count(tmp_path):
    """A blank line is no row and no error."""
    path = tmp_path / "rows.jsonl"
    with path.open("w", encoding="utf-8") as file:
        write_rows(file, [make_row()])
        file.write("\n \n")

    assert list(read_rows(path)) == [make_row()]


@pytest.mark.parametrize("line", ["{", "{}\n[1]", "{}", "1", '{"e2e_s": "x"}', "[" * 100_000])
def test_what_is_no_row_is_named_by_its_line(tmp_path, line):
    """The error says which line of which file."""
    path = tmp_path / "rows.jsonl"
    path.write_text(f"\n{line}\n", encoding="utf-8")

    with pytest.raises(DataError, match=r"rows\.jsonl:2: .*jsonl:FILE"):
        read_rows(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    """A missing file is an error of the source, not a traceback."""
    with pytest.raises(SourceError, match="missing"):
        read_rows(tmp_path / "missing")


def test_a_binary_file_is_no_row_file(tmp_path):
    """Bytes that are no text are named by their line, and no traceback."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xff\xfe")

    with pytest.raises(DataError, match=r"rows\.jsonl:1: not a row"):
        read_rows(path)


def test_of_the_folder_of_a_case_the_rows_are_read(tmp_path):
    """Samples of engines and answers lie beside them in JSON lines, and are no rows."""
    with (tmp_path / "rows.jsonl").open("w", encoding="utf-8") as file:
        write_rows(file, [make_row()])
    for name in ("signals.jsonl", "answers.jsonl"):
        (tmp_path / name).write_text('{"t": 1.0}\n')

    assert list(llmtrace.read_rows(tmp_path)) == [make_row()]
