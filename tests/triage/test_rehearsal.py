"""A saved incident is played from its alert to its report, by the two commands that do it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest

from llmtrace.cli import main
from llmtrace.core.errors import ConfigError, DataError
from llmtrace.dataset.case import Event, Facts, write_case
from llmtrace.triage.oncall.alert import read_alerts
from llmtrace.triage.oncall.rehearsal import NAME, alert_at, fired_at, rehearse
from tests.support.waiting import until
from tests.triage.days import Kind, day

PATIENCE_S = 90.0


@pytest.fixture(scope="module")
def incident(tmp_path_factory) -> Path:
    """Write a day on which a replica became slow, after a deploy, as a case."""
    slow = day(after=Kind(slow_replica=6.0), n=(2000, 600))
    assert slow.after is not None
    events = (Event(slow.after.start - 30, "deploy", "engine 2.0"),)
    folder = tmp_path_factory.mktemp("saved") / "incident"
    write_case(folder, replace(slow, facts=Facts({}, events)))
    return folder


@contextmanager
def serving(incident: Path, reports: Path) -> Iterator[str]:
    """Run `llmtrace triage serve --case`; yield the address it says that alerts go to."""
    command = [sys.executable, "-m", "llmtrace", "triage", "serve", "--case", str(incident),
               "--listen", "127.0.0.1:0", "--reports", str(reports),
               "--runbooks", "https://docs.example.org/runbooks"]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        lines: SimpleQueue[str] = SimpleQueue()
        assert server.stderr is not None
        thread = threading.Thread(target=lambda: [lines.put(one) for one in server.stderr])
        thread.start()
        try:
            said = lines.get(timeout=PATIENCE_S)
            found = re.search(r"alerts to (\S+),", said)
            assert found, said
            yield found[1]
        finally:
            server.terminate()
            server.wait(PATIENCE_S)
            thread.join(PATIENCE_S)


def test_a_saved_incident_goes_from_its_alert_to_its_report(incident, tmp_path, capsys):
    """The alert is of the incident's time, and the report says what there is to know of it."""
    with serving(incident, tmp_path) as url:
        assert main(["simulate", "--case", str(incident), "--alert", url]) == 0
        path = until(lambda: next(tmp_path.glob("*.json"), None), "no report", PATIENCE_S)
        report = json.loads(path.read_text(encoding="utf-8"))
        assert main(["simulate", "--case", str(incident), "--alert", url]) != 0  # it has a report

    result = report["result"]
    page = path.with_suffix(".html").read_text(encoding="utf-8")
    printed = capsys.readouterr()
    link = f"its report: {url.removesuffix('alerts')}reports/{path.stem}"
    assert link in printed.out
    assert f"this alert has been sent already; {link}" in printed.err
    assert report["alert"]["name"] == NAME
    assert result["verdict"] == "regression"
    assert result["cohorts"][0]["attributes"] == {"replica": "vllm-0"}
    assert result["events"][0]["text"] == "engine 2.0"
    assert abs(result["onset"]["best"] - report["alert"]["started"]) < 300
    assert "engine 2.0" in page


def test_the_alert_is_one_that_an_alertmanager_sends(incident):
    """It reads back as what it was made of."""
    [alert] = read_alerts(json.dumps(alert_at(1_700_000_000.0)).encode())

    assert (alert.name, alert.started, alert.ended) == (NAME, 1_700_000_000.0, None)


def test_an_alert_fires_within_its_incident():
    """Where the case has no windows, too; on a quiet day none would have."""
    slow = day(after=Kind(slow_replica=6.0), n=(2000, 600))
    searched = fired_at(replace(slow, before=None, after=None))

    assert slow.after.start < fired_at(slow) < slow.after.end
    assert slow.after.start - 30 < searched < slow.after.end
    with pytest.raises(DataError, match="no alert would have fired"):
        fired_at(day(windows=False))


@pytest.mark.parametrize("url", ["nowhere", "ftp://x/alerts", "http://", "http://[x"])
def test_an_address_that_is_none_is_said(incident, url, capsys):
    """Before anything is read or sent."""
    with pytest.raises(ConfigError, match="--alert"):
        rehearse(incident, url, None, sys.stdout)
