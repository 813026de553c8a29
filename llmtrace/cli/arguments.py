"""Declare the commands and options of commands.toml, whose values these types read."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable, Mapping
from datetime import datetime
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, TypeAlias

from llmtrace.cli.parser import Parser

# What `add_subparsers` returns; argparse has no public name for it.
Commands: TypeAlias = "argparse._SubParsersAction[Parser]"  # noqa: SLF001

COLLECTOR_URL = "http://127.0.0.1:4319"


def declare(parser: Parser, commands: Commands) -> None:
    """Add every command of commands.toml, in the groups that the parser's help lists."""
    text = files("llmtrace.cli").joinpath("commands.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    sections: dict[str, list[str]] = {}
    for name, command in table["commands"].items():
        sections.setdefault(command["section"], []).append(name)
        _add_command(commands, name, command, table["shared"])
    parser.command_groups |= sections


def _add_command(
    commands: Commands, name: str, written: Mapping[str, Any], shared: Mapping[str, Any]
) -> None:
    words = written["help"]
    command = commands.add_parser(
        name,
        help=words,
        description=written.get("description", f"{words[0].upper()}{words[1:]}."),
        examples=written["examples"],
        docs=written.get("docs", "reference/cli.md"),
    )
    command.set_defaults(**dict.fromkeys(written.get("unset", ())), run=_named(written["run"]))
    groups = _Groups(command)
    for shown, argument in written.get("arguments", {}).items():
        settings = shared[argument["use"]] | argument if "use" in argument else argument
        _add_argument(groups, shown, settings)
    if "what" in written:
        metavar = written["what"]
        kinds = command.add_subparsers(
            dest="what", metavar=metavar, required=not metavar.startswith("[")
        )
        for kind, below in written["commands"].items():
            _add_command(kinds, kind, below, shared)


class _Groups(dict[tuple[str | None, bool], Any]):
    """The groups of a command's arguments, made where the first of theirs is added."""

    def __init__(self, command: Parser) -> None:
        super().__init__({(None, False): command})

    def __missing__(self, key: tuple[str | None, bool]) -> Any:
        title, exclusive = key
        if exclusive:
            self[key] = self[title, False].add_mutually_exclusive_group()
        else:
            self[key] = self[None, False].add_argument_group(title)
        return self[key]


def _add_argument(groups: _Groups, shown: str, settings: Mapping[str, Any]) -> None:
    ours = ("use", "group", "either", "inherited", "type")
    given = {key: value for key, value in settings.items() if key not in ours}
    names, _, metavar = shown.replace(", ", ",").partition(" ")
    if metavar:
        given["metavar"] = metavar
    if "type" in settings:
        given["type"] = _TYPES.get(settings["type"]) or _named(settings["type"])
    if settings.get("inherited"):
        given["default"] = argparse.SUPPRESS
    group = groups[settings.get("group"), settings.get("either", False)]
    group.add_argument(*names.split(","), **given)


def _named(name: str) -> Callable[..., Any]:
    """Return what calls a function of `llmtrace.cli` by its name, and imports it only then."""
    module, _, function = name.rpartition(".")

    def call(given: Any) -> Any:
        return getattr(import_module(f"llmtrace.cli.{module}".rstrip(".")), function)(given)

    return call


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


def point_in_time(text: str) -> datetime:
    """Return the time a text names; without a zone it is in this machine's."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        msg = f"{text!r} is not a time such as 2026-11-21T14:00 or 2026-11-21T14:00+01:00"
        raise argparse.ArgumentTypeError(msg) from error


def absolute_path(text: str) -> str:
    """Return a path that is relative to the working directory as an absolute one."""
    return str(Path(text).expanduser().absolute())


_TYPES: Final[Mapping[str, Callable[[str], Any]]] = {
    "path": Path,
    "absolute path": absolute_path,
    "integer": int,
    "number": float,
    "positive integer": positive(int),
    "positive number": positive(float),
    "time": point_in_time,
}
