"""Do all commands share the version, the list of commands and the exit statuses?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import llmtrace
from llmtrace.__main__ import main as program
from llmtrace.cli import main
from llmtrace.exporters.row_files.sink import write_rows
from llmtrace.testing import make_row


def test_version_is_the_packages(capsys):
    """`llmtrace version` prints the version and nothing else."""
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"llmtrace {llmtrace.__version__}\n"


def test_no_command_shows_which_there_are(capsys):
    """`llmtrace` alone lists the commands, and is no success."""
    assert main([]) == 2
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("demo", "waterfall", "semconv", "version"))


def test_listing_the_commands_loads_none_of_what_they_need():
    """Besides the library and Python's own, only the command line itself is imported for it."""
    program = """
import sys, llmtrace
before = {*sys.modules}
from llmtrace.cli import make_parser
make_parser().format_help()
new = {*sys.modules} - before
print(*(n for n in new if n.partition(".")[0] not in sys.stdlib_module_names))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = done.stdout.split()

    assert loaded
    assert [name for name in loaded if not name.startswith("llmtrace.cli")] == []


def test_a_missing_extra_says_how_to_get_it(monkeypatch, capsys):
    """Without rich the demo names the extra to install; the other commands do without it."""
    for name in [
        one for one in sys.modules if one.startswith(("llmtrace.demo.", "llmtrace.display."))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich.console", None)

    assert main(["demo"]) == 2
    assert "pip install '.[demo]'" in capsys.readouterr().err
    assert main(["version"]) == 0


def test_an_interrupt_is_status_130(monkeypatch, capsys):
    """Ctrl-C ends any command without a traceback."""

    def interrupted(path, name, width):
        raise KeyboardInterrupt

    monkeypatch.setattr("llmtrace.cli.rows.redraw", interrupted)

    assert main(["waterfall", "rows.jsonl"]) == 130
    assert capsys.readouterr().err == "llmtrace: interrupted\n"


def test_an_interrupt_of_an_import_is_quiet(monkeypatch, capsys):
    """Ctrl-C while the command is still loaded prints no traceback either."""

    def interrupted(*_arguments):
        raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "llmtrace.cli")
    monkeypatch.delattr(llmtrace, "cli")
    monkeypatch.setattr("builtins.__import__", interrupted)
    status = program()
    monkeypatch.undo()

    assert status == 130
    assert capsys.readouterr().err == "llmtrace: interrupted\n"


@pytest.mark.skipif(sys.platform == "win32", reason="closes a stream as a POSIX shell does")
@pytest.mark.parametrize("stream", [">&-", "2>&-", ">&- 2>&-"])
def test_a_closed_stream_is_no_traceback(stream, tmp_path):
    """`llmtrace triage >&-` for its exit status alone."""
    with (tmp_path / "rows.jsonl").open("w", encoding="utf-8") as file:
        write_rows(file, [make_row()])
    command = f'"{sys.executable}" -m llmtrace triage --rows rows.jsonl {stream}'
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.stderr == ""
    assert done.returncode == 11


def test_a_waterfall_of_stdin(tmp_path):
    """`-` is rows from a pipe, and no id of a request."""
    with (tmp_path / "rows.jsonl").open("w", encoding="utf-8") as file:
        write_rows(file, [make_row()])
    command = [sys.executable, "-m", "llmtrace", "waterfall", "-"]
    text = (tmp_path / "rows.jsonl").read_text(encoding="utf-8")
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)

    assert "prefill" in done.stdout


def test_a_reader_that_goes_away_is_no_traceback():
    """`llmtrace semconv | head -1` ends quietly."""
    command = [sys.executable, "-m", "llmtrace", "semconv"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        error = process.stderr.read()

    assert error == b""
    assert process.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
@pytest.mark.parametrize(
    "command", ["semconv", "budget report", "waterfall", "--help", "help triage", "--version"]
)
def test_a_full_disk_is_said_on_one_line(command, tmp_path):
    """Without a traceback, whatever prints."""
    words = command.split()
    if command in {"budget report", "waterfall"}:
        with (tmp_path / "rows.jsonl").open("w", encoding="utf-8") as file:
            write_rows(file, [make_row()])
        words.append(str(tmp_path / "rows.jsonl"))
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "llmtrace", *words],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip

    assert done.stderr == "llmtrace: error: cannot write: no space left on device\n"
    assert done.returncode == 1


def test_a_table_in_a_pipe_that_closes_is_no_failure(tmp_path):
    """`llmtrace budget report | head -1`: what rich prints ends as the rest does."""
    with (tmp_path / "rows.jsonl").open("w", encoding="utf-8") as file:
        write_rows(file, [make_row()])
    command = [sys.executable, "-m", "llmtrace", "budget", "report", str(tmp_path / "rows.jsonl")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        error = process.stderr.read()

    assert (process.returncode, error) == (141, b"")
