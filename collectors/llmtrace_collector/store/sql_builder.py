"""Build long queries from files of SQL, and from steps that use the columns of the step before."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Final

_FOLDER: Final = files(__package__).joinpath("sql")
_PARAMETER: Final = re.compile(r"\{(\w+)\}")
_COMMENT: Final = re.compile(r"^ *--.*\n", re.MULTILINE)

Column = tuple[str, str]  # a name and its expression


@cache
def _text(name: str) -> str:
    return _COMMENT.sub("", _FOLDER.joinpath(f"{name}.sql").read_text(encoding="utf-8")).strip()


def from_file(name: str, /, **parameters: str) -> str:
    """Return a query of the folder `sql` with its named `{parameters}` filled in.

    Raises:
        KeyError: the query has other parameters than these.
    """
    text = _text(name)
    if names := {*_PARAMETER.findall(text)} ^ parameters.keys():
        raise KeyError(f"{name}.sql: {', '.join(sorted(names))}")
    return _PARAMETER.sub(lambda found: parameters[found[1]], text)


def columns(named: Iterable[Column]) -> str:
    """Write columns as a query selects them."""
    return ",\n    ".join(f"{expression} AS {name}" for name, expression in named)


def step(inner: str, *added: Column) -> str:
    """Add columns to a query; their expressions may use the columns it has."""
    return f"SELECT *,\n    {columns(added)}\nFROM (\n{inner}\n)"


def keep(inner: str, names: Iterable[str]) -> str:
    """Drop all other columns, which would make planning slower."""
    return f"SELECT {', '.join(names)}\nFROM (\n{inner}\n)"


def quoted(text: str) -> str:
    """Return a text as it stands between single quotes."""
    return text.replace("\\", "\\\\").replace("'", "\\'")
