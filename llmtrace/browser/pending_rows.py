"""Which rows wait for a page to tell the rest, and for how long?

A row is finished before the page has painted the last of it. So rows that a page asked for wait a
moment, and go on joined, or as they are: each goes to the sinks once, and is counted once. What
waits is bounded, in number and in time.
"""

from __future__ import annotations

import atexit
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
from llmtrace.exporters.worker import Worker
from llmtrace.runtime import proxied_request as relays
from llmtrace.runtime.proxied_request import ProxiedRequest

PassOn = Callable[[Row], None]

_MAX_ROWS: Final = 64  # of one page's request; further ones go on at once
_LOOK_EVERY_S: Final = 0.5
# A slow page holds up the sending, so that its request runs on long after the row is finished.
_RUNNING_TIMES: Final = 10
# Without any row there may still come one: of a cancelled request, once its outcome is settled.
_NO_ROW_S: Final = 5.0


@dataclass(slots=True, eq=False)
class Asked:
    """One request of a page, from its arrival until its rows have gone on.

    Attributes:
        began: unix nanoseconds by this server's clock.
        relay: what measures the application as a gateway, if anything does.
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
        wait_s: longest a row waits after its page's request was answered; ten times as long while
            the answer is still being sent.
        most: pages' requests kept at a time; above these the oldest goes on.
        clock: monotonic seconds.
        wall: unix nanoseconds.
    """

    def __init__(
        self,
        *,
        wait_s: float = 30.0,
        most: int = 2000,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], int] = time.time_ns,
    ) -> None:
        self._wait_s = wait_s
        self._most = most
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
        self._asked: OrderedDict[str, Asked] = OrderedDict()

    def __len__(self) -> int:
        """How many requests of pages are running or wait."""
        return len(self._asked)

    def begin(self, trace_id: str, *, sampled: bool | None = True) -> Asked:
        """Note that a page's request has arrived, of a trace that is sampled or not."""
        passed: list[tuple[Row, PassOn]] = []
        with self._lock:
            asked = self._asked.get(trace_id)
            if asked is None:
                asked = self._asked[trace_id] = Asked(trace_id, self._wall(), sampled=sampled)
                if len(self._asked) > self._most:
                    count_internal("browser.too_many")
                    passed = self._leave(next(iter(self._asked.values())))
            asked.running += 1
            asked.until = None
        _pass_on(passed)
        return asked

    def row(self, asked: Asked, row: Row, pass_on: PassOn) -> None:
        """Keep a finished row until its page has told the rest. Never raises."""
        relay = relays.current.get()
        with self._lock:
            asked.relay = relay or asked.relay
            kept = not asked.gone and len(asked.rows) < _MAX_ROWS
            if kept:
                asked.rows.append((row, pass_on))
                if asked.running and asked.until is None:
                    asked.until = self._clock() + _RUNNING_TIMES * self._wait_s
            passed = self._settle(asked) if kept else [(row, pass_on)]
        _pass_on(passed)

    def end(self, asked: Asked) -> None:
        """Note that the application has answered."""
        with self._lock:
            asked.running -= 1
            if asked.running == 0 and not asked.gone:
                wait_s = self._wait_s if asked.rows else min(self._wait_s, _NO_ROW_S)
                asked.until = self._clock() + wait_s
            passed = self._settle(asked)
        self._worker.need()
        _pass_on(passed)

    def beacon(self, beacon: Beacon) -> Asked | None:
        """Take what a page reported; return its request, or `None` if it is not known here."""
        with self._lock:
            asked = self._asked.get(beacon.trace_id)
            if asked is None:
                return None
            if asked.beacon is None:  # the first counts
                asked.beacon = beacon
            passed = self._settle(asked)
        _pass_on(passed)
        return asked

    def release(self) -> None:
        """Let go on what has waited long enough; everything, once the process is ending."""
        self._release(self._clock())

    def release_all(self) -> None:
        """Let everything go on now."""
        self._release(None)

    def _release(self, now: float | None) -> None:
        with self._lock:
            due = [
                asked
                for asked in self._asked.values()
                if now is None or (asked.until is not None and asked.until <= now)
            ]
            passed = [pair for asked in due for pair in self._leave(asked)]
        _pass_on(passed)

    def _settle(self, asked: Asked) -> list[tuple[Row, PassOn]]:
        """Join, if all that belongs together is there; return what is to go on."""
        if asked.gone or asked.beacon is None or asked.running or not asked.rows:
            return []
        beacon = asked.beacon
        chosen = joined_row([row for row, _ in asked.rows])
        pairs = self._leave(asked)
        if chosen is None:
            return pairs
        return [
            (_joined(row, beacon, asked) if row is chosen else row, pass_on)
            for row, pass_on in pairs
        ]

    def _leave(self, asked: Asked) -> list[tuple[Row, PassOn]]:
        asked.gone = True
        self._asked.pop(asked.trace_id, None)
        rows, asked.rows = asked.rows, []
        return rows


def _joined(row: Row, beacon: Beacon, asked: Asked) -> Row:
    try:
        spent = None if asked.relay is None else asked.relay.spent
        # Without a gateway's measuring, what it took to come to the call, by one clock.
        own = row.start - asked.began if spent is None else spent.own
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
atexit.register(_release_everything)
