"""Do all commands share the version, the list of commands and the exit statuses?"""

from __future__ import annotations

import subprocess
import sys

import llmtrace
from llmtrace.cli import main


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


def test_a_reader_that_goes_away_is_no_traceback():
    """`llmtrace semconv | head -1` ends quietly."""
    command = [sys.executable, "-m", "llmtrace", "semconv"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        error = process.stderr.read()

    assert error == b""
    assert process.returncode == 1
