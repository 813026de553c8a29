"""Declare commands, the options several of them share, and the types of option values."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

from llmtrace.cli.parser import Parser
from llmtrace.core.errors import ConfigError

# What `add_subparsers` returns; argparse has no public name for it.
Commands: TypeAlias = "argparse._SubParsersAction[Parser]"  # noqa: SLF001

COLLECTOR_URL = "http://127.0.0.1:4319"
DEFAULT_BUDGET = "default: common targets for a dialogue"


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int | None],
    help_text: str,
    description: str | None = None,
    *,
    examples: Sequence[str],
    docs: str = "reference/cli.md",
) -> Parser:
    """Add a command, and return its parser for the command's own arguments.

    Args:
        commands: where it is added.
        name: what is typed.
        run: does the work; returns the exit status, or `None` for 0.
        help_text: one line in the list of commands.
        description: what its own help says; default: `help_text` as a sentence.
        examples: command lines that its help begins with.
        docs: name of the page of the documentation that its help ends with.
    """
    sentence = f"{help_text[0].upper()}{help_text[1:]}."
    command = commands.add_parser(
        name, help=help_text, description=description or sentence, examples=examples, docs=docs
    )
    command.set_defaults(run=run)
    return command


def add_rows_file(command: argparse.ArgumentParser) -> None:
    """Add the argument ROWS, as `options.file`."""
    command.add_argument("file", type=Path, metavar="ROWS", help="rows: JSON lines, Parquet, CSV")


def add_budget_option(
    command: argparse._ActionsContainer, otherwise: str = DEFAULT_BUDGET
) -> None:
    """Add the option `--budget FILE` to a command."""
    command.add_argument(
        "--budget", type=Path, metavar="FILE", help=f"budget, as YAML or JSON ({otherwise})"
    )


def add_token_file(command: argparse._ActionsContainer, server: str = "server") -> None:
    """Add the option `--token-file FILE` to a command."""
    command.add_argument(
        "--token-file", type=Path, metavar="FILE", help=f"file with the {server}'s token"
    )


def add_collector(command: argparse._ActionsContainer) -> None:
    """Add `--url URL` and `--token-file FILE` of a running collector."""
    command.add_argument(
        "--url", default=COLLECTOR_URL, metavar="URL",
        help=f"address of the collector (default: {COLLECTOR_URL})",
    )  # fmt: skip
    add_token_file(command, "collector")


def add_timeout(command: argparse._ActionsContainer) -> None:
    """Add the option `--timeout SECONDS` to a command."""
    command.add_argument(
        "--timeout", type=positive(float), default=10.0, metavar="S",
        help="timeout of each request, in seconds (default: 10)",
    )  # fmt: skip


def add_json(command: argparse._ActionsContainer, instead_of: str) -> None:
    """Add `--json`, which prints JSON on stdout."""
    command.add_argument("--json", action="store_true", help=f"print JSON instead of {instead_of}")


def positive(kind: type[int | float]) -> Callable[[str], float]:
    """Return a reader of numbers above 0, of whole numbers alone if `kind` is `int`."""

    def read(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            number = 0
        if not 0 < number < float("inf"):
            whole = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {whole} above 0")
        return number

    return read


def not_negative(text: str) -> int:
    """Return the whole number, 0 or more, that a text names."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 0 or more")
    return int(text)


def point_in_time(text: str) -> datetime:
    """Return the time a text names; without a zone it is in this machine's."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        msg = f"{text!r} is not a time such as 2026-11-21T14:00 or 2026-11-21T14:00+01:00"
        raise argparse.ArgumentTypeError(msg) from error


def expect_new_folder(option: str, folder: Path | None) -> None:
    """Raise `ConfigError` if a folder to write is there already, and not empty."""
    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{option} {folder}: is there already, and not empty; name a new folder")


def absolute_path(text: str) -> str:
    """Return a path that is relative to the working directory as an absolute one."""
    return str(Path(text).expanduser().absolute())
