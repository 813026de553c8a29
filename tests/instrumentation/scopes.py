"""Shared by tests of turns and tools: a sink for spans, and the layout of a trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from llmtrace.core.row import Row
from llmtrace.core.span import Span
from llmtrace.testing import capture


class Spans:
    """A sink that keeps the spans it is handed, as an exporter would send them."""

    every_row = False
    spans = True

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.all: list[Span] = []

    def left_to(self, _provider: Any) -> bool:
        """Leave everything to an application's own provider."""
        return True

    def write(self, item: Row | Span) -> None:
        """Keep one."""
        if isinstance(item, Span):
            self.all.append(item)
        else:
            self.rows.append(item)

    def named(self, name: str) -> Span:
        """Return the one span of a tool."""
        [span] = [span for span in self.all if span.name == f"execute_tool {name}"]
        return span


@contextmanager
def watched(**settings: Any) -> Iterator[tuple[list[Row], Spans]]:
    """Collect rows and spans."""
    spans = Spans()
    with capture(sinks=[spans], **settings) as rows:
        yield rows, spans


def turn_of(rows: Iterable[Row]) -> Row:
    """Return the only turn, whose stages add up."""
    [row] = [row for row in rows if row.is_turn]
    assert row.stages.total == row.e2e_ns
    return row


def figures(row: Row) -> tuple[int | None, float | None, float | None, float | None, float | None]:
    """Return a turn's figures: calls, wall, serial, critical path, loss."""
    return (
        row.tool_calls,
        row.tool_wall_s,
        row.tool_serial_s,
        row.tool_critical_path_s,
        row.tool_serial_loss_s,
    )
