"""`llmtrace triage`: its options, its sources, its exit status."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema
import pytest

from llmtrace.cli import main
from llmtrace.core.errors import ConfigError
from llmtrace.dataset.case import Case, Window, read_case, samples_of, write_case
from llmtrace.triage.command import CANNOT_TELL, MOVED, span, time_of, window
from llmtrace.triage.pipeline import Settings
from tests.triage.days import Kind, day

NOW = 1_700_000_000.0
SCHEMA = Path(__file__).parents[2] / "docs" / "on-call" / "triage-result.schema.json"
QUICK = ("--bootstrap", "20")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a case on disk: one replica is slow."""
    write_case(tmp_path / "case", day(after=Kind(slow_replica=6.0)))
    return tmp_path / "case"


def run(*arguments: object) -> int:
    """Run the command."""
    return main(["triage", *map(str, arguments), *QUICK])


def test_what_moved_is_told_by_the_exit_status(tmp_path, folder, capsys):
    """0 nothing moved, 10 something did, 11 the data cannot tell."""
    write_case(tmp_path / "quiet", day())
    write_case(tmp_path / "few", day(n=(20, 20)))

    assert run("--case", folder) == MOVED == 10
    assert run("--case", tmp_path / "quiet") == 0
    assert run("--case", tmp_path / "few") == CANNOT_TELL == 11
    assert "replica=vllm-0" in capsys.readouterr().out


def test_json_is_as_described(folder, capsys):
    """It holds to the schema in docs/, and the parts come to the change."""
    assert run("--case", folder, "--json") == MOVED
    printed = json.loads(capsys.readouterr().out)

    jsonschema.validate(printed, json.loads(SCHEMA.read_text()))
    parts = sum(one["seconds"] for one in printed["contributions"])
    assert parts == pytest.approx(printed["delta_s"], abs=1e-9)
    assert printed["cohorts"][0]["attributes"] == {"replica": "vllm-0"}


def test_what_is_saved_is_the_same_incident(folder, tmp_path, capsys):
    """A saved case, triaged again, gives the same answer."""
    run("--case", folder, "--json")
    first = capsys.readouterr().out
    run("--case", folder, "--save", tmp_path / "saved", "--html", tmp_path / "page.html")
    assert str(tmp_path / "saved") in capsys.readouterr().out.replace("\n", "")
    run("--case", tmp_path / "saved", "--json")

    assert capsys.readouterr().out == first
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_only_some_rows(folder, capsys):
    """`--where` keeps the rows with these words; what no row has is an error that helps."""
    assert run("--case", folder, "--where", "replica=vllm-1", "--where", "replica=vllm-2") == 0
    assert capsys.readouterr().out.startswith("only replica=vllm-1 or vllm-2\n")
    assert run("--case", folder, "--where", "replica=none") == 1
    assert "rows have vllm-0, vllm-1" in capsys.readouterr().err
    assert run("--case", folder, "--where", "colour=red") == 2
    assert "unknown field 'colour': rows are filtered by" in capsys.readouterr().err
    assert run("--case", folder, "--where", "modl=x") == 2
    assert "unknown field 'modl'. Did you mean 'model'?" in capsys.readouterr().err
    assert run("--case", folder, "--where", "model") == 2
    assert "NAME=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--case", "nowhere"), "no such folder"),
        (("--before", "10:00"), "START/END"),
        (("--before", "now/10m"), "does not end after it starts"),
        (("--after", "10m/soon"), "invalid time"),
        (("--at", "noonish"), "invalid time"),
        (("--last", "never"), "invalid time"),
        (("--last", "999999999999d"), "invalid time"),
        (("--at", "9e300"), "invalid time"),
        (("--at", "0001-01-01"), "invalid time"),
        (("--html", "nowhere/x.html"), "--html nowhere/x.html: there is no folder nowhere"),
        (("--url", "ftp://x"), "not an address of a collector"),
        (("--url", "http://u:p@x"), "keep secrets out"),
        (("--url", "http://127.0.0.1:9"), "llmtrace collect"),
        (("--token-file", "nowhere"), "cannot read the token"),
    ],
)
def test_what_is_wrong_is_said(arguments, words, capsys):
    """On one line, with what to write instead."""
    assert run(*arguments) in {1, 2}
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "time_"),
    [
        ("now", NOW),
        ("", NOW),
        ("-30m", NOW - 1800),
        ("1.5h", NOW - 5400),
        ("1699999000", 1_699_999_000.0),
        ("2023-11-14T22:13:20+00:00", NOW),
    ],
)
def test_times(text, time_):
    """Every form of time the help names."""
    assert time_of(text, NOW) == time_


def test_a_time_of_day_is_the_latest_before():
    """`14:30` is of the day that it is then, in local time, or of the day before."""
    at = time.localtime(time_of("14:30", NOW))

    assert (at.tm_hour, at.tm_min) == (14, 30)
    assert 0 <= NOW - time_of("14:30", NOW) < 86_400
    assert time_of("9:05", NOW) == time_of("09:05:00", NOW)


@pytest.mark.parametrize(("text", "hours"), [("14:30Z", 14.5), ("9:30+02:00", 7.5)])
def test_a_time_of_day_may_name_its_zone(text, hours):
    """As alerts and the collector's pages write it."""
    found = time_of(text, NOW)
    assert found % 86_400 == hours * 3600
    assert 0 <= NOW - found < 86_400


def test_a_window_is_two_times():
    """With a slash between."""
    assert window("2h/30m", NOW) == Window(NOW - 7200, NOW - 1800)


def test_the_end_of_a_window_is_the_next_such_time():
    """Of the same day, even if it is not over; else of the day after; but not of days to come."""
    noon = datetime.fromisoformat("2026-01-31T12:00").timestamp()

    def at(text: str) -> float:
        return datetime.fromisoformat(f"2026-{text}").timestamp()

    assert window("11:50/12:10", noon) == Window(noon - 600, noon + 600)
    assert window("23:50/00:10", noon) == Window(at("01-30T23:50"), at("01-31T00:10"))
    assert window("2026-01-25T11:50/12:10", noon) == Window(at("01-25T11:50"), at("01-25T12:10"))
    assert window("2026-01-25T23:50/00:10", noon) == Window(at("01-25T23:50"), at("01-26T00:10"))
    with pytest.raises(ConfigError, match="does not end after"):
        window("11:30/11:00", noon)


def test_times_of_a_case_are_of_its_own_day(folder, capsys):
    """It is of another day than today: `HH:MM` is its latest, and `5m` before its end."""
    case = read_case(folder)
    assert case.after is not None
    inside = datetime.fromtimestamp(case.after.start + 60).astimezone()

    assert run("--case", folder, "--at", f"{inside:%H:%M:%S}") == MOVED
    assert run("--case", folder, "--before", "now/5m") == 2
    assert run("--case", folder, "--at", f"{inside - timedelta(hours=6):%H:%M}") == 2
    assert "they are from 20" in capsys.readouterr().err


def test_what_would_be_ignored_is_refused(folder, capsys):
    """All of a case or a file is searched: `--last` does not count from its end."""
    assert run("--case", folder, "--last", "1h") == 2
    assert "--last is up to now: not with --case or --rows" in capsys.readouterr().err
    assert run("--rows", folder / "rows.jsonl", "--last", "1h") == 2


def test_a_folder_that_is_there_is_not_overwritten(folder, tmp_path, capsys):
    """Neither by a case nor by a load test; an empty one is as good as none."""
    rows = (folder / "rows.jsonl").read_bytes()
    assert run("--case", folder, "--save", folder) == 2
    assert f"--save {folder}: is there already, and not empty" in capsys.readouterr().err
    assert main(["bench", "--requests", "4", "--out", str(folder)]) == 2
    assert f"--out {folder}: is there already, and not empty" in capsys.readouterr().err
    (tmp_path / "new").mkdir()

    assert run("--case", folder, "--save", tmp_path / "new") == MOVED
    assert (folder / "rows.jsonl").read_bytes() == rows


def test_a_file_without_rows_is_said(tmp_path, capsys):
    """Nothing is said of a time, which was not asked for."""
    (tmp_path / "empty.jsonl").write_text("")

    assert run("--rows", tmp_path / "empty.jsonl") == 1
    assert capsys.readouterr().err.endswith("empty.jsonl has no rows\n")


def test_what_is_read_covers_what_is_compared():
    """Both windows, or enough before the one there is to find the other."""
    before, after = Window(NOW - 900, NOW - 600), Window(NOW - 300, NOW)

    assert span(Settings(before=before, after=after), "6h", NOW) == Window(NOW - 900, NOW)
    assert span(Settings(after=after), "1h", NOW) == Window(NOW - 300 - 3600, NOW)
    assert span(Settings(), "1h", NOW) == Window(NOW - 3600, NOW)
    at = span(Settings(at=NOW - 7200), "1h", NOW)
    assert at.start < NOW - 7200 < at.end < NOW
    with pytest.raises(ConfigError, match="how long back"):
        span(Settings(), "0s", NOW)


# --- from a collector ----------------------------------------------------------------------------


class Asked(BaseHTTPRequestHandler):
    """Answers as a collector's read API does, with one case."""

    case: Case
    token: str | None = None
    seen: list[str]
    breaks_off = False

    def do_GET(self) -> None:
        """Answer one question."""
        parts = urlsplit(self.path)
        self.seen.append(self.path)
        if self.token is not None and self.headers.get("Authorization") != f"Bearer {self.token}":
            self._answer(401, b"{}")
            return
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        what = parts.path.removeprefix("/api/v1/")
        if what == "rows":
            start, end = float(query["start"]), float(query["end"])
            body = lines(
                row for row in self.case.rows.to_dicts() if start <= row["start"] / 1e9 < end
            )
            self._answer(200, body[: len(body) // 2 + 7] if self.breaks_off else body)
        elif what == "signals":
            self._answer(200, lines(samples_of(self.case.signals)))
        elif what == "facts":
            self._answer(200, json.dumps({"vllm-0": {"engine": "vllm"}}).encode())
        elif what == "events":
            event = {"t": 1.0, "kind": "deploy", "text": "v2"}
            self._answer(200, json.dumps({"events": [event]}).encode())
        else:
            self._answer(404, b'{"error": "no such address"}')

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def lines(objects: Any) -> bytes:
    """Write one JSON object a line."""
    return "".join(f"{json.dumps(one)}\n" for one in objects).encode()


@contextmanager
def collector(case: Case, **settings: Any) -> Iterator[tuple[str, list[str]]]:
    """Serve a case; yield the address, and what was asked."""
    seen: list[str] = []
    handler = type("Handler", (Asked,), {"case": case, "seen": seen, **settings})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def windows(case: Case) -> tuple[str, ...]:
    """Return the options for the windows of a case."""
    assert case.before is not None
    assert case.after is not None
    return (
        "--before", f"{case.before.start}/{case.before.end}",
        "--after", f"{case.after.start}/{case.after.end}",
    )  # fmt: skip


def test_a_collector_gives_the_same_answer_as_the_case(folder, capsys):
    """Rows over HTTP are the rows on disk."""
    case = read_case(folder)
    run("--case", folder, "--json")
    first = json.loads(capsys.readouterr().out)
    with collector(case) as (url, seen):
        assert run("--url", url, *windows(case), "--json", "--where", "model=m") == MOVED
    second = json.loads(capsys.readouterr().out)

    assert second["contributions"] == first["contributions"]
    assert second["cohorts"] == first["cohorts"]
    assert any("model=m" in path for path in seen)


def test_the_token_goes_along_and_is_not_shown(folder, tmp_path, capsys):
    """Without it the error says what to do; with it there is an answer; it is in no output."""
    case, secret = read_case(folder), "s3cret-token"
    (tmp_path / "token").write_text(f"{secret}\n")
    with collector(case, token=secret) as (url, seen):
        assert run("--url", url, *windows(case)) == 1
        shown = capsys.readouterr()
        assert "--token-file" in shown.err
        assert run("--url", url, *windows(case), "--token-file", tmp_path / "token") == MOVED
    shown = capsys.readouterr()
    assert secret not in shown.out + shown.err + "".join(seen)


def test_an_answer_that_breaks_off_is_no_answer(folder, capsys):
    """Half the rows would be a wrong verdict: it is an error."""
    case = read_case(folder)
    with collector(case, breaks_off=True) as (url, _):
        assert run("--url", url, *windows(case)) == 1
    assert "breaks off" in capsys.readouterr().err


def test_no_rows_is_said(folder, capsys):
    """A time of which the collector has nothing is an error that says where to look."""
    case = read_case(folder)
    with collector(case) as (url, _):
        assert run("--url", url, "--last", "1h") == 1
    assert re.search("has no rows.*llmtrace top", capsys.readouterr().err)


def test_a_report_names_the_command_that_prints_a_runbook(capsys):
    """An installed package has no folder of documents; a misspelt cause names the nearest."""
    assert main(["triage", "runbook", "kv_exhaustion"]) == 0
    assert capsys.readouterr().out.startswith("# KV exhaustion\n")

    assert main(["triage", "runbook", "kv_exhaustio"]) == 2
    assert "did you mean kv_exhaustion?" in capsys.readouterr().err
