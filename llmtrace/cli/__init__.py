"""Run the `llmtrace` command line.

Each module declares one family of commands and imports what does the work only when a command
runs, so that a command needs the packages of its own extra alone.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from llmtrace import __version__
from llmtrace.cli.arguments import Commands, add_command
from llmtrace.cli.bench import add_bench
from llmtrace.cli.budget import add_budget
from llmtrace.cli.collector import add_collect, add_doctor, add_quarantine, add_top
from llmtrace.cli.compare import add_compare
from llmtrace.cli.completion import SHELLS, completion
from llmtrace.cli.dashboards import add_dashboards
from llmtrace.cli.demo import add_demo
from llmtrace.cli.explain import add_explain
from llmtrace.cli.kv import add_kv
from llmtrace.cli.parser import Parser
from llmtrace.cli.rows import add_rows, add_semconv, add_waterfall
from llmtrace.cli.simulate import add_simulate
from llmtrace.cli.slo import add_slo
from llmtrace.cli.store import add_migrate, add_schema
from llmtrace.cli.tail import add_tail
from llmtrace.cli.triage import add_triage
from llmtrace.core.errors import ConfigError, LlmtraceError, explain_error

__all__ = ["main", "make_parser"]

INTERRUPTED: Final = 130
_PIPE_CLOSED: Final = 141
_VERSION: Final = f"llmtrace {__version__}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0 is success, 1 a failure, 2 a wrong option or setting, 130 an interrupt by Ctrl-C; `triage`
    returns 10 when something moved and 11 when the data cannot show it. 141 is a reader of the
    output that went away, as `head` does: what a shell reports of other programs then.

    Args:
        arguments: what follows `llmtrace`; default: the process's own.
    """
    _replace_closed_streams()
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except LlmtraceError as error:
        print(f"llmtrace: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        print("llmtrace: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return _PIPE_CLOSED
    except OSError as error:
        # What is written to files says which: this is the output, on a full disk for example.
        _drop_output()
        print(f"llmtrace: error: cannot write: {explain_error(error)}", file=sys.stderr)
        return 1
    return status or 0


def _replace_closed_streams() -> None:
    """Discard what is printed to a stream that was closed before the start, as by `>&-`."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123


def _run(arguments: Sequence[str] | None) -> int | None:
    parser = make_parser()
    options = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a bar is no reason to fail.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if options.command is None:
        parser.print_help()
        return 2
    status: int | None = options.run(options)
    return status


def _drop_output() -> None:
    """Discard buffered output: writing it must not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def make_parser() -> Parser:
    """Make the parser of all commands."""
    parser = Parser(
        prog="llmtrace",
        usage="llmtrace [-h] [-V] COMMAND ...",
        description="Seven stages of a streaming LLM request that add up to what the user waited.",
        examples=(
            "llmtrace demo",
            "llmtrace collect --target http://engine:8000/metrics",
            "llmtrace triage --last 1h",
            "llmtrace help triage",
        ),
    )
    parser.add_argument("-V", "--version", action="version", version=_VERSION)
    # Not listed as one group: `command_groups` lists them.
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", help=argparse.SUPPRESS, prog="llmtrace"
    )
    for title, adders in _GROUPS.items():
        before = len(commands.choices)
        for add in adders:
            add(commands)
        parser.command_groups[title] = list(commands.choices)[before:]
    return parser


def _add_help(commands: Commands) -> None:
    command = add_command(
        commands, "help", _help, "print the help of a command",
        examples=("llmtrace help", "llmtrace help triage", "llmtrace help budget suggest"),
    )  # fmt: skip
    command.add_argument("words", nargs="*", metavar="COMMAND", help="command (default: all)")


def _help(options: argparse.Namespace) -> None:
    make_parser().parse_args([*options.words, "--help"])


def _add_completion(commands: Commands) -> None:
    command = add_command(
        commands,
        "completion",
        _completion,
        "print a shell's completion script",
        "Print a script that completes commands, options and their values in a shell. It needs "
        "the extra triage or collector.",
        examples=(
            "source <(llmtrace completion bash)",
            "source <(llmtrace completion zsh)",
            "llmtrace completion fish > ~/.config/fish/completions/llmtrace.fish",
        ),
        docs="reference/cli.md#completion",
    )
    command.add_argument("shell", choices=SHELLS, help="shell that runs the script")


def _completion(options: argparse.Namespace) -> None:
    print(completion(make_parser(), options.shell), end="")


def _add_version(commands: Commands) -> None:
    add_command(commands, "version", _version, "print the version", examples=("llmtrace version",))


def _version(options: argparse.Namespace) -> None:
    del options
    print(_VERSION)


# As `llmtrace --help` lists them.
_GROUPS: Final[Mapping[str, Sequence[Callable[[Commands], None]]]] = {
    "Start": (add_demo, _add_help),
    "Look": (add_waterfall, add_rows, add_tail, add_top),
    "Investigate": (add_triage, add_explain, add_budget, add_doctor),
    "Measure a change": (add_bench, add_compare, add_kv),
    "Operate": (add_collect, add_dashboards, add_slo, add_schema, add_migrate, add_quarantine),
    "Develop": (add_simulate, add_semconv, _add_completion, _add_version),
}
