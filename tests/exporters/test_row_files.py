"""Rows that are written to files come back the same, in every form, and show themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmtrace
from llmtrace.core.errors import ConfigError, DataError, SourceError
from llmtrace.core.flat_row import flat_kinds
from llmtrace.core.row import from_dict
from llmtrace.dataset.files import read_columns
from llmtrace.exporters import ExportSettings, build
from llmtrace.exporters.row_files.arrow_table import from_arrow
from llmtrace.exporters.row_files.read_back import Rows, read_rows, read_usable_rows
from llmtrace.testing import FakeClock, capture
from tests.collector.web import serving
from tests.strategies import rows

from .samples import START, typical

NS = 1_000_000_000
SETTINGS = ExportSettings(service="shop")


def written(name, some):
    """Write rows by the exporter of this name, to the end."""
    sink = build(name, SETTINGS)
    for row in some:
        sink.write(row)
    assert sink.flush(60)
    sink.close()


def flat(some):
    """Flatten rows to what files hold."""
    return [row.as_dict() for row in some]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_what_an_exporter_writes_is_read_back(tmp_path, kind):
    """Both exporters and both readers agree on every field, nested ones included."""
    some = [typical(number, attributes={"tier": "gold"}, response_headers={"a": "b"})
            for number in range(3)]  # fmt: skip
    place = tmp_path / ("rows.jsonl" if kind == "jsonl" else "rows")
    written(f"{kind}:{place}", some)
    written(f"{kind}:{place}", [typical(3)])

    back = llmtrace.read_rows(place)

    assert sorted(row.span_id for row in back) == [typical(n).span_id for n in range(4)]
    assert flat(sorted(back, key=lambda row: row.span_id)) == flat([*some, typical(3)])


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_half_a_character_costs_no_row(tmp_path, kind):
    """JSON of a server or client may spell half a character, and that is no UTF-8."""
    place = tmp_path / ("rows.jsonl" if kind == "jsonl" else "rows")
    odd = {"model": "a\ud83d", "route": "é", "attributes": {"\udc00": "b\udc00"}}
    written(f"{kind}:{place}", [typical(0), typical(1, **odd), typical(2)])

    back = sorted(llmtrace.read_rows(place), key=lambda row: row.span_id)

    assert len(back) == 3
    assert (back[1].model, back[1].route, dict(back[1].attributes)) == ("a?", "é", {"?": "b?"})


def test_an_attribute_that_is_no_number_of_json(tmp_path):
    """A line of a file is JSON to every reader, and that has neither NaN nor infinity."""
    place = tmp_path / "rows.jsonl"
    odd = {"nan": float("nan"), "inf": float("-inf"), "one": 1.5}
    written(f"jsonl:{place}", [typical(attributes=odd)])

    line = json.loads(place.read_text(), parse_constant=pytest.fail)

    assert line["attributes"] == {"nan": "nan", "inf": "-inf", "one": 1.5}


@given(st.lists(rows, max_size=4))
def test_any_rows_survive_arrow(some):
    """Every key has its column and every value comes back as it was."""
    pytest.importorskip("pyarrow")
    table = Rows(some).to_arrow()

    assert set(table.column_names) == set(flat_kinds())
    assert [*from_arrow(table)] == json.loads(json.dumps(flat(some)))


def test_a_dataframe():
    """A column each key; durations are floats."""
    pytest.importorskip("pandas")
    frame = Rows([typical()]).to_pandas()

    assert frame["ttft_s"].tolist() == [0.4]
    assert frame["model"].tolist() == ["llama-3.1-8b"]


def test_a_collector_is_read_by_its_address():
    """The rows of an hour, as the collector has them."""
    lines = "".join(json.dumps(one) + "\n" for one in flat([typical(0), typical(1)]))
    with serving({"/api/v1/rows": (200, lines)}) as url:
        assert flat(read_rows(url)) == flat([typical(0), typical(1)])


def test_a_stretch_of_time():
    """`start` is in it, `end` is not."""
    some = flat([replace(typical(n), start=START + n * NS) for n in range(4)])
    at = [datetime.fromtimestamp(START // NS + n, UTC) for n in range(4)]

    assert [row.start for row in read_rows(some, start=at[1], end=at[3])] == [
        START + NS,
        START + 2 * NS,
    ]


def test_what_is_no_row_is_said_with_its_place(tmp_path):
    """A line of a file, a folder without rows, a file that is not there."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(typical().as_dict()) + "\n\n[]\n")
    (tmp_path / "empty").mkdir()

    with pytest.raises(DataError, match=r"rows\.jsonl:3: not a row"):
        read_rows(path)
    with pytest.raises(SourceError, match="contains no file of rows"):
        read_rows(tmp_path / "empty")
    with pytest.raises(SourceError, match="cannot read"):
        read_rows(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("jsonl", "say where to, as in jsonl:rows.jsonl"),
        ("parquet", "say where to, as in parquet:rows"),
        ("jsonl:/nowhere/at/all.jsonl", "cannot write /nowhere/at/all.jsonl"),
        ("parquet:/dev/null/rows", "cannot make /dev/null/rows"),
    ],
)
def test_a_place_that_cannot_be_written_is_said_at_set_up(name, words):
    """Before the first request, not with it."""
    with pytest.raises(ConfigError, match=words):
        build(name, SETTINGS)


def test_an_unfinished_file_is_no_parquet_file(tmp_path):
    """A folder that is read while it is written holds complete files alone."""
    sink = build(f"parquet:{tmp_path}", SETTINGS)
    sink.write(typical())
    assert sink.flush(60)

    assert [path.suffix for path in tmp_path.iterdir()] == [".parquet"]
    sink.close()


def test_two_processes_append_to_one_file(tmp_path):
    """No line of either is torn."""
    path = tmp_path / "rows.jsonl"
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from llmtrace.exporters.row_files.sink import jsonl_sink\n"
        "from llmtrace.testing import make_row\n"
        "sink = jsonl_sink(Path(sys.argv[1]), interval_s=0.001)\n"
        "for number in range(500):\n"
        "    sink.write(make_row(model=sys.argv[2], request_id=str(number)))\n"
        "assert sink.flush(60)\n"
        "sink.close()\n"
    )
    both = [subprocess.Popen([sys.executable, "-c", program, path, name]) for name in "ab"]
    assert [one.wait(60) for one in both] == [0, 0]

    found = read_rows(path)
    for name in "ab":
        own = [row.request_id for row in found if row.model == name]
        assert own == [str(number) for number in range(500)]


# --- in a notebook -------------------------------------------------------------------------------


class _Tags(HTMLParser):
    """Collects the tags and the text of a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.text = set(), ""

    def handle_starttag(self, tag, attrs):
        """Note a tag."""
        self.tags.add(tag)

    def handle_data(self, data):
        """Note text."""
        self.text += data


@given(st.lists(rows, max_size=3))
def test_rows_of_any_text_stay_text(some):
    """Names come from anywhere: none of them is markup."""
    hostile = [replace(row, model="<script>alert(1)</script>", route="&lt;") for row in some]
    for shown in (Rows(hostile)._repr_html_(), *(row._repr_html_() for row in hostile)):
        page = _Tags()
        page.feed(shown)

        assert page.tags <= {"div", "span", "table", "thead", "tbody", "tr", "th", "td"}
        assert not some or "<script>alert(1)</script>" in page.text


def test_a_row_shows_its_stages():
    """What each took and its source; what is not known says so."""
    page = _Tags()
    page.feed(typical()._repr_html_())

    assert "queue120.0 ms5.0%engine_inband" in page.text
    assert "gatewaynot reported" in page.text


def test_a_turn_shows_its_agent_and_tools():
    """The heading names what ran, and `unattributed` its part before the request."""
    clock = FakeClock()

    @llmtrace.tool
    def search(word):
        return word

    with capture(clock=clock) as rows, llmtrace.turn("trip"):
        search("a")
        search("b")
    client = replace(typical().timeline, client=40_000_000)
    page = _Tags()
    page.feed(rows[0]._repr_html_() + typical(timeline=client)._repr_html_())

    assert "invoke_agent  trip  search  success  e2e" in page.text
    assert "client 40.0 ms" in page.text


def test_many_rows_show_the_first():
    """Twenty of them, and how many there are."""
    shown = Rows(typical(number) for number in range(30))._repr_html_()

    assert "30 rows, the first 20 shown" in shown
    assert shown.count("<tr>") == 21
    assert "0 rows" in Rows()._repr_html_()


def test_flat_kinds_are_those_of_rows():
    """Each type is that of the values a row has."""
    kinds = flat_kinds()
    for name, value in typical(attributes={"a": 1}).as_dict().items():
        assert kinds[name] is object or isinstance(value, kinds[name])
    assert from_dict(typical().as_dict()) == typical()


def test_rotated_files_of_a_folder_are_read(tmp_path):
    """By whichever rule they are rotated; files of other names are counted."""
    import gzip

    table = "start,e2e_s\n%d,1\n"
    names = ["rows.csv", "rows.csv.1", "rows.csv.2.gz", "rows.csv-20260131", "rows.jsonl.1"]
    for number, name in enumerate(names):
        text = (table % (START + number)).encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    row = {"start": START + len(names) - 1, "e2e_s": 1.0}
    (tmp_path / names[-1]).write_text(json.dumps(row))
    assert len(read_rows(tmp_path)) == len(read_columns(tmp_path)) == len(names)

    for name in ("gateway.log", "README", ".hidden"):
        (tmp_path / name).write_text("start\n1\n")
    left_out = f"{tmp_path}: 2 of 8 files left out, named as none of .jsonl,"
    assert [one.startswith(left_out) for one in read_columns(tmp_path).warnings] == [True]
    assert [left_out in one for one in read_usable_rows(tmp_path)[1]] == [True]


def test_several_files_are_read_as_one(tmp_path):
    """As those of a folder are."""
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for number, file in enumerate(files):
        file.write_text(f"start,e2e_s\n{START + number},1\n")
    assert len(read_usable_rows(*files)[0]) == len(read_columns(*files)) == len(files)
