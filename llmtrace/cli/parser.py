"""Format help with examples, and reject what was mistyped with a suggestion."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from llmtrace.core.errors import suggestion

# The folder of the documentation's pages.
DOCS: Final = "docs"


class Parser(argparse.ArgumentParser):
    """A parser whose help begins with examples and ends with a link to the documentation.

    Options are never abbreviated: a new option would change what an old abbreviation means.
    """

    def __init__(
        self, *, examples: Sequence[str] = (), docs: str = "reference/cli.md", **settings: Any
    ) -> None:
        """Make a parser.

        Args:
            examples: command lines, each as it is typed.
            docs: name of the page that describes the command.
            settings: for `argparse.ArgumentParser`.
        """
        super().__init__(allow_abbrev=False, **settings)
        self.examples = tuple(examples)
        self.docs = f"{DOCS}/{docs}"
        self.command_groups: dict[str, Sequence[str]] = {}

    @property
    def commands(self) -> Mapping[str, Parser]:
        """The commands below this one, by name."""
        return {
            name: parser
            for action in self._actions
            if isinstance(action, argparse._SubParsersAction)  # noqa: SLF001
            for name, parser in action.choices.items()
        }

    @property
    def options(self) -> list[argparse.Action]:
        """What can be given to this command, the commands below it aside."""
        return [
            action
            for action in self._actions
            if not isinstance(action, argparse._SubParsersAction)  # noqa: SLF001
        ]

    def format_help(self) -> str:
        """Return the examples, the usage, what it means, and where to read more."""
        examples = "".join(f"  {line}\n" for line in self.examples)
        text = super().format_help()
        return f"Examples:\n{examples}\n{text}{self._grouped_commands()}\nDocs: {self.docs}\n"

    def _grouped_commands(self) -> str:
        listed = {
            entry.dest: entry
            for action in self._actions
            if isinstance(action, argparse._SubParsersAction)  # noqa: SLF001
            for entry in action._get_subactions()  # noqa: SLF001
        }
        formatter = self._get_formatter()
        for title, names in self.command_groups.items():
            formatter.start_section(title)
            formatter.add_arguments([listed[name] for name in names])
            formatter.end_section()
        text = formatter.format_help()
        return f"\n{text}" if text else ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments; what is unknown is an error here, where the usage is the command's."""
        commands = self.commands
        words = sys.argv[1:] if args is None else args
        given = itertools.takewhile(lambda word: word not in commands, words)
        # Else what follows an unknown option is taken for a command.
        wrong = [word for word in given if word.startswith("--") and word != "--"]
        if commands:
            known = self._option_string_actions
            self._reject([word for word in wrong if word.partition("=")[0] not in known])
        options, unknown = super().parse_known_args(args, namespace)
        self._reject(unknown)
        return options, unknown

    def _reject(self, unknown: Sequence[str]) -> None:
        if unknown:
            word = next((word for word in unknown if word.startswith("-")), unknown[0])
            kind = "option" if word.startswith("-") else "argument"
            name = word.partition("=")[0]
            self.error(f"unknown {kind} {name!r}{suggestion(name, self._option_string_actions)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = ", ".join(map(str, action.choices))
        hint = suggestion(str(value), action.choices) or f": use one of {known}"
        if action.nargs != argparse.PARSER:
            raise argparse.ArgumentError(action, f"unknown value {value!r}{hint}")
        if "--case" in self._option_string_actions and Path(value).is_dir():
            hint = f": use --case {value} for the folder of a case"
        elif "--rows" in self._option_string_actions and Path(value).is_file():
            hint = f": use --rows {value} for a file of rows"
        raise argparse.ArgumentError(None, f"unknown command {value!r}{hint}")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write help at once: argparse would ignore that the output cannot be written."""
        if file is None or file is not sys.stdout:
            super()._print_message(message, file)
            return
        file.write(message)
        file.flush()

    def error(self, message: str) -> NoReturn:
        """Print the usage, what is wrong and how to get help; exit with status 2."""
        missing = message.removeprefix("the following arguments are required: ")
        if missing != message:
            message = f"give {' and '.join(map(self._wanted, missing.split(', ')))}"
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: error: {message}\nTry '{self.prog} --help'.\n")

    def _wanted(self, name: str) -> str:
        """Return what is to be given for a missing argument: its name, or its choices."""
        for action in self._actions:
            if name in {action.metavar, action.dest} and action.choices:
                return f"one of {', '.join(map(str, action.choices))}"
        return name
