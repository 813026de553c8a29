"""Write shell scripts that complete the commands, options and values of a parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from typing import Final

from llmtrace.cli.parser import Parser

SHELLS: Final = ("bash", "zsh", "fish")

# `path` collects the words before the cursor that name a command.
_BASH: Final = files(__package__).joinpath("completion.bash").read_text(encoding="utf-8")
_ZSH: Final = "autoload -U +X compinit bashcompinit\ncompinit\nbashcompinit\n"
_FISH: Final = files(__package__).joinpath("completion.fish").read_text(encoding="utf-8")
# Where the names are that an option takes, as module and attribute: a parser that knew them would
# have to import what needs an extra.
_NAMES: Final = {
    "demo --fault": ("llmtrace.demo.injected_faults", "FAULTS"),
    "simulate --fault": ("llmtrace.simulator.fleet.faults", "FAULTS"),
    "simulate --shift": ("llmtrace.simulator.fleet.traffic_shifts", "SHIFTS"),
}


@dataclass(frozen=True, slots=True)
class _Command:
    """One command as a shell completes it: its path without `llmtrace`, and its parser."""

    path: str
    parser: Parser

    @property
    def words(self) -> str:
        """Everything that can be typed next, values of options aside."""
        options = [name for option in self.parser.options for name in option.option_strings]
        arguments = [
            str(choice)
            for option in self.parser.options
            if not option.option_strings
            for choice in option.choices or ()
        ]
        return " ".join([*self.parser.commands, *arguments, *options])

    def values(self, option: argparse.Action) -> str:
        """Return the values that an option takes, if they are known."""
        for name in option.option_strings:
            if (place := _NAMES.get(f"{self.path} {name}")) is not None:
                with suppress(ImportError):  # its extra is not installed
                    names: Iterable[str] = getattr(import_module(place[0]), place[1])
                    return " ".join(sorted(names))
        return " ".join(map(str, option.choices or ()))


def completion(parser: Parser, shell: str) -> str:
    """Return the completion script of all commands for a shell, one of `SHELLS`."""
    commands = list(_commands(parser, ""))
    if shell == "fish":
        return _fish(commands)
    return (_ZSH if shell == "zsh" else "") + _bash(commands)


def _commands(parser: Parser, path: str) -> Iterator[_Command]:
    yield _Command(path, parser)
    for name, command in parser.commands.items():
        yield from _commands(command, f"{path} {name}".strip())


def _bash(commands: list[_Command]) -> str:
    values = [
        f"    {'|'.join(_quoted(f'{command.path}:{name}') for name in option.option_strings)}) "
        f'words="{command.values(option)}" ;;'
        for command in commands
        for option in command.parser.options
        if option.option_strings and option.nargs != 0
    ]
    words = [f'      {_quoted(command.path)}) words="{command.words}" ;;' for command in commands]
    return _BASH.format(
        commands="|".join(_quoted(command.path) for command in commands if command.path),
        values="\n".join(values),
        words="\n".join(words),
    )


def _fish(commands: list[_Command]) -> str:
    lines = []
    for command in commands:
        at = f"complete -c llmtrace -n {_quoted(f'__llmtrace_at {_quoted(command.path)}')}"
        lines += [
            f"{at} -f -a {name} -d {_quoted(below.description or '')}"
            for name, below in command.parser.commands.items()
        ]
        lines += [
            f"{at} {_fish_option(option, command.values(option))}"
            for option in command.parser.options
        ]
    known = " ".join(_quoted(command.path) for command in commands if command.path)
    return _FISH.format(commands=known, lines="\n".join(lines))


def _fish_option(option: argparse.Action, values: str) -> str:
    choices = _quoted(values)
    about = f"-d {_quoted((option.help or '').replace('%%', '%'))}"
    if not option.option_strings:
        return f"-a {choices} {about}"
    names = " ".join(
        f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
        for name in option.option_strings
    )
    if option.nargs == 0:
        return f"{names} {about}"
    return f"{names} -x -a {choices} {about}" if values else f"{names} -r {about}"


def _quoted(text: str) -> str:
    """Quote a text for any of the shells."""
    return "'" + text.replace("'", "'\\''") + "'"
