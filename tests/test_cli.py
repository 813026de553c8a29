"""The `llmtrace` command, without its demo."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import llmtrace
from llmtrace import semconv_page
from llmtrace.cli import main
from llmtrace.demo.options import DemoOptions
from llmtrace.export.console import waterfall
from llmtrace.jsonl import write_rows
from llmtrace.testing import make_row
from tests.test_summary import request


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


def test_version_is_the_packages(capsys):
    """`llmtrace version` prints the version and nothing else."""
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"llmtrace {llmtrace.__version__}\n"


def test_semconv_prints_the_page(capsys):
    """`llmtrace semconv` is docs/semconv.md."""
    assert main(["semconv"]) == 0
    assert capsys.readouterr().out == semconv_page.page()


def test_no_command_shows_which_there_are(capsys):
    """`llmtrace` alone lists the commands, and is no success."""
    assert main([]) == 2
    told = capsys.readouterr().out
    assert all(name in told for name in ("demo", "waterfall", "semconv", "version"))


@pytest.mark.parametrize("options", [[], ["--slowest"]])
def test_waterfall_draws_the_slowest(saved, capsys, monkeypatch, options):
    """Without an id it is the request that took longest."""
    path, some = saved
    monkeypatch.setenv("COLUMNS", "90")

    assert main(["waterfall", str(path), *options]) == 0
    assert capsys.readouterr().out == f"the slowest of 3 requests\n\n{waterfall(some[1], 90)}\n"


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
        ("[]", [], "rows.jsonl:1: not a row"),
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


@pytest.mark.parametrize(
    "options",
    [
        ["--seconds", "0"],
        ["--seconds", "inf"],
        ["--seconds", "soon"],
        ["--requests", "1.5"],
        ["--concurrency", "-1"],
        ["--vllm", "--endpoint", "http://127.0.0.1:1/v1"],
    ],
)
def test_options_that_cannot_be_are_refused(options, capsys):
    """A wrong number or combination is status 2, with the usage."""
    with pytest.raises(SystemExit, match="2"):
        main(["demo", *options])
    assert "usage: llmtrace demo" in capsys.readouterr().err


def test_demo_is_called_with_its_options(monkeypatch, tmp_path):
    """Every option of the command reaches the one function it calls."""
    seen = []
    monkeypatch.setattr("llmtrace.demo.run.run", seen.append)
    text = "--endpoint http://h/v1 --model m --api-key-env K --seconds 2.5 --requests 7"
    files = ["--budget", str(tmp_path / "b"), "--json", str(tmp_path / "j")]

    assert main(["demo", *text.split(), "--concurrency", "3", *files]) == 0
    assert seen == [
        DemoOptions(
            endpoint="http://h/v1",
            model="m",
            api_key_env="K",
            seconds=2.5,
            requests=7,
            users=3,
            budget=tmp_path / "b",
            json=tmp_path / "j",
        )
    ]


def test_a_missing_extra_says_how_to_get_it(monkeypatch, capsys):
    """Without rich the demo names the extra to install; the other commands do without it."""
    for name in [one for one in sys.modules if one.startswith("llmtrace.demo.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich.console", None)

    assert main(["demo"]) == 2
    assert "pip install '.[demo]'" in capsys.readouterr().err
    assert main(["version"]) == 0


def test_an_interrupt_is_status_130(monkeypatch, capsys):
    """Ctrl-C ends any command without a traceback."""

    def interrupted(path, name, width):
        raise KeyboardInterrupt

    monkeypatch.setattr("llmtrace.redraw.redraw", interrupted)

    assert main(["waterfall", "rows.jsonl"]) == 130
    assert capsys.readouterr().err == "llmtrace: interrupted\n"


def test_a_reader_that_goes_away_is_no_traceback():
    """`llmtrace semconv | head -1` ends quietly."""
    command = [sys.executable, "-m", "llmtrace", "semconv"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        error = process.stderr.read()

    assert error == b""
    assert process.returncode == 1


def test_a_terminal_without_bars_still_gets_the_figures(saved):
    """An ASCII terminal shows question marks for what it cannot draw."""
    path, _ = saved
    command = [sys.executable, "-m", "llmtrace", "waterfall", str(path)]
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(command, env=ascii_only, capture_output=True, check=True)

    assert b"900.0 ms" in done.stdout
