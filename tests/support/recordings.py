"""A recording on a clock that a test moves, and the rows it makes."""

from __future__ import annotations

from typing import Final

from llmtrace.core.recording import Recording
from llmtrace.core.request_clock import TEXT
from llmtrace.core.row import Row
from llmtrace.testing import FakeClock

MS: Final = 1_000_000
INFO: Final = {
    "request_id": "lt-1",
    "trace_id": "1" * 32,
    "span_id": "2" * 16,
    "service": "test",
}


class Request:
    """A recording, the clock it runs by, and the rows it made."""

    def __init__(self, start_ns: int = 5 * MS) -> None:
        self.clock = FakeClock(start_ns)
        self.rows: list[Row] = []
        self.recording = Recording(
            lambda _, row: self.rows.append(row),
            dict(INFO),
            clock=self.clock,
            wall=lambda: 7,
        )

    def wait(self, ms: float) -> None:
        """Let milliseconds pass."""
        self.clock.advance(ms / 1000)

    def chunk(self, wait_ms: float, kind: int = TEXT, held_ms: float = 0) -> None:
        """Hold the stream, ask for a chunk, and get one after a wait."""
        self.wait(held_ms)
        self.recording.switch_interval(reading=True)
        self.wait(wait_ms)
        self.recording.switch_interval(reading=False)
        self.recording.event(kind)

    @property
    def row(self) -> Row:
        """The one row that was made."""
        (row,) = self.rows
        return row
