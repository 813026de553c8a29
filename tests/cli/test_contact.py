"""Do commands say what is wrong once and plainly, and print to pipes what a program can read?"""

from __future__ import annotations

import json
import re

import pytest

from llmtrace.api_clients.http_client import unreachable
from llmtrace.cli import main
from llmtrace.core.errors import SourceError
from tests.dataset.test_one_row_format import FLAT
from tests.support.free_ports import free_port


@pytest.fixture
def rows(tmp_path):
    """Return a file of rows."""
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({**FLAT, "request_id": f"r{number}"}) for number in range(200)]
    path.write_text("\n".join(lines))
    return path


def test_a_report_in_a_pipe_is_neither_cut_nor_padded(rows, capsys):
    """No line ends in blanks, no figure in an ellipsis, and no sentence is broken into lines."""
    assert main(["budget", "report", str(rows)]) == 0
    said = capsys.readouterr().out

    assert len(said) > 200
    assert [line for line in said.splitlines() if line != line.rstrip()] == []
    assert "…" not in said
    assert "100.0%" in said


def test_a_verdict_stands_beside_what_it_is_of(rows, capsys):
    """The stage's own p95 and its interval, and not the request at the p95."""
    assert main(["budget", "report", str(rows)]) == 0
    heading = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("stage"))

    assert re.search(r"p95 request .*stage p95 +95% CI +p95 in budget\?", heading)


@pytest.mark.parametrize("target", ["nonsense", "http:/engine", "engine:", "a b:1", ":8000"])
def test_a_target_that_is_no_address_is_refused(tmp_path, capsys, target):
    """Before anything starts, with the word that is none."""
    folder = str(tmp_path / "data")

    assert main(["collect", "--check", "--data-dir", folder, "--target", target]) == 2
    assert target in capsys.readouterr().err


@pytest.mark.parametrize("target", ["engine:8000", "10.0.0.1:8000", "[::1]:8000", "http://e/m"])
def test_a_host_with_its_port_is_a_target(tmp_path, target):
    """Or a whole address."""
    folder = str(tmp_path / "data")

    assert main(["collect", "--check", "--data-dir", folder, "--target", target]) == 0


def grafana(tmp_path, token: str) -> list[str]:
    """Return the arguments of an import into an address that nothing listens on."""
    port = free_port()
    (tmp_path / "token").write_text(token)
    return ["dashboards", "import", "--url", f"http://127.0.0.1:{port}",
            "--token-file", str(tmp_path / "token")]  # fmt: skip


def test_a_dead_address_is_said_in_one_plain_line(tmp_path, capsys):
    """Without pools, objects, numbers of errors, or a name of a library."""
    assert main(grafana(tmp_path, "glsa_of_a_service_account")) == 1
    said = capsys.readouterr().err

    assert re.fullmatch(
        r"llmtrace: error: .*cannot reach http://127\.0\.0\.1:\d+: connection refused\n", said
    )
    assert not re.search(r"0x|\[Errno|urllib3|Pool", said)


def test_a_token_of_a_letter_is_refused(tmp_path, capsys):
    """Taken out of what is shown, it would take that letter out of every word."""
    assert main(grafana(tmp_path, "x")) == 2
    assert "***" not in capsys.readouterr().err


@pytest.mark.parametrize("command", [["triage", "--rows"], ["waterfall"], ["budget", "report"]])
def test_a_missing_file_is_named_once(tmp_path, capsys, command):
    """And the reason is said without its number."""
    missing = str(tmp_path / "missing.jsonl")

    assert main([*command, missing]) == 1
    said = capsys.readouterr().err
    assert said.count(missing) == 1
    assert "no such file" in said
    assert "[Errno" not in said


def test_the_reason_of_a_failed_connection_is_found_however_deep():
    """An error that holds itself ends the search, and nothing known is said so."""
    loop = SourceError("x")
    loop.__context__ = OSError("y")
    loop.__context__.__context__ = loop

    assert unreachable(loop) == "the connection failed"
