"""Write shell scripts that complete the commands, options and values of a parser."""

from __future__ import annotations

import argparse
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

from llmtrace.cli.parser import Parser
from llmtrace.core.errors import missing_extra

SHELLS: Final = ("bash", "zsh", "fish")
# Where the names are that an option takes, as module and attribute: a parser that knew them would
# have to import what needs an extra.
_NAMES: Final = {
    "demo --fault": ("llmtrace.demo.injected_faults", "FAULTS"),
    "simulate --fault": ("llmtrace.simulator.fleet.faults", "FAULTS"),
    "simulate --shift": ("llmtrace.simulator.fleet.traffic_shifts", "SHIFTS"),
}


def completion(parser: Parser, shell: str) -> str:
    """Return the completion script of all commands for a shell, one of `SHELLS`.

    Raises:
        ConfigError: `shtab` is not installed.
    """
    try:
        import shtab
    except ImportError as error:
        raise missing_extra("llmtrace completion", "triage", "shtab") from error
    for option in parser.commands["help"].options:
        option.choices = [*parser.commands] if option.dest == "words" else None
    _describe(parser, "", {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY})
    script: str = shtab.complete(parser, shell)
    return script


def _describe(parser: Parser, path: str, files: dict[str, Any]) -> None:
    """Add to a parser of completions what its options take, and to those of its commands."""
    for option in parser.options:
        if option.metavar in files:
            option.complete = files[option.metavar]  # type: ignore[attr-defined]
        for name in option.option_strings:
            with suppress(KeyError, ImportError):  # it takes any, or its extra is not installed
                module, names = _NAMES[f"{path} {name}"]
                option.choices = sorted(getattr(import_module(module), names))
    for name, command in parser.commands.items():
        _describe(command, f"{path} {name}".strip(), files)
    for action in parser._actions:  # noqa: SLF001 - a group without help is left out
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            action.help = "command"
