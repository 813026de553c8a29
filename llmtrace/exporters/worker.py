"""The thread that does the slow part of an export.

Each `Worker` has one daemon thread, started with the first piece of work. It is started anew after
a fork, and whatever it waits for, it delays the interpreter's exit by a fixed limit at most.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final
from weakref import WeakSet

from opentelemetry import context as otel_context

# Private, but what every OpenTelemetry exporter sets so that an instrumented HTTP or gRPC client
# does not trace the sending of traces.
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY

from llmtrace.core.failopen import internal_error
from llmtrace.exporters.after_fork import at_exit, restart_after_fork

EXIT_LIMIT_S: Final = 3.0


class Worker:
    """A thread that runs `work` every `interval_s`, or sooner when woken.

    Args:
        name: for the thread and for what is counted when `work` raises.
        work: does the slow part. It is also run once on `flush` and on `close`.
        interval_s: seconds between two runs.
        forget: run in a forked child, to drop what belongs to the parent.
    """

    __slots__ = (
        "__weakref__", "_closed_at", "_closing", "_flushes", "_forget", "_interval_s", "_lock",
        "_name", "_stuck", "_thread", "_wake", "_work", "failures",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        *,
        interval_s: float,
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._work = work
        self._interval_s = interval_s
        self._forget = forget
        self.failures = 0
        self._closed_at = 0.0
        self._reset()
        _workers.add(self)
        restart_after_fork(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._flushes: deque[threading.Event] = deque()
        self._thread: threading.Thread | None = None
        self._stuck = False  # the thread could not be started

    def restart_in_child(self) -> None:
        """Begin anew in a forked child, where the parent's thread does not exist."""
        closed = self._closing.is_set()
        self._reset()
        if closed:
            self._closing.set()
        self._forget()

    @property
    def closing(self) -> bool:
        """Whether `close` was called: nothing new is taken on."""
        return self._closing.is_set()

    def need(self) -> None:
        """Make sure the thread runs. Cheap, and never raises."""
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None or self.closing:
                return
            thread = threading.Thread(target=self._run, name=f"llmtrace {self._name}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # out of threads, or the interpreter is going down
                self._stuck = True
                internal_error(self._name, error)
            else:
                self._thread = thread
                self._stuck = False

    def wake(self) -> None:
        """Run `work` now rather than at the end of the interval."""
        if not self._wake.is_set():
            self._wake.set()

    def pause(self, seconds: float) -> bool:
        """Let `work` wait; return whether to go on, which is not so once `close` was called."""
        return not self._closing.wait(seconds)

    def _run(self) -> None:
        otel_context.attach(otel_context.set_value(_SUPPRESS_INSTRUMENTATION_KEY, True))  # noqa: FBT003
        last = False
        while not last:
            if not self.closing:
                self._wake.wait(self._interval_s)
            self._wake.clear()
            last = self.closing
            # Only flushes requested before this run began are done by it.
            requested = len(self._flushes)
            try:
                self._work()
            except Exception as error:  # noqa: BLE001 - the application must not notice
                self.failures += 1
                internal_error(self._name, error)
            for _ in range(requested):
                self._flushes.popleft().set()

    def flush(self, timeout_s: float) -> bool:
        """Run `work` now; return whether it ended in time, and without failing."""
        thread = self._thread
        if thread is None:
            return not self._stuck
        failures = self.failures
        if self.closing:
            thread.join(timeout_s)
            return not thread.is_alive() and failures == self.failures
        done = threading.Event()
        self._flushes.append(done)
        self._wake.set()
        return done.wait(timeout_s) and failures == self.failures

    def begin_close(self) -> None:
        """Make the thread run once more and end."""
        with self._lock:
            if not self.closing:
                self._closed_at = time.monotonic()
            self._closing.set()
            self._wake.set()

    def close(self, timeout_s: float = EXIT_LIMIT_S) -> None:
        """Run `work` a last time and end the thread.

        Waits until `timeout_s` after the first call, however often it is called.
        """
        self.begin_close()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, self._closed_at + timeout_s - time.monotonic()))


_workers: WeakSet[Worker] = WeakSet()


def _close_all() -> None:
    """Close every worker at exit: all at once, so that the limit holds for all of them."""
    workers = list(_workers)
    for worker in workers:
        worker.begin_close()
    for worker in workers:
        worker.close(EXIT_LIMIT_S)


at_exit(_close_all)
