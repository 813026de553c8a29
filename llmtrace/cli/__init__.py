"""Run the `llmtrace` command line.

commands.toml declares the commands. A command's module is imported when it runs, and then imports
what does the work, so that a command needs the packages of its own extra alone.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

from llmtrace import __version__
from llmtrace.cli.arguments import declare
from llmtrace.cli.completion import completion
from llmtrace.cli.parser import Parser
from llmtrace.core.errors import ConfigError, LlmtraceError

__all__ = ["main", "make_parser"]

INTERRUPTED: Final = 130
_VERSION: Final = f"llmtrace {__version__}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0 is success, 1 a failure, 2 a wrong option or setting, 130 an interrupt by Ctrl-C; `triage`
    returns 10 when something moved and 11 when the data cannot show it.

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
        # The program that read our output has gone; the buffered rest must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status or 0


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
    declare(parser, commands)
    return parser


def run_help(options: argparse.Namespace) -> None:
    """Print the help of a command."""
    make_parser().parse_args([*options.words, "--help"])


def run_completion(options: argparse.Namespace) -> None:
    """Print the completion of a shell."""
    print(completion(make_parser(), options.shell), end="")


def run_version(options: argparse.Namespace) -> None:
    """Print the version of this llmtrace."""
    del options
    print(_VERSION)
