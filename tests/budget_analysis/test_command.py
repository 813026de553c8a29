"""What do `llmtrace budget check`, `suggest` and `report` print, write and end with?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmtrace.cli import main
from llmtrace.exporters.row_files.sink import write_rows
from tests.budget_analysis.test_report import QUEUED


@pytest.fixture
def rows_file(tmp_path: Path) -> Path:
    """Write rows, and return where."""
    file = tmp_path / "rows.jsonl"
    with file.open("w") as opened:
        write_rows(opened, QUEUED)
    return file


def test_check_ends_with_1_for_a_contradiction(tmp_path, capsys):
    """A CI job sees the result."""
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps({"total": "1s", "stages": {"queue": "1s"}}))
    bad.write_text(json.dumps({"budgets": [
        {"name": "a", "total": "1s", "stages": {"queue": "2s"}},
        {"name": "b", "total": "1s", "stages": {"queue": "1s"}},
    ]}))  # fmt: skip

    assert main(["budget", "check", str(good)]) == 0
    assert "adds up" in capsys.readouterr().out
    assert main(["budget", "check", str(bad)]) == 1
    printed = capsys.readouterr()
    assert "a: does not add up" in printed.out
    assert "b: adds up" in printed.out
    assert printed.err.endswith("bad.json: does not add up: a\n")
    assert main(["budget", "check", str(tmp_path / "none.json")]) == 2


def test_a_suggested_budget_is_a_budget_file(rows_file, tmp_path, capsys):
    """What is written passes the check, and the report takes it."""
    made = tmp_path / "made.yaml"
    arguments = ["budget", "suggest", str(rows_file), "--total", "3s", "--buffer", "10%"]

    assert main([*arguments, "--route", "chat", "--name", "chat", "--out", str(made)]) == 0
    assert "Why not each stage's own p95" in capsys.readouterr().out
    assert main(["budget", "check", str(made)]) == 0
    assert "chat: adds up (route chat)" in capsys.readouterr().out
    assert main(arguments) == 0
    assert "objective: p95\ntotal: 3000ms\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (["--total", "soon"], 2, "total: 'soon' is not a duration"),
        (["--buffer", "110%"], 2, "--buffer: '110%' is not a share of the total; write 10%"),
        (["--objective", "95"], 2, "objective: '95' is not a quantile"),
        (["--model", "none"], 1, "0 requests succeeded; a p95 has no upper bound"),
        (["--out", "/none/such.yaml"], 1, "/none/such.yaml: cannot be written"),
    ],
)
def test_a_slip_is_reported(rows_file, capsys, arguments, status, expected):
    """With what is wrong and what would do."""
    assert main(["budget", "suggest", str(rows_file), *arguments]) == status
    assert expected in capsys.readouterr().err


def test_the_report_is_json_too(rows_file, tmp_path, capsys):
    """One object for each budget; a file without rows is an error, and no report of nothing."""
    (tmp_path / "empty.jsonl").write_text("")

    assert main(["budget", "report", str(rows_file), "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    [queue] = [one for one in found["stages"] if one["name"] == "queue"]
    assert found["state"] == "over"
    assert queue["state"] == "over"
    assert queue["high_ci_s"][0] > queue["allowed_s"]
    assert main(["budget", "report", str(tmp_path / "empty.jsonl")]) == 1
    assert "empty.jsonl: no rows in it" in capsys.readouterr().err


def test_the_report_is_printed_and_drawn(rows_file, tmp_path, capsys):
    """One command for both; the page is written whole or not at all."""
    drawn = tmp_path / "page.html"

    assert main(["budget", "report", str(rows_file), "--html", str(drawn)]) == 0
    assert "queue eats the budget" in capsys.readouterr().out
    assert drawn.read_text().startswith("<!doctype html>")
    assert main(["budget", "report", str(rows_file), "--html", str(tmp_path / "no" / "x")]) == 1
    assert sorted(one.name for one in tmp_path.iterdir()) == ["page.html", "rows.jsonl"]
