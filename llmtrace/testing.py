"""Test code that llmtrace records: `capture` its rows, with a clock you move.

Shipped to users: everything here is public.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llmtrace.core.request_clock import Clock
from llmtrace.core.row import Row
from llmtrace.core.stages import Timeline
from llmtrace.instrumentation import registry
from llmtrace.instrumentation.streams import finalize
from llmtrace.runtime import runtime
from llmtrace.runtime.runtime import Runtime

_MS = 1_000_000
# How long a row that the garbage collector has ended may take to its sinks.
_PATIENCE_S = 5.0


class FakeClock:
    """A monotonic clock in nanoseconds that moves only when advanced.

    Example:
        >>> clock = FakeClock()
        >>> clock.advance(0.25)
        >>> clock()
        250000000
    """

    def __init__(self, start_ns: int = 0) -> None:
        self._now = start_ns

    def __call__(self) -> int:
        """Return the time, in nanoseconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward, in seconds."""
        self._now += round(seconds * 1_000_000_000)


class _List:
    every_row = True

    def __init__(self, rows: list[Row]) -> None:
        self.write = rows.append


@contextmanager
def capture(
    *,
    service: str = "test",
    clock: Clock | None = None,
    instrument: Sequence[str] = registry.MODULES,
    sinks: Sequence[Any] = (),
    **settings: Any,
) -> Iterator[list[Row]]:
    """Collect the rows of everything recorded inside, in place of what `init` set up.

    Rows of streams that were finalized are among them once the block is left. `init` inside, as of
    an application that the test starts, is for what comes after it.

    Args:
        service: the rows' service.
        clock: monotonic nanoseconds, such as a `FakeClock`; default: the real one.
        instrument: SDKs to instrument meanwhile, if imported.
        sinks: further sinks the rows go to.
        **settings: other fields of `llmtrace.runtime.runtime.Runtime`.

    Example:
        >>> import llmtrace
        >>> with capture() as rows:
        ...     words = list(llmtrace.wrap(iter(["a", "b"])))
        >>> rows[0].chunks
        2
    """
    rows: list[Row] = []
    if clock is not None:
        settings["clock"] = clock
    before = runtime.capture(Runtime(service=service, sinks=(_List(rows), *sinks), **settings))
    handles = [registry.instrument(module) for module in registry.imported(instrument)]
    try:
        yield rows
    finally:
        for handle in handles:
            handle.undo()
        runtime.capture(before)
        finalize.flush_deferred(_PATIENCE_S)


def fake_stream(
    chunks: Iterable[Any],
    clock: FakeClock,
    gaps: Iterable[float] | float = 0.01,
    error: BaseException | None = None,
) -> Iterator[Any]:
    """Yield chunks as a server would send them, each after its gap in seconds on the fake clock.

    Args:
        chunks: what to yield.
        clock: moved on by each gap.
        gaps: seconds before each chunk, or one value for all.
        error: raised after the last chunk, if given.
    """
    for chunk, gap in zip(chunks, _each(gaps), strict=False):
        clock.advance(gap)
        yield chunk
    if error is not None:
        raise error


async def fake_async_stream(
    chunks: Iterable[Any],
    clock: FakeClock,
    gaps: Iterable[float] | float = 0.01,
    error: BaseException | None = None,
) -> AsyncIterator[Any]:
    """Do the same as `fake_stream`, for `async for`."""
    for chunk in fake_stream(chunks, clock, gaps, error):
        yield chunk


def _each(gaps: Iterable[float] | float) -> Iterator[float]:
    if isinstance(gaps, int | float):
        while True:
            yield gaps
    else:
        yield from gaps


def make_row(**fields: Any) -> Row:
    """Make a row for a test: a 1 s request with 0.2 s to its first content, unless given.

    Example:
        >>> make_row(model="tiny").e2e_s
        1.0
    """
    timeline = fields.pop("timeline", None) or Timeline(e2e=1000 * _MS, ttft=200 * _MS)
    defaults: dict[str, Any] = {
        "request_id": "lt-0000000000000001",
        "trace_id": "0" * 31 + "1",
        "span_id": "0" * 15 + "1",
        "start": 1_700_000_000_000_000_000,
        "service": "test",
    }
    return Row(timeline=timeline, **{**defaults, **fields})
