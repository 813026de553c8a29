"""CSV as spreadsheets and databases write it: dates, decimal commas, quotes, odd lines."""

import gzip

import numpy as np
import pytest

from llmtrace.cli import main
from llmtrace.core.errors import DataError, SourceError
from llmtrace.dataset.files import read_columns
from llmtrace.exporters.row_files.read_back import read_rows

HALF_PAST_TWO = 1_769_869_800_000_000_000  # 2026-01-31T14:30Z


def read(tmp_path, text, name="rows.csv"):
    """Return the columns of a CSV file of this text."""
    content = text.encode() if isinstance(text, str) else text
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return read_columns(tmp_path / name)


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz", "requests.log", "rows.jsonl.gz"])
def test_numbers_flags_words_and_what_is_not_reported(tmp_path, name):
    """What is empty is not reported; keys that no row has are left out; any name will do."""
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
        "2026-01-31 14:30:00.000000 UTC",
        "31/Jan/2026:15:30:00 +0100",
        "1769869800",
        "1769869800.0",
        "1769869800000",
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


def test_bars_and_a_header_in_upper_case(tmp_path):
    """As databases export them; what is no key of a row keeps its case."""
    columns = read(tmp_path, f"START|TTFT_S|E2E_s|Note\n{HALF_PAST_TWO}|0.25|1.5|a,b;c\n")
    assert columns.numbers["ttft_s"].tolist() == [0.25]
    assert columns.numbers["e2e_s"].tolist() == [1.5]


def test_what_is_odd_is_counted_and_the_rest_is_read(tmp_path):
    """A line with too few fields, a start that is none, a value that is no number."""
    text = f"start,ttft_s,e2e_s\n{HALF_PAST_TWO},fast,2\n1,2\nnoon,1,1\n{HALF_PAST_TWO},0.5,2\n"
    columns = read(tmp_path, text)
    assert columns.numbers["e2e_s"].tolist() == [2.0, 2.0]
    assert np.isnan(columns.numbers["ttft_s"][0])
    assert columns.warnings == (
        "line: not as many fields as the header: 1 line ignored",
        "row: no usable start: 1 row ignored",
        "ttft_s: not a number, as 'fast': 1 value ignored",
    )


@pytest.mark.parametrize(
    ("content", "error", "says"),
    [
        ("when,latency\n1,2\n", DataError, "the first row has when, latency"),
        (
            "start,e2e_s\nnoon,2\n",
            DataError,
            '`start` is "noon", and must be an ISO 8601 .*, or Unix',
        ),
        ("start,e2e_s,e2e_s\n1,2,3\n", DataError, "2 columns are named 'e2e_s'"),
        (b"start,model\n1,\xff\xfe\n", SourceError, "line 2 is no text in UTF-8"),
        (b"PAR1\x15\x04\xff\n\xa5", SourceError, "it is Parquet; its name must end in"),
        ("start\n1\n".encode("utf-16"), SourceError, "it is UTF-16"),
        ("", SourceError, "rows.csv: cannot read it"),
    ],
)
def test_a_file_without_rows_says_what_it_has(tmp_path, content, error, says):
    """Other columns, other bytes, or nothing: one line, whichever reader it is."""
    with pytest.raises(error, match=says):
        read(tmp_path, content)


@pytest.mark.parametrize("odd", ["9999-12-31", "1601-01-01", "0001-01-01", "2262-04-12", "noon"])
def test_a_date_that_no_request_has_costs_its_row_alone(tmp_path, odd):
    """Placeholders of databases for "no date" are beyond 64 bits of nanoseconds."""
    columns = read(tmp_path, f"start,e2e_s\n{odd},1.5\n{HALF_PAST_TWO},2\n")
    assert columns.start.tolist() == [HALF_PAST_TWO]
    assert columns.warnings == ("row: no usable start: 1 row ignored",)


def test_outcomes_may_be_in_upper_case(tmp_path):
    """As enumerations of other programs are written."""
    columns = read(tmp_path, f"start,outcome\n{HALF_PAST_TWO},SUCCESS\n{HALF_PAST_TWO},Error\n")
    assert [columns.words["outcome"].word(i) for i in (0, 1)] == ["success", "error"]
    assert columns.warnings[1:] == ()


@pytest.mark.parametrize("name", ["rows.CSV", "rows.tsv", "rows.Csv.GZ", "rows.tsv.gz"])
def test_a_name_says_what_is_in_a_file(tmp_path, name):
    """In either case of letters; tabs separate as commas do."""
    text = f"start\te2e_s\n{HALF_PAST_TWO}\t2\n"
    content = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name[-2:].lower() == "gz" else content)
    assert read_columns(tmp_path / name).numbers["e2e_s"].tolist() == [2.0]
    assert [row.e2e_s for row in read_rows(tmp_path / name)] == [2.0]


@pytest.mark.parametrize("above", ["sep=;\r\n", "\n\r\n", '"sep=;"\n\n', ";;\n"])
def test_lines_above_the_header(tmp_path, above):
    """Excel states the separator; others leave blank lines."""
    columns = read(tmp_path, f"{above}start;e2e_s\n{HALF_PAST_TWO};2,5\n")
    assert columns.numbers["e2e_s"].tolist() == [2.5]


def test_a_header_alone_is_no_error(tmp_path):
    """As of a query without a result."""
    assert read(tmp_path, "start,e2e_s\n").n == 0


LINE = f"{HALF_PAST_TWO},x,2"


@pytest.mark.parametrize(
    "odd",
    [
        f'{HALF_PAST_TWO},"x,2',
        f'"{HALF_PAST_TWO},x,2',
        f'{HALF_PAST_TWO},x,"2',
        f'{HALF_PAST_TWO},"a""b,2',
    ],
)
@pytest.mark.parametrize("after", [3, 1_500])
@pytest.mark.parametrize("later", [LINE, f'{HALF_PAST_TWO},"y, ""z""",2'])
def test_a_stray_quote_costs_its_line_alone(tmp_path, odd, after, later):
    """Not the lines up to the next quote, or to the end of the file."""
    lines = ["start,model,e2e_s", LINE, odd, *[LINE] * after, later]
    columns = read(tmp_path, "\n".join(lines))
    assert columns.n == after + 2
    assert columns.warnings == ("line: a quote in it does not end: 1 line ignored",)


def test_fields_in_quotes_may_span_lines(tmp_path, monkeypatch):
    """Also across the blocks in which a file is read, and with separators and quotes in them."""
    text = f'start,model,e2e_s\n{HALF_PAST_TWO},"a\n,""b""\r\n\nc","2"\r\n{LINE}\n'
    for size in (7, 30, 1 << 20):
        monkeypatch.setattr("llmtrace.exporters.row_files.forms._BLOCK_BYTES", size)
        columns = read(tmp_path, text)
        assert columns.numbers["e2e_s"].tolist() == [2.0, 2.0]
        assert columns.warnings == ()


def test_a_record_of_several_lines_that_is_no_row_counts_as_so_many(tmp_path):
    """The count is of lines of the file."""
    text = f'start,model,e2e_s\n{HALF_PAST_TWO},"a\nb\nc"\n{LINE}\n'
    assert read(tmp_path, text).warnings == (
        "line: not as many fields as the header: 3 lines ignored",
    )


def test_rows_are_read_one_by_one_too(tmp_path):
    """Numbers, flags and nested values are as in JSON lines."""
    path = tmp_path / "rows.csv"
    path.write_text(
        "start,e2e_s,stream,prompt_tokens,outcome,attributes,notes\n"
        '2026-01-31T14:30:00Z,2.5,True,12,SUCCESS,"{""tier"": ""gold""}",x\n'
        f"{HALF_PAST_TWO},3,0,,,,\n"
    )
    first, second = read_rows(path)
    assert (first.start, first.e2e_s, first.stream) == (HALF_PAST_TWO, 2.5, True)
    assert (first.prompt_tokens, first.outcome) == (12, "success")
    assert first.attributes == {"tier": "gold"}
    assert (second.start, second.prompt_tokens, second.stream) == (HALF_PAST_TWO, None, False)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("noon,2,", r"rows\.csv: row 2: .*start is 'noon', and must be an ISO 8601"),
        ("1,fast,", r"rows\.csv: row 2: .*e2e_s is 'fast', not a number"),
        ("1,2", r"rows\.csv: a line is no row: not as many fields"),
        ("1,2,{", r"rows\.csv: row 2: not a row"),
    ],
)
def test_what_is_no_row_is_refused_where_every_row_counts(tmp_path, line, says):
    """As of JSON lines: with the row, and what is in it."""
    path = tmp_path / "rows.csv"
    path.write_text(f"start,e2e_s,attributes\n1,2,\n{line}\n")
    with pytest.raises(DataError, match=says):
        read_rows(path)


@pytest.mark.parametrize("command", [["waterfall"], ["budget", "suggest"], ["budget", "report"]])
def test_every_command_reads_csv(tmp_path, capsys, command):
    """What triage reads, every command reads."""
    path = tmp_path / "rows.csv"
    lines = [f"2026-01-31T14:30:{n % 60:02},0.9,0.02,3.0" for n in range(200)]
    path.write_text("\n".join(["start,ttft_s,tpot_s,e2e_s", *lines]))
    assert main([*command, str(path)]) == 0
    assert "decode" in (said := capsys.readouterr().out)
    piped = path.rename(tmp_path / "piped")  # as standard input, without a name that says CSV
    assert main([*command, str(piped)]) == 0
    assert capsys.readouterr().out.split() == said.replace("rows.csv", "piped").split()
