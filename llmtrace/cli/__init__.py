"""Which commands does `llmtrace` have, and what comes of one?

A module here for each family of commands: it declares their arguments, and calls what does the
work. That is imported only then: a command needs the packages of its own extra alone.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

from llmtrace import __version__
from llmtrace.cli.arguments import add_command
from llmtrace.cli.budget import add_budget
from llmtrace.cli.collector import add_collect, add_doctor, add_quarantine, add_top
from llmtrace.cli.dashboards import add_dashboards
from llmtrace.cli.demo import add_demo
from llmtrace.cli.rows import add_rows, add_semconv, add_waterfall
from llmtrace.cli.simulate import add_simulate
from llmtrace.cli.slo import add_slo
from llmtrace.cli.store import add_migrate, add_schema
from llmtrace.cli.triage import add_triage
from llmtrace.errors import ConfigError, LlmtraceError

__all__ = ["main", "make_parser"]

INTERRUPTED: Final = 130
_VERSION: Final = f"llmtrace {__version__}"
# As `llmtrace --help` lists them.
_COMMANDS: Final = (
    add_demo,
    add_waterfall,
    add_rows,
    add_doctor,
    add_budget,
    add_slo,
    add_dashboards,
    add_collect,
    add_top,
    add_quarantine,
    add_schema,
    add_migrate,
    add_triage,
    add_simulate,
    add_semconv,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0 is success, 1 a failure, 2 a wrong option or setting, 130 an interrupt by Ctrl-C; `triage`
    says with 10 that something moved and with 11 that it cannot tell.

    Args:
        arguments: what follows `llmtrace`; default: the process's own.
    """
    parser = make_parser()
    options = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a bar is no reason to fail.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if options.command is None:
        parser.print_help()
        return 2
    try:
        status: int | None = options.run(options)
        sys.stdout.flush()
    except LlmtraceError as error:
        print(f"llmtrace: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        print("llmtrace: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; what is buffered must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status or 0


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="llmtrace",
        description="Seven stages of a streaming LLM request that add up to what the user waited.",
    )
    parser.add_argument("-V", "--version", action="version", version=_VERSION)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for declare in _COMMANDS:
        declare(commands)
    add_command(commands, "version", _version, "print the version")
    return parser


def _version(options: argparse.Namespace) -> None:
    del options
    print(_VERSION)
