"""The protocols of sinks: the receivers of finished rows and spans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from llmtrace.core.row import Row
    from llmtrace.core.span import Span


class Sink(Protocol):
    """Anything that takes finished rows.

    Attributes:
        every_row: whether it also wants the rows that the user's sampling leaves out, as whatever
            counts requests does.
    """

    every_row: bool

    def write(self, row: Row) -> None:
        """Take one finished row. Neither blocks nor raises."""

    def flush(self, timeout_s: float) -> bool:
        """Send what is held back; return whether all of it went within `timeout_s`."""

    def close(self) -> None:
        """Flush and stop, within a bounded time. Later rows are dropped, and counted."""


class SpanSink(Protocol):
    """What takes spans that are no rows, too: a sink whose `spans` is true.

    So does one whose `every_span` is: it counts them, and gets those that the user's sampling or
    the application's own TracerProvider takes from the others, as well.
    """

    spans: bool

    def left_to(self, provider: Any) -> bool:
        """Say whether the application's own TracerProvider delivers what this sink would."""

    def write(self, item: Row | Span) -> None:
        """Take one finished row or span. Neither blocks nor raises."""
