"""How does what was acknowledged get from the spool into the store, and become rows?

One thread: takes a batch, inserts it under its token, notes that, and every few seconds has the
store join. While the store fails it waits, longer each time; nothing that was acknowledged is
dropped. A request that the store can never read is found out by going one by one, and put aside.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from math import inf
from typing import Final, Protocol

from llmtrace.errors import ConfigError, LlmtraceError
from llmtrace_collector.receive.counters import Ingested
from llmtrace_collector.receive.limits import MIB
from llmtrace_collector.receive.spool import Batch, Spool
from llmtrace_collector.store.protocol import BadBatch, JoinReport

logger = logging.getLogger("llmtrace.collector")


# Of few spans nearly all of an insert or a join is planning the query, so that they come the less
# often the longer they take: a tenth of a core each. Where there is much to do they come sooner.
_REST: Final = 9
_MOST_REST_S: Final = 2.0  # between two inserts
_MOST_JOIN_REST_S: Final = 10.0
# What is stored while a join runs may only be seen by the next.
_JOINS: Final = 2
# Others may write to the same store: the join is not left out for ever.
_IDLE: Final = 10


class Sink(Protocol):
    """What this needs of a `Store`."""

    def insert_otlp(self, body: bytes, token: str) -> None:
        """Store a batch once."""

    def join(self, now_ns: int) -> JoinReport:
        """Make rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSettings:
    """When the spool is emptied into the store.

    Attributes:
        interval_s: a batch waits for more at most so long; longer where storing one takes long, so
            that a store is not kept busy with small ones.
        batch_bytes: a batch waits no longer, and is not much longer.
        batch_spans: likewise.
        join_s: between two joins; longer where one takes long, or nothing was stored meanwhile.
        backoff_s: first pause after a failure of the store; it doubles up to `most_backoff_s`.
        most_backoff_s: the longest pause.
    """

    interval_s: float = 0.5
    batch_bytes: int = 48 * MIB
    batch_spans: int = 100000
    join_s: float = 1.0
    backoff_s: float = 0.5
    most_backoff_s: float = 15.0

    def __post_init__(self) -> None:
        """Check them.

        Raises:
            ConfigError: one is out of range.
        """
        for name in (field.name for field in fields(self)):
            if not 0 < getattr(self, name) < inf:
                raise ConfigError(f"ingest.{name}: {getattr(self, name)!r} must be above 0")


class Ingest:
    """Empties a spool into a store, from `start` to `stop`.

    Args:
        spool: of which this is the only reader.
        store: where batches go.
        settings: how large they are, and how often.
        wall: unix nanoseconds.
        monotonic: seconds of this machine's clock.
    """

    def __init__(
        self,
        spool: Spool,
        store: Sink,
        settings: IngestSettings | None = None,
        *,
        wall: Callable[[], int] = time.time_ns,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counted = Ingested()
        self._spool = spool
        self._store = store
        self._settings = settings or IngestSettings()
        self._wall = wall
        self._monotonic = monotonic
        self._stopping = threading.Event()
        self._until = inf
        self._join_at = -inf
        self._joins_due = 0
        self._insert_took = 0.0
        self._behind_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="llmtrace-ingest", daemon=True)

    @property
    def lag_s(self) -> float:
        """How long what waits to be stored has waited, in seconds, at most."""
        since = self._behind_since
        if since is None:
            return 0.0
        return self._monotonic() - since

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Store and join what is in the spool, for at most about so long, and end.

        Returns:
            Whether all of it is stored; what is not is in the spool, for the next start.
        """
        self._until = self._monotonic() + timeout_s
        self._stopping.set()
        self._spool.wake()
        if self._thread.is_alive():
            self._thread.join()
        return self._spool.backlog_bytes == 0

    def _run(self) -> None:
        while not self._stopping.is_set():
            rest_s = min(_REST * self._insert_took, _MOST_REST_S)
            wait_s = max(self._settings.interval_s, rest_s)
            self._spool.wait(wait_s, self._settings.batch_bytes, self._stopping.is_set)
            self.drain(leave=self._settings.batch_bytes)
            self._join_if_due()
        self.drain()
        self._join()

    def drain(self, leave: int = 0) -> None:
        """Store what is in the spool; give up only when stopping, and then after a while.

        Args:
            leave: what is less than so many bytes, and came while other was stored, may wait for
                more: a small batch takes the store nearly as long as a large one.
        """
        pause = self._settings.backoff_s
        while not self._over():
            try:
                taken = self._monotonic()
                batch = self._spool.next_batch(
                    self._settings.batch_bytes, self._settings.batch_spans
                )
                if batch is None:
                    self._behind_since = None
                    return
                if self._behind_since is None:
                    self._behind_since = taken
                self._store_batch(batch)
            except LlmtraceError as error:
                self._failed("insert", error)
            except OSError as error:
                self._failed("spool", error)
            except Exception as error:
                logger.exception("storing a batch")
                self._failed("insert", error)
            else:
                pause = self._settings.backoff_s
                self.counted.problem = None
                if self._spool.backlog_bytes < leave:
                    self._behind_since = taken  # what is left came after that
                    return
                self._join_if_due()
                continue
            self._pause(pause)
            pause = min(2 * pause, self._settings.most_backoff_s)

    def _store_batch(self, batch: Batch) -> None:
        try:
            self._insert(batch)
        except BadBatch as error:
            if len(batch.records) == 1:
                self._refuse(batch, error)
                return
            logger.warning(
                "a batch of %d requests cannot be stored (%s); they go one by one",
                len(batch.records), error,
            )  # fmt: skip
            for one in self._spool.split(batch):
                self._spool.planned(one)
                try:
                    self._insert(one)
                except BadBatch as alone:
                    self._refuse(one, alone)

    def _insert(self, batch: Batch) -> None:
        started = self._monotonic()
        self._store.insert_otlp(batch.body, batch.token)
        self._insert_took = self._monotonic() - started
        if self._joins_due <= 0:
            self._join_at = min(self._join_at, started + self._settings.join_s)
        self._joins_due = _JOINS
        self.counted.insert_s += self._insert_took
        self._spool.stored(batch)
        self.counted.batches += 1
        self.counted.spans += batch.spans

    def _refuse(self, batch: Batch, error: BadBatch) -> None:
        self._spool.put_aside(batch)
        self._spool.stored(batch)
        self.counted.put_aside += 1
        if self.counted.put_aside == 1:
            logger.warning(
                "a request cannot be stored and is put aside in %s: %s",
                self._spool.folder / "aside", error,
            )  # fmt: skip

    def _join_if_due(self) -> None:
        if self._monotonic() >= self._join_at:
            self._join()

    def _join(self) -> None:
        started = self._monotonic()
        try:
            report = self._store.join(self._wall())
        except Exception as error:  # noqa: BLE001 - whatever it is, storing must go on
            self._failed("join", error)
        else:
            self.counted.rows += report.rows
            self._joins_due -= 1
            if self.counted.problem is not None and self.counted.problem.startswith("join"):
                self.counted.problem = None
        ended = self._monotonic()
        pause = self._settings.join_s * (1 if self._joins_due > 0 else _IDLE)
        rest_s = min(_REST * (ended - started), _MOST_JOIN_REST_S)
        self._join_at = ended + max(pause, rest_s)
        self.counted.join_s += ended - started

    def _failed(self, what: str, error: Exception) -> None:
        self.counted.failures[what] += 1
        self.counted.problem = f"{what}: {error}"
        if self.counted.failures[what] == 1:
            logger.warning("%s failed, and is tried again: %s", what, error)

    def _over(self) -> bool:
        return self._stopping.is_set() and self._monotonic() >= self._until

    def _pause(self, seconds: float) -> None:
        if self._stopping.is_set():
            # Nothing wakes us any more, and there is an end.
            time.sleep(max(0.0, min(seconds, self._until - self._monotonic())))
        else:
            self._stopping.wait(seconds)
