"""A request is found by its id, in a file and in a collector, drawn and explained."""

from __future__ import annotations

import json

import pytest

from llmtrace.cli import main
from llmtrace.exporters.console.sink import waterfall
from llmtrace.exporters.row_files.sink import write_rows
from tests.collector.web import serving
from tests.dataset.test_explain import peers, request, sample

LATE = request(300, request_id="lt-late", trace_id="c" * 32)


def _lines(objects):
    return "".join(json.dumps(one) + "\n" for one in objects)


@pytest.fixture
def collector():
    """Serve the read API of a collector with one late request and its peers."""
    signals = [sample("waiting", 2, 14.0), sample("waiting", 60, 0.0)]
    pages = {
        "/api/v1/requests/lt-late": (200, json.dumps({"rows": [LATE.as_dict()]})),
        "/api/v1/rows": (200, _lines(row.as_dict() for row in peers())),
        "/api/v1/signals": (200, _lines(signals)),
    }
    with serving(pages) as url:
        yield url


def test_a_request_of_a_collector_is_explained(collector, capsys):
    """The stage, by how much, compared with what, and the engine."""
    assert main(["explain", "lt-late", "--url", collector]) == 0
    printed = capsys.readouterr().out

    assert "Unusual: queue, 300.0 ms where 50.5 ms is usual" in printed
    assert (
        "Beside 100 of the hour before with the same model, route, operation and size" in printed
    )
    assert "Engine engine:8000: waiting 14 (usually 0)" in printed
    assert len(printed.splitlines()) <= 10


def test_as_json(collector, capsys):
    """The same for programs."""
    assert main(["explain", "lt-late", "--url", collector, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert (found["unusual"]["name"], found["peers"]) == ("queue", 100)
    assert found["row"]["request_id"] == "lt-late"


def test_a_request_of_a_file_is_explained(tmp_path, capsys):
    """Without a collector, beside the rows of the same file."""
    path = tmp_path / "rows.jsonl"
    with path.open("w", encoding="utf-8") as file:
        write_rows(file, [*peers(), LATE])

    assert main(["explain", "c" * 32, "--rows", str(path)]) == 0
    assert "Unusual: queue" in capsys.readouterr().out


def test_a_request_of_a_collector_is_drawn(collector, capsys, monkeypatch):
    """`llmtrace waterfall ID --url` draws what `waterfall FILE` would."""
    monkeypatch.setenv("COLUMNS", "90")

    assert main(["waterfall", "lt-late", "--url", collector]) == 0
    assert capsys.readouterr().out == f"request lt-late\n\n{waterfall(LATE, 90)}\n"


def test_without_an_address_it_is_the_collector_of_this_machine(capsys, monkeypatch):
    """What is named as no file is an id, as `explain` and `tail` take it."""
    monkeypatch.setattr("llmtrace.cli.rows.find", lambda collector, name: LATE)
    monkeypatch.setenv("COLUMNS", "90")

    assert main(["waterfall", "lt-late"]) == 0
    assert capsys.readouterr().out == f"request lt-late\n\n{waterfall(LATE, 90)}\n"
    assert main(["waterfall", "late.jsonl"]) == 1
    assert "late.jsonl: cannot read it: no such file" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["explain", "waterfall"])
def test_an_unknown_request_is_said(collector, capsys, command):
    """What the collector does not have is an error, in words."""
    assert main([command, "nothing", "--url", collector]) == 1
    assert "llmtrace: error: " in capsys.readouterr().err


def test_options_that_would_be_ignored_are_refused(collector, capsys):
    """Of a collector there is the one request that was named."""
    assert main(["waterfall", "lt-late", "--url", collector, "--slowest"]) == 2
    assert main(["waterfall", "rows.jsonl", "--token-file", "token"]) == 2
    assert "--url" in capsys.readouterr().err
