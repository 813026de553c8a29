"""CSV as spreadsheets and databases write it: dates, decimal commas, quotes, odd lines."""

import gzip

import numpy as np
import pytest

from llmtrace.core.errors import DataError, SourceError
from llmtrace.dataset.files import read_columns

HALF_PAST_TWO = 1_769_869_800_000_000_000  # 2026-01-31T14:30Z


def read(tmp_path, text, name="rows.csv"):
    """Return the columns of a CSV file of this text."""
    content = text.encode() if isinstance(text, str) else text
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return read_columns(tmp_path / name)


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_numbers_flags_words_and_what_is_not_reported(tmp_path, name):
    """What is empty is not reported; keys that no row has are left out."""
    text = (
        '\ufeffstart,ttft_s,"model",stream,notes\n'
        f'{HALF_PAST_TWO},0.5,"a, b",true,x\n'
        f"{HALF_PAST_TWO + 1},,,FALSE,y\n"
    )
    assert list(read(tmp_path, text, name).to_dicts()) == [
        {"start": HALF_PAST_TWO, "ttft_s": 0.5, "stream": True, "model": "a, b"},
        {"start": HALF_PAST_TWO + 1, "stream": False},
    ]


@pytest.mark.parametrize(
    "start",
    [
        str(HALF_PAST_TWO),
        "2026-01-31T14:30:00Z",
        "2026-01-31 14:30:00",
        "2026-01-31T15:30:00.000+01:00",
    ],
)
def test_a_start_may_be_a_date(tmp_path, start):
    """With a zone or without: then it is UTC."""
    columns = read(tmp_path, f"start,e2e_s\n{start},1.5\n{HALF_PAST_TWO},2\n")
    assert columns.start.tolist() == [HALF_PAST_TWO] * 2


def test_semicolons_and_decimal_commas(tmp_path):
    """As spreadsheets write them where a comma is the decimal point."""
    columns = read(tmp_path, "start;ttft_s;e2e_s\n2026-01-31 14:30:00;0,25;1,5e1\n")
    assert columns.numbers["ttft_s"][0] == 0.25
    assert columns.numbers["e2e_s"][0] == 15.0


def test_what_is_odd_is_counted_and_the_rest_is_read(tmp_path):
    """A line with too few fields, a start that is none, a value that is no number."""
    text = f"start,ttft_s,e2e_s\n{HALF_PAST_TWO},fast,2\n1,2\nnoon,1,1\n{HALF_PAST_TWO},0.5,2\n"
    columns = read(tmp_path, text)
    assert columns.numbers["e2e_s"].tolist() == [2.0, 2.0]
    assert np.isnan(columns.numbers["ttft_s"][0])
    assert columns.warnings == (
        "line: not as many fields as the header: 1 line kept out",
        "row: no usable start: 1 row kept out",
        "ttft_s: not a number: 1 value kept out",
    )


@pytest.mark.parametrize(
    ("content", "error", "says"),
    [
        ("when,latency\n1,2\n", DataError, "the first row has when, latency"),
        (b"start,model\n1,\xff\xfe\n", SourceError, "rows.csv: cannot read it"),
        ("", SourceError, "rows.csv: cannot read it"),
    ],
)
def test_a_file_without_rows_says_what_it_has(tmp_path, content, error, says):
    """Other columns, other bytes, or nothing."""
    with pytest.raises(error, match=says):
        read(tmp_path, content)


@pytest.mark.parametrize("odd", ["9999-12-31", "1601-01-01", "0001-01-01", "2262-04-12", "noon"])
def test_a_date_that_no_request_has_costs_its_row_alone(tmp_path, odd):
    """Placeholders of databases for "no date" are beyond 64 bits of nanoseconds."""
    columns = read(tmp_path, f"start,e2e_s\n{odd},1.5\n{HALF_PAST_TWO},2\n")
    assert columns.start.tolist() == [HALF_PAST_TWO]
    assert columns.warnings == ("row: no usable start: 1 row kept out",)


def test_outcomes_may_be_in_upper_case(tmp_path):
    """As enumerations of other programs are written."""
    columns = read(tmp_path, f"start,outcome\n{HALF_PAST_TWO},SUCCESS\n{HALF_PAST_TWO},Error\n")
    assert [columns.words["outcome"].word(i) for i in (0, 1)] == ["success", "error"]
    assert columns.warnings[1:] == ()
