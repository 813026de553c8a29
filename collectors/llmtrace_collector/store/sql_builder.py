"""Write a long query as steps, each of which sees the columns of the one before."""

from __future__ import annotations

from collections.abc import Iterable

Column = tuple[str, str]  # a name and its expression


def step(inner: str, *columns: Column) -> str:
    """Add columns to a query, which may use those it has."""
    added = ",\n    ".join(f"{expression} AS {name}" for name, expression in columns)
    return f"SELECT *,\n    {added}\nFROM (\n{inner}\n)"


def replace(inner: str, *columns: Column) -> str:
    """Change columns of a query; every expression sees them as they were before."""
    changed = ",\n    ".join(f"{expression} AS {name}" for name, expression in columns)
    return f"SELECT * REPLACE (\n    {changed})\nFROM (\n{inner}\n)"


def keep(inner: str, names: Iterable[str]) -> str:
    """Drop all columns but these: what a query drags along, its planning pays for."""
    return f"SELECT {', '.join(names)}\nFROM (\n{inner}\n)"


def quoted(text: str) -> str:
    """Return a text as it stands between single quotes."""
    return text.replace("\\", "\\\\").replace("'", "\\'")
