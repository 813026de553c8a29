"""Are rows drawn that a file holds, and is what their spans carry printed?"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from llmtrace.cli import main
from llmtrace.exporters.console.sink import waterfall
from llmtrace.exporters.row_files.sink import write_rows
from llmtrace.semconv import docs
from llmtrace.testing import make_row
from tests.dataset.test_summary import request


@pytest.fixture
def saved(tmp_path):
    """Return a file of three rows; the second is the slowest."""
    path = tmp_path / "rows.jsonl"
    some = [
        request(request_id="lt-1", response_id="chatcmpl-1", trace_id="a" * 32),
        request(request_id="lt-2", response_id="chatcmpl-2", trace_id="b" * 32, e2e_ms=900),
        request(request_id="lt-3", attributes={"simulated": True}),
    ]
    with path.open("w", encoding="utf-8") as file:
        write_rows(file, some)
    return path, some


def test_semconv_prints_the_page(capsys):
    """`llmtrace semconv` is docs/reference/semconv.md."""
    assert main(["semconv"]) == 0
    assert capsys.readouterr().out == docs.page()


@pytest.mark.parametrize("options", [[], ["--slowest"]])
def test_waterfall_draws_the_slowest(saved, capsys, monkeypatch, options):
    """Without an id it is the request that took longest."""
    path, some = saved
    monkeypatch.setenv("COLUMNS", "90")

    assert main(["waterfall", str(path), *options]) == 0
    assert capsys.readouterr().out == f"the slowest of 3 requests\n\n{waterfall(some[1], 90)}\n"


def test_a_single_request_is_named(saved, tmp_path, capsys):
    """It is the slowest of nothing."""
    _, some = saved
    path = tmp_path / "one.jsonl"
    with path.open("w", encoding="utf-8") as file:
        write_rows(file, some[:1])

    assert main(["waterfall", str(path)]) == 0
    assert capsys.readouterr().out.startswith("request lt-1\n")


@pytest.mark.parametrize("name", ["lt-1", "chatcmpl-1", "a" * 32])
def test_waterfall_finds_a_request_by_any_of_its_ids(saved, capsys, name):
    """The request's, the response's and the trace's id all name it."""
    path, some = saved

    assert main(["waterfall", str(path), "--request", name]) == 0
    assert waterfall(some[0], 80) in capsys.readouterr().out


def test_waterfall_says_what_is_simulated(saved, capsys):
    """A row of the simulated engine says so wherever it is shown."""
    path, _ = saved

    assert main(["waterfall", str(path), "--request", "lt-3"]) == 0
    assert "SIMULATED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        ("", [], "no rows"),
        ("[]", [], "no rows"),
        ("[1]", [], "rows.jsonl:1: not a row"),
        ("{}", [], "rows.jsonl:1: not a row: 'e2e_s' is missing"),
        ('{"a": "b', [], "rows.jsonl:1: not a row: no JSON, or cut off"),
        (json.dumps(make_row().as_dict()), ["--request", "lt-9"], "'lt-9'"),
    ],
)
def test_waterfall_says_what_is_wrong(tmp_path, capsys, content, options, words):
    """A bad file or id is one line on stderr and status 1."""
    path = tmp_path / "rows.jsonl"
    path.write_text(content, encoding="utf-8")

    assert main(["waterfall", str(path), *options]) == 1
    error = capsys.readouterr().err
    assert error.startswith("llmtrace: error: ")
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("command", ["waterfall", "explain", "budget"])
def test_a_line_that_is_no_row_does_not_hide_the_others(saved, capsys, command):
    """A line cut off by a crash is left out, and a note says which."""
    path, some = saved
    with path.open("a") as file:
        file.write('{"start": 17')
    arguments = {
        "waterfall": ["waterfall", str(path)],
        "explain": ["explain", "lt-1", "--rows", str(path)],
        "budget": ["budget", "report", str(path)],
    }

    assert main(arguments[command]) == 0
    said = "".join(capsys.readouterr()).replace("\n", "").replace(" ", "")
    assert f"1lineleftout,thefirst:{path}:{len(some) + 1}:notarow" in said


def test_a_record_cut_off_inside_a_quote_is_noted(saved, tmp_path, capsys):
    """Also the last one of CSV, which ends no line."""
    path = tmp_path / "rows.csv"
    path.write_text('start,e2e_s,route\n1795873777000000000,1.5,a\n1795873778000000000,1.5,"b')

    assert main(["waterfall", str(path)]) == 0
    assert "1 line left out" in capsys.readouterr().err


def test_another_log_is_not_read_to_its_end(tmp_path, capsys):
    """Of a thousand lines without a row, the first says what is wrong."""
    path = tmp_path / "rows.jsonl"
    path.write_text("GET /\n" * 1_000 + json.dumps(make_row().as_dict()))

    assert main(["waterfall", str(path)]) == 1
    assert "rows.jsonl:1: not a row" in capsys.readouterr().err


def test_a_terminal_without_bars_still_gets_the_figures(saved):
    """An ASCII terminal shows question marks for what it cannot draw."""
    path, _ = saved
    command = [sys.executable, "-m", "llmtrace", "waterfall", str(path)]
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(command, env=ascii_only, capture_output=True, check=True)

    assert b"900.0 ms" in done.stdout
