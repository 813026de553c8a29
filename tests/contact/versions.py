"""The versions of other people's packages that the contact suite runs with, as a table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


def versions() -> dict[str, str]:
    """Return the version of each package of requirements.txt, as constraints.txt has it.

    Raises:
        KeyError: one of them is not in there: run `python scripts/install_contact.py --renew`.
    """
    pinned = {
        _normal(name): version
        for name, _, version in (line.partition("==") for line in _lines("constraints.txt"))
    }
    named = (match[0] for line in _lines("requirements.txt") if (match := _NAME.match(line)))
    return {name: pinned[_normal(name)] for name in named}


def markdown() -> str:
    """Draw the table, three packages a line."""
    cells = [f"{name} | {version}" for name, version in sorted(versions().items())]
    cells += [" | "] * (-len(cells) % 3)
    rows = [f"| {' | '.join(cells[i : i + 3])} |" for i in range(0, len(cells), 3)]
    return "\n".join(["| package | version " * 3 + "|", "|---" * 6 + "|", *rows])


def _lines(name: str) -> list[str]:
    lines = (_HERE / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
