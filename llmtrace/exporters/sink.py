"""The protocols of sinks: the receivers of finished rows and spans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from llmtrace.core.row import Row
    from llmtrace.core.span import Span


class Sink(Protocol):
    """Anything that takes finished rows. What else a `Receiver` has is optional."""

    def write(self, row: Row) -> None:
        """Take one finished row. Neither blocks nor raises."""


class SpanSink(Protocol):
    """A sink that also takes spans that are no rows: its `spans` is true.

    A sink whose `every_span` is true takes them as well, to count them: also those that the user's
    sampling leaves out or the application's own TracerProvider delivers.
    """

    spans: bool

    def left_to(self, provider: Any) -> bool:
        """Say whether the application's own TracerProvider delivers what this sink would."""

    def write(self, item: Row | Span) -> None:
        """Take one finished row or span. Neither blocks nor raises."""


@dataclass(frozen=True, slots=True)
class Receiver:
    """A sink with everything that a sink may have; a user's own sink needs `write` alone.

    Attributes:
        name: of its class, for messages.
        write: takes a row; also a span, if `spans` or `every_span` is true.
        flush: sends what is queued within so many seconds; returns whether all of it was sent.
        close: flushes and stops, in a bounded time.
        every_row: whether it also takes rows that the sampling leaves out, as counters do.
    """

    name: str
    write: Callable[[Any], None]
    flush: Callable[[float], bool]
    close: Callable[[], None]
    every_row: bool
    every_span: bool
    spans: bool
    left_to: Callable[[Any], bool]


def receiver(sink: Sink) -> Receiver:
    """Return a sink with defaults for what it lacks: nothing to flush, nothing to close."""
    spans = bool(getattr(sink, "spans", False))
    return Receiver(
        name=type(sink).__name__,
        write=sink.write,
        flush=getattr(sink, "flush", lambda _timeout_s: True),
        close=getattr(sink, "close", lambda: None),
        every_row=bool(getattr(sink, "every_row", False)),
        every_span=bool(getattr(sink, "every_span", False)),
        spans=spans,
        left_to=getattr(sink, "left_to", lambda _provider: spans),
    )
