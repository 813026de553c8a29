"""Queue rows, so that exporting never delays the application's thread.

A bounded queue and one worker. Rows are handed over in batches; what does not fit is dropped and
counted, and a backend that hangs costs rows, never the application.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from llmtrace.core.failopen import count_internal, internal_error, rows_dropped
from llmtrace.exporters.worker import EXIT_LIMIT_S, Worker

T = TypeVar("T")


class RowsLost(Exception):  # noqa: N818 - what happened to the rows
    """Raised by `deliver` when only some rows of a batch were lost; any other error loses all."""

    def __init__(self, reason: str, rows: int) -> None:
        super().__init__(reason)
        self.rows = rows


class QueuedSink(Generic[T]):
    """A sink that hands its rows, or rows and spans, to `deliver` in batches, on its own thread.

    The thread is not woken for each row: it looks every `interval_s`, or when a batch is full.

    Args:
        name: what drops (`<name>.dropped`) and failures (`<name>`) are counted under.
        deliver: sends a batch; may block, and may raise, which drops the batch (or a part of it:
            `RowsLost`).
        capacity: the number of rows that may wait; further ones are dropped.
        batch: the largest number of rows given to `deliver` at once.
        interval_s: the longest that a row waits for its batch to fill, in seconds.
        spans: whether `deliver` writes spans; see `SpanSink`.
        left_to: see `SpanSink`.
    """

    __slots__ = (
        "_batch", "_capacity", "_deliver", "_dropped", "_failed", "_given_up", "_rows", "_sending",
        "_worker", "left_to", "spans",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        deliver: Callable[[Sequence[T]], None],
        capacity: int = 10_000,
        batch: int = 512,
        interval_s: float = 1.0,
        *,
        spans: bool = False,
        left_to: Callable[[Any], bool] = lambda _provider: True,
    ) -> None:
        self._dropped = f"{name}.dropped"
        self._deliver = deliver
        self._capacity = capacity
        self._batch = batch
        self._rows: deque[T] = deque()
        self._sending = 0
        self._given_up = False
        self._failed: str | None = None  # what the last batch ended in
        self._worker = Worker(name, self._drain, interval_s=interval_s, forget=self._forget)
        self.spans = spans
        self.left_to = left_to

    def write(self, row: T) -> None:
        """Queue a row, or drop it if the queue is full or closed."""
        rows = self._rows
        waiting = len(rows)
        if waiting >= self._capacity:
            internal_error(self._dropped, f"{waiting} rows wait already")
            return
        if self._worker.closing:
            internal_error(self._dropped, "the exporter is closed")
            return
        rows.append(row)
        self._worker.need()
        if waiting + 1 >= self._batch:
            self._worker.wake()

    def pause(self, seconds: float) -> bool:
        """Let `deliver` wait between attempts; return `False` once it should give up instead."""
        return self._worker.pause(seconds)

    def flush(self, timeout_s: float) -> bool:
        """Deliver what is queued; return whether all of it went within `timeout_s`."""
        if self._rows:
            self._worker.need()
        return self._worker.flush(timeout_s)

    def close(self) -> None:
        """Deliver what is queued and stop, within `EXIT_LIMIT_S`."""
        if self._rows:
            self._worker.need()
        self._worker.close(EXIT_LIMIT_S)
        if self._given_up:
            return
        if left := len(self._rows) + self._sending:
            self._given_up = True
            why = (
                f"not sent within {EXIT_LIMIT_S:g} s"
                if self._failed is None
                else f"the last attempt failed ({self._failed})"
            )
            rows_dropped(self._dropped, left, why)

    def _drain(self) -> None:
        """Deliver the rows that wait now; a batch that fails is dropped, the others still go."""
        failed: Exception | None = None
        waiting = len(self._rows)
        while waiting > 0 and not self._given_up:
            rows = [self._rows.popleft() for _ in range(min(waiting, self._batch))]
            waiting -= len(rows)
            self._sending = len(rows)
            try:
                self._deliver(rows)
                self._failed = None
            except Exception as error:  # noqa: BLE001 - raised again once the others are sent
                failed, self._failed = error, type(error).__name__
                lost = error.rows if isinstance(error, RowsLost) else len(rows)
                if not self._given_up:  # else `close` has counted them
                    count_internal(self._dropped, lost)
                if self._worker.closing:  # a backend that failed once gets no more of our exit
                    break
            finally:
                self._sending = 0
        if failed is not None:
            raise failed

    def _forget(self) -> None:
        # What was queued before a fork is the parent's, which still sends it.
        self._rows = deque()
        self._sending = 0
