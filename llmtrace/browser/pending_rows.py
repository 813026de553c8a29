"""Keep finished rows until the page they belong to has sent its beacon, for a bounded time.

A row is finished before the page has painted the last of it. So rows that a page requested wait a
moment, and go on joined, or as they are: each goes to the sinks once, and is counted once. The
waiting rows are bounded, in number and in time.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakSet

from llmtrace.browser.beacon import Beacon
from llmtrace.browser.join_beacon import joined_row, with_beacon
from llmtrace.core.failopen import count_internal, internal_error
from llmtrace.core.row import Row
from llmtrace.exporters.after_fork import at_exit
from llmtrace.exporters.worker import Worker
from llmtrace.runtime import proxied_request
from llmtrace.runtime.proxied_request import ProxiedRequest

PassOn = Callable[[Row], None]

_MAX_ROWS: Final = 64  # of one page's request; further ones go on at once
_LOOK_EVERY_S: Final = 0.5
# A slow page delays the sending, so that its request runs on long after the row is finished.
_RUNNING_TIMES: Final = 10
# Without any row there may still come one: of a cancelled request, once its outcome is settled.
_NO_ROW_S: Final = 5.0


@dataclass(slots=True, eq=False)
class PendingRow:
    """One request of a page, from its arrival until its rows have gone on.

    Attributes:
        began: unix nanoseconds by this server's clock.
        relay: its measurement as a gateway, if the application has one.
        running: calls of the application for it that have not returned.
        until: when to wait no longer; `None` while it runs.
        sampled: whether its trace is; `None` = that could not be found out.
    """

    trace_id: str
    began: int
    running: int = 0
    until: float | None = None
    rows: list[tuple[Row, PassOn]] = field(default_factory=list)
    beacon: Beacon | None = None
    relay: ProxiedRequest | None = None
    gone: bool = False
    sampled: bool | None = True


class PendingRows:
    """The rows of one process that wait for their pages' beacons.

    Args:
        wait_s: longest a row waits after its page's response has ended; ten times as long while
            the response is still being sent.
        max_pending: pages' requests kept at a time; above these the oldest goes on.
        clock: monotonic seconds.
        wall: unix nanoseconds.
    """

    def __init__(
        self,
        *,
        wait_s: float = 30.0,
        max_pending: int = 2000,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        self._wait_s = wait_s
        self._max_pending = max_pending
        self._clock = clock
        self._wall = wall
        self._forget()
        self._worker = Worker(
            "browser", self.release, interval_s=_LOOK_EVERY_S, forget=self._forget
        )
        _all.add(self)

    def _forget(self) -> None:
        # Rows that waited at a fork are the parent's to send.
        self._lock = threading.Lock()
        self._pending: OrderedDict[str, PendingRow] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of pages' requests that are running or wait."""
        return len(self._pending)

    def begin(self, trace_id: str, *, sampled: bool | None = True) -> PendingRow:
        """Note that a page's request has arrived, of a trace that is sampled or not."""
        passed: list[tuple[Row, PassOn]] = []
        with self._lock:
            pending = self._pending.get(trace_id)
            if pending is None:
                pending = self._pending[trace_id] = PendingRow(
                    trace_id, self._wall(), sampled=sampled
                )
                if len(self._pending) > self._max_pending:
                    count_internal("browser.too_many")
                    passed = self._leave(next(iter(self._pending.values())))
            pending.running += 1
            pending.until = None
        _pass_on(passed)
        return pending

    def row(self, pending: PendingRow, row: Row, pass_on: PassOn) -> None:
        """Keep a finished row until its page has sent its beacon. Never raises."""
        relay = proxied_request.current.get()
        with self._lock:
            pending.relay = relay or pending.relay
            kept = not pending.gone and len(pending.rows) < _MAX_ROWS
            if kept:
                pending.rows.append((row, pass_on))
                if pending.running and pending.until is None:
                    pending.until = self._clock() + _RUNNING_TIMES * self._wait_s
            passed = self._settle(pending) if kept else [(row, pass_on)]
        _pass_on(passed)

    def end(self, pending: PendingRow) -> None:
        """Note that the application has responded."""
        with self._lock:
            pending.running -= 1
            if pending.running == 0 and not pending.gone:
                wait_s = self._wait_s if pending.rows else min(self._wait_s, _NO_ROW_S)
                pending.until = self._clock() + wait_s
            passed = self._settle(pending)
        self._worker.need()
        _pass_on(passed)

    def beacon(self, beacon: Beacon) -> PendingRow | None:
        """Take what a page reported; return its request, or `None` if it is not known here."""
        with self._lock:
            pending = self._pending.get(beacon.trace_id)
            if pending is None:
                return None
            if pending.beacon is None:  # the first counts
                pending.beacon = beacon
            passed = self._settle(pending)
        _pass_on(passed)
        return pending

    def release(self) -> None:
        """Pass on the rows that have waited long enough; all, once the process is ending."""
        self._release(self._clock())

    def release_all(self) -> None:
        """Pass on all waiting rows at once, joined or not."""
        self._release(None)

    def _release(self, now: float | None) -> None:
        with self._lock:
            due = [
                pending
                for pending in self._pending.values()
                if now is None or (pending.until is not None and pending.until <= now)
            ]
            passed = [pair for pending in due for pair in self._leave(pending)]
        _pass_on(passed)

    def _settle(self, pending: PendingRow) -> list[tuple[Row, PassOn]]:
        """Join, if row and beacon are both there; return the rows to pass on."""
        if pending.gone or pending.beacon is None or pending.running or not pending.rows:
            return []
        beacon = pending.beacon
        chosen = joined_row([row for row, _ in pending.rows])
        pairs = self._leave(pending)
        if chosen is None:
            return pairs
        return [
            (_joined(row, beacon, pending) if row is chosen else row, pass_on)
            for row, pass_on in pairs
        ]

    def _leave(self, pending: PendingRow) -> list[tuple[Row, PassOn]]:
        pending.gone = True
        self._pending.pop(pending.trace_id, None)
        rows, pending.rows = pending.rows, []
        return rows


def _joined(row: Row, beacon: Beacon, pending: PendingRow) -> Row:
    try:
        spent = None if pending.relay is None else pending.relay.spent
        # Without a gateway's measuring, what it took to come to the call, by one clock.
        own = row.start - pending.began if spent is None else spent.own
        return with_beacon(row, beacon, app_ns=max(0, own))
    except Exception as error:  # noqa: BLE001 - the row goes on as it is
        internal_error("browser", error)
        return row


def _pass_on(pairs: list[tuple[Row, PassOn]]) -> None:
    for row, pass_on in pairs:
        try:
            pass_on(row)
        except Exception as error:  # noqa: BLE001 - the application must not notice
            internal_error("browser", error)


_all: WeakSet[PendingRows] = WeakSet()


def _release_everything() -> None:
    for waiting in list(_all):
        waiting.release_all()


# Registered after `llmtrace.shutdown`, and so run before it: the exporters are still open.
at_exit(_release_everything)
