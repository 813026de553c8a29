"""What do `llmtrace budget check`, `suggest` and `report` print, write and end with?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmtrace import read_rows
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
        (["--model", "none"], 1, "none of the 200 requests has this model and route"),
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


def log(path, count=400, **more):
    """Write a service's own log: one in fifty times out, and little else is reported."""
    rows = (
        {"start": 1_790_000_000 + n, "request_id": str(n), "ttft_s": 0.2 + n / 1000,
         "e2e_s": 2.0 + n * 7 % 400 / 1000, "http_status": 504 if n % 50 == 0 else 200} | more
        for n in range(count)
    )  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_status_shows_which_requests_failed(tmp_path, capsys):
    """Without an outcome, as triage reads it."""
    assert main(["budget", "report", log(tmp_path / "log.jsonl")]) == 0
    assert "400 requests: 392 success, 8 error" in capsys.readouterr().out


def test_a_first_content_after_the_end_is_refused(tmp_path, capsys):
    """Milliseconds in one column of two."""
    assert main(["budget", "report", log(tmp_path / "log.jsonl", ttft_s=900)]) == 1
    assert "ttft_s is 900 s, longer than e2e_s of 2 s" in capsys.readouterr().err


def test_what_follows_an_unknown_first_content_is_not_reported(tmp_path, capsys):
    """Rows of e2e alone: there is no decode of 0 s, and no limit for it or for TTFT."""
    path = log(tmp_path / "log.jsonl", ttft_s=None)
    assert main(["budget", "report", path]) == 0
    decode = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("decode"))
    assert "not reported" in decode
    assert main(["budget", "suggest", path]) == 0
    said = capsys.readouterr().out
    assert "ttft:" not in said
    assert "decode:" not in said


def test_a_ttft_that_stands_for_stages_is_explained(tmp_path, capsys):
    """All adds up, so it is less than its own quantile."""
    assert main(["budget", "suggest", log(tmp_path / "log.jsonl")]) == 0
    assert "ttft stands for the stages before the first content" in capsys.readouterr().out


def test_rows_count_by_their_weight_and_once(tmp_path, capsys):
    """A sample that keeps all slow requests, joined to itself."""
    file = tmp_path / "log.jsonl"
    lines = log(file, 400) and file.read_text().splitlines()
    kept = [json.dumps(json.loads(line) | {"weight": 1 if n >= 380 else 10})
            for n, line in enumerate(lines) if n >= 380 or n % 10 == 1]  # fmt: skip
    file.write_text("\n".join([*kept, *kept]))

    assert main(["budget", "report", str(file)]) == 0
    said = capsys.readouterr().out
    assert f"{len(kept)} repeated rows count once" in said
    drawn = int(said.partition(" rows are drawn, by")[0].rpartition("Note:")[2].split()[0])
    assert 38 <= drawn <= 48  # the 38 of weight 10, and a tenth of the 20 others

    assert main(["budget", "report", str(file), "--json", "--html", str(tmp_path / "x")]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert len(found["notes"]) == 2
    page = (tmp_path / "x").read_text()
    assert all(note in page for note in found["notes"])


def test_a_wait_below_zero_is_not_reported_and_milliseconds_are_doubted(tmp_path, capsys):
    """Many a log writes -1 for what it does not know; and durations in another unit."""
    rows = [{"start": 1_795_862_303 + n, "e2e_s": 2_000.0 + n, "ttft_s": -1} for n in range(300)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    assert read_rows(path)[0].ttft_s is None
    assert main(["budget", "report", str(path)]) == 0
    said = capsys.readouterr().out
    assert "e2e_s is 2,278 s at the median: are these milliseconds?" in " ".join(said.split())
    assert not any(line.startswith("ttft ") and "-1" in line for line in said.splitlines())
