"""When a row started, in each form of file: the same for every reader."""

import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from llmtrace.core.errors import DataError
from llmtrace.core.json_values import start_ns
from llmtrace.dataset import files
from llmtrace.dataset.files import read_columns
from llmtrace.exporters.row_files.read_back import read_rows

HALF_PAST_TWO = 1_769_869_800_000_000_000  # 2026-01-31T14:30Z
AT = datetime(2026, 1, 31, 14, 30, tzinfo=UTC)
DATES = [
    "2026-01-31T14:30:00Z", "2026-01-31 14:30", "2026-01-31T15:30:00.000+01:00",
    "2026-01-31 14:30:00.000000000 +0000 UTC", "2026-01-31 15:30:00 +0100 CET",
    "Sat, 31 Jan 2026 14:30:00 GMT", "[31/Jan/2026:15:30:00 +0100]", "1.7698698E+12",
]  # fmt: skip


@pytest.mark.parametrize("start", [*DATES, str(HALF_PAST_TWO)])
@pytest.mark.parametrize("fast", [True, False])
def test_a_start_of_json_lines_may_be_a_date(tmp_path, monkeypatch, start, fast):
    """Read in blocks or line by line, and row by row."""
    if not fast:
        monkeypatch.setattr(files, "_add_json_fast", lambda _block, _builder: False)
    path = tmp_path / "rows.ndjson"
    path.write_text("".join(json.dumps({"start": start, "e2e_s": 2.0}) + "\n" for _ in range(3)))
    assert read_columns(path).start.tolist() == [HALF_PAST_TWO] * 3
    assert [row.start for row in read_rows(path)] == [HALF_PAST_TWO] * 3


@pytest.mark.parametrize("first", [DATES[0], HALF_PAST_TWO])
def test_dates_and_numbers_in_one_file(tmp_path, first):
    """Whichever is first; what is neither is counted."""
    path = tmp_path / "rows.jsonl"
    starts = [first, DATES[1], HALF_PAST_TWO, None, "noon", True, "9999-12-31"]
    path.write_text("".join(json.dumps({"start": start, "e2e_s": 2.0}) + "\n" for start in starts))
    columns = read_columns(path)
    assert columns.start.tolist() == [HALF_PAST_TWO] * 3
    assert columns.warnings == ("row: no usable start: 4 rows ignored",)


def parquet(path, columns):
    """Write lists as Parquet, typed by their first values."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as file

    file.write_table(pa.table([*columns.values()], names=[*columns]), path)
    return path


def timestamps(unit, *starts):
    """Return an Arrow array of timestamps."""
    pa = pytest.importorskip("pyarrow")
    return pa.array(starts, pa.timestamp(unit))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_parquet(tmp_path, unit):
    """Of every unit, by every reader."""
    path = parquet(tmp_path / "rows.parquet", {"start": timestamps(unit, AT), "e2e_s": [2.0]})
    assert read_columns(path).start.tolist() == [HALF_PAST_TWO]
    assert [row.start for row in read_rows(path)] == [HALF_PAST_TWO]


@pytest.mark.parametrize("start", DATES)
def test_text_in_parquet(tmp_path, start):
    """As another program writes JSON to Parquet; a decimal is a number."""
    columns = {"start": [start], "e2e_s": [Decimal("2.5")]}
    path = parquet(tmp_path / "rows.PARQUET", columns)
    assert read_columns(path).start.tolist() == [HALF_PAST_TWO]
    assert [(row.start, row.e2e_s) for row in read_rows(path)] == [(HALF_PAST_TWO, 2.5)]


@pytest.mark.parametrize("year", [1601, 2300, 9999])
def test_a_timestamp_beyond_nanoseconds_costs_its_row_alone(tmp_path, year):
    """It does not wrap around to another time."""
    starts = timestamps("s", AT, datetime(year, 12, 31, tzinfo=UTC))
    columns = read_columns(parquet(tmp_path / "r.parquet", {"start": starts, "e2e_s": [1.0, 2.0]}))
    assert columns.start.tolist() == [HALF_PAST_TWO]
    assert columns.warnings == ("row: no usable start: 1 row ignored",)


def test_other_kinds_in_parquet(tmp_path):
    """Days and floats are read; what is no time is counted, and nothing is a traceback."""
    days = parquet(tmp_path / "days.parquet", {"start": [date(2026, 1, 31)]})
    assert read_columns(days).start.tolist() == [1_769_817_600_000_000_000]
    floats = parquet(tmp_path / "floats.parquet", {"start": [float(HALF_PAST_TWO), -1.0, 1e300]})
    assert read_columns(floats).start.tolist() == [HALF_PAST_TWO]
    for odd in ([True], [b"x"], [[1]]):
        with pytest.raises(DataError, match="no usable start"):
            read_columns(parquet(tmp_path / "odd.parquet", {"start": odd}))


def test_two_columns_of_one_name_in_parquet(tmp_path):
    """Which is meant is not known."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as file

    path = tmp_path / "rows.parquet"
    file.write_table(pa.table([[1], [2.0], [3.0]], names=["start", "e2e_s", "e2e_s"]), path)
    for read in (read_columns, read_rows):
        with pytest.raises(DataError, match="2 columns are named 'e2e_s'"):
            read(path)


@pytest.mark.parametrize("odd", [None, True, "", "noon", 0, -1, 2**63, float("nan"), "9" * 30])
def test_what_is_no_start(odd):
    """No number of nanoseconds after 1970, and no date."""
    assert start_ns(odd) is None


@pytest.mark.parametrize(
    "start", ["31.01.2026 14:30:00", "01/31/2026 14:30", "2026-01-31 14:30 CET"]
)
def test_a_start_that_may_mean_two_times_is_refused(tmp_path, start):
    """With the form that is read; a zone's letters name several zones."""
    (tmp_path / "rows.csv").write_text(f"start,e2e_s\n{start},1\n")
    with pytest.raises(DataError, match=re.escape(f'is "{start}", and must be an ISO 8601 date')):
        read_columns(tmp_path / "rows.csv")
