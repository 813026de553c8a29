"""What does an application itself know of its requests?"""

from __future__ import annotations

from llmtrace.core.row import Row


class Kept:
    """A sink that keeps the rows the application itself has."""

    every_row = True

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def write(self, row: Row) -> None:
        """Keep one."""
        self.rows.append(row)
