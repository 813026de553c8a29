"""How is a command declared, and how is what follows an option read?"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

# What `add_subparsers` returns; argparse has no public name for it.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int | None],
    help_text: str,
    description: str | None = None,
) -> argparse.ArgumentParser:
    """Add a command that `run` does; return its parser, to which its arguments are added."""
    command = commands.add_parser(name, help=help_text, description=description or help_text)
    command.set_defaults(run=run)
    return command


def positive(kind: type[int | float]) -> Callable[[str], float]:
    """Read a number above 0, whole or not as `kind` is."""

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


def point_in_time(text: str) -> datetime:
    """Read a time; without a zone it is this machine's."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        msg = f"{text!r} is not a time such as 2026-11-21T14:00 or 2026-11-21T14:00+01:00"
        raise argparse.ArgumentTypeError(msg) from error


def absolute_path(text: str) -> str:
    """Read a path as from where the command was typed."""
    return str(Path(text).expanduser().absolute())
