"""Move acknowledged spans from the spool into the store, and have the store make rows of them.

One thread takes a batch, inserts it under its token, records that, and every few seconds has the
store join. While the store fails it waits, longer each time; nothing that was acknowledged is
dropped. If the store accepts other spans but not a batch, the batch is divided until the requests
that cannot be stored are found. These are set aside, so that they do not block the others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from secrets import token_bytes
from typing import Final, Protocol

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from llmtrace.core.errors import LlmtraceError
from llmtrace_collector.receive.counters import Ingested
from llmtrace_collector.receive.limits import MIB, above_zero
from llmtrace_collector.receive.spool import Batch, Spool
from llmtrace_collector.receive.spool_format import varint
from llmtrace_collector.store.records import BadBatch, JoinReport, StoreError

logger = logging.getLogger("llmtrace.collector")


# With few spans nearly all of the time of an insert or a join is spent planning the query. So a
# batch is joined as soon as it is stored, and then both rest for 39 times as long as they took,
# which is a 40th of a core, but not longer than a person would wait for the live page. A small
# amount may wait longer (`IngestSettings.wait_s`) until it is read. With much to do the rests are
# shorter.
_REST: Final = 39
_MAX_REST_S: Final = 9.0
_LITTLE: Final = MIB
# How long a reader waits at most for what was left until someone reads it.
_CATCH_UP_S: Final = 3.0
# What is stored while a join runs may be seen only by the next one.
_JOINS: Final = 2
# How often a batch is tried before it is divided, a part of it before that is divided further, and
# a single request before it is set aside.
_TRIES: Final = 4
_TRIES_DIVIDED: Final = 2
_TRIES_ALONE: Final = 3
_DIVIDED_PAUSE_S: Final = 0.05
# Where others may write to the same store, the join runs this many times less often when idle.
_IDLE: Final = 10


class SpanStore(Protocol):
    """The part of a `Store` that the receiver uses."""

    @property
    def shared(self) -> bool:
        """Whether others may write to it."""

    def insert_otlp(self, body: bytes, token: str) -> None:
        """Store a batch, unless its token was stored already."""

    def join(self, now_ns: int) -> JoinReport:
        """Join what is new, and write the resulting rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSettings:
    """When the spool is emptied into the store.

    Attributes:
        interval_s: how long a batch waits for more spans; longer where storing one takes long, so
            that the store is not kept busy with small ones.
        batch_bytes: the size at which a batch stops waiting, and about its maximum.
        batch_spans: the same in spans.
        batch_expanded_bytes: the same in bytes of its spans, each with a copy of its resource and
            scope.
        wait_s: after an insert, how long less than 1 MiB may wait, if only this process uses the
            store and nothing reads from it.
        join_s: between two joins; longer where one takes long. Without new spans there is no join,
            or rarely, if others may have stored some.
        backoff_s: first pause after a failure of the store; it doubles up to `most_backoff_s`.
        most_backoff_s: the longest pause.
    """

    interval_s: float = 0.5
    batch_bytes: int = 48 * MIB
    batch_spans: int = 100000
    batch_expanded_bytes: int = 256 * MIB
    wait_s: float = 30.0
    join_s: float = 1.0
    backoff_s: float = 0.5
    most_backoff_s: float = 15.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: one is out of range.
        """
        above_zero("ingest", self)


class Ingest:
    """Empties a spool into a store, from `start` to `stop`.

    Args:
        spool: which has no other reader.
        store: where batches go.
        settings: how large they are, and how often.
        wall: unix nanoseconds.
        monotonic: seconds of this machine's clock.
    """

    def __init__(
        self,
        spool: Spool,
        store: SpanStore,
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
        self._join_at = self._rested_at = -inf
        self._joins_due = 1  # of what the process before left
        self._insert_took = 0.0
        self._worked_at = -inf
        self._behind_since = self._unjoined_since = inf
        self._round, self._waiting, self._wanted = threading.Condition(), False, False
        self._taken_at = self._complete_at = -inf
        self._thread = threading.Thread(target=self._run, name="llmtrace-ingest", daemon=True)

    @property
    def lag_s(self) -> float:
        """How many seconds spans that could not be stored or joined have waited, at most."""
        return max(0.0, self._monotonic() - min(self._behind_since, self._unjoined_since))

    @property
    def incomplete_s(self) -> float:
        """How many seconds ago all acknowledged spans were in rows, up to a limit; 0 = now."""
        if self._spool.backlog_bytes == 0 and self._joins_due < _JOINS:
            return 0.0
        return min(self._monotonic() - self._complete_at, 2 * self._settings.wait_s)

    def catch_up(self) -> None:
        """Make rows of spans that wait until someone reads; return when done, or after a while."""
        with self._round:
            if self._waiting:
                self._wanted = True
                self._spool.wake()
                self._round.wait(_CATCH_UP_S)

    def start(self) -> None:
        """Start the thread that stores what the spool holds."""
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Store and join what is in the spool, for about `timeout_s` at most, and end.

        Returns:
            Whether all of it is stored; the rest stays in the spool for the next start.
        """
        self._until = self._monotonic() + timeout_s
        self._stopping.set()
        self._spool.wake()
        if self._thread.is_alive():
            self._thread.join()
        return self._spool.backlog_bytes == 0

    def _run(self) -> None:
        while not self._stopping.is_set():
            wait_s = max(self._settings.interval_s, self._rested_at - self._monotonic())
            self._spool.wait(wait_s, self._settings.batch_bytes, self._stopping.is_set)
            self._wait_for_more()
            self.drain(leave=self._settings.batch_bytes)
            self._join_if_due()
            with self._round:
                self._waiting = self._wanted = False
                self._round.notify_all()
        self.drain()
        self._join()

    def _wait_for_more(self) -> None:
        left_s = self._worked_at + self._settings.wait_s - self._monotonic()
        if left_s > 0 and not self._store.shared:
            self._waiting = True
            self._spool.wait(left_s, _LITTLE, lambda: self._wanted or self._stopping.is_set())

    def drain(self, leave: int = 0) -> None:
        """Store what is in the spool; give up only when stopping, and then after a while.

        Args:
            leave: less than this many bytes, which came while others were stored, may wait for
                more: a small batch takes the store nearly as long as a large one.
        """
        pause = self._settings.backoff_s
        while not self._over():
            try:
                taken = self._monotonic()
                batch = self._spool.next_batch(
                    self._settings.batch_bytes,
                    self._settings.batch_spans,
                    self._settings.batch_expanded_bytes,
                )
                if batch is None:
                    self._works("spool")
                    self._behind_since, self._taken_at = inf, taken
                    return
                self._behind_since = min(self._behind_since, taken)
                self._store_batch(batch)
            except OSError as error:
                self._failed("spool", error)
            except Exception as error:
                if not isinstance(error, LlmtraceError):
                    logger.exception("storing a batch")
            else:
                pause = self._settings.backoff_s
                self._works("insert", "spool")
                left = self._spool.backlog_bytes
                if left < leave:  # it came after that, and is not late yet
                    self._behind_since, self._taken_at = inf, taken
                    return
                self._join_if_due()
                continue
            self._pause(pause)
            pause = min(2 * pause, self._settings.most_backoff_s)

    def _store_batch(self, batch: Batch) -> None:
        """Store a batch, and set aside each request in it that cannot be stored.

        Raises:
            Exception: the store accepts nothing at all; the batch must be tried again.
        """
        began = self._monotonic()
        error = self._try(batch, _TRIES, self._settings.backoff_s)
        if error is not None:
            self._isolate(batch, error, began)

    def _isolate(self, batch: Batch, error: Exception, began: float) -> None:
        """Divide a batch that failed until each request in it is stored, or set aside.

        Args:
            batch: that failed.
            error: with which it failed last.
            began: when the first batch that this one is a part of failed first.

        Raises:
            Exception: `error`: the store does not accept other spans either.
        """
        if isinstance(error, StoreError) and error.reason == "disk":
            raise error  # a full disk may still accept small batches: this one is not at fault
        alone = len(batch.records) == 1
        # Unreadable bytes stay unreadable. Any other error may be due to the state of the store.
        proven = self._worked_at > began and (isinstance(error, BadBatch) or not alone)
        if not proven and not (isinstance(error, BadBatch) and not alone):
            self._probe(error)
        if alone:
            self._set_aside(batch, error)
            return
        for half in self._spool.halves(batch):
            if self._over():
                raise error
            self._spool.planned(half)
            tries = _TRIES_ALONE if len(half.records) == 1 else _TRIES_DIVIDED
            again = self._try(half, tries, _DIVIDED_PAUSE_S)
            if again is not None:
                self._isolate(half, again, began)
            self._join_if_due()

    def _try(self, batch: Batch, tries: int, pause_s: float) -> Exception | None:
        """Insert a batch, several times if need be; return the last failure, `None` = stored.

        Raises:
            OSError: it could not be recorded.
        """
        for left in reversed(range(tries)):
            try:
                self._insert(batch)
            except OSError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, what comes after must go on
                self._failed("insert", error)
                hopeless = isinstance(error, BadBatch) and len(batch.records) > 1
                if left == 0 or hopeless or self._over():
                    return error
                self._pause(pause_s)
                pause_s = min(2 * pause_s, self._settings.most_backoff_s)
            else:
                return None
        raise AssertionError(tries)

    def _probe(self, error: Exception) -> None:
        """Insert a span of our own, to see whether the store accepts anything at all.

        Raises:
            Exception: `error`: it does not.
        """
        try:
            self._store.insert_otlp(*_probe_batch(self._wall()))
        except Exception:  # noqa: BLE001 - any failure says the same
            raise error from None
        self._worked_at = self._monotonic()

    def _insert(self, batch: Batch) -> None:
        started = self._monotonic()
        self._store.insert_otlp(batch.body, batch.token)
        self._insert_took = self._monotonic() - started
        if self._joins_due <= 0:
            self._join_at = min(self._join_at, max(started, self._rested_at))
        self._joins_due = _JOINS
        self.counted.insert_s += self._insert_took
        self._worked_at = self._monotonic()
        self._spool.stored(batch)
        self.counted.batches += 1
        self.counted.spans += batch.spans

    def _set_aside(self, batch: Batch, error: Exception) -> None:
        reason = error.reason if isinstance(error, StoreError | BadBatch) else "other"
        self._spool.set_aside(batch, reason, str(error) or type(error).__name__)
        self.counted.quarantined[reason] += 1
        if self.counted.quarantined[reason] == 1:
            logger.warning(
                "a request cannot be stored, and is set aside in %s (%s): %s; "
                "see `llmtrace quarantine`",
                self._spool.quarantine.folder, reason, error,
            )  # fmt: skip

    def _join_if_due(self) -> None:
        if self._monotonic() >= self._join_at or (self._wanted and self._joins_due > 0):
            self._join()

    def _join(self) -> None:
        started = self._monotonic()
        try:
            report = self._store.join(self._wall())
        except Exception as error:  # noqa: BLE001 - whatever it is, storing must go on
            self._failed("join", error)
            self._unjoined_since = min(self._unjoined_since, started)
        else:
            self._works("join")
            self._unjoined_since = inf
            self.counted.rows += report.rows
            self.counted.large_traces += report.large_traces
            self.counted.without_row.update(report.without_row)
            self._joins_due -= 1
            self._complete_at = self._taken_at
        ended = self._monotonic()
        pause = self._settings.join_s
        if self._joins_due <= 0:
            pause *= _IDLE if self._store.shared else inf
        self._rested_at = ended + min(_REST * (ended - started + self._insert_took), _MAX_REST_S)
        self._join_at = max(ended + pause, self._rested_at)
        self.counted.join_s += ended - started

    def _failed(self, what: str, error: Exception) -> None:
        self.counted.failures[what] += 1
        if what not in self.counted.problems:
            logger.warning("%s failed, and is tried again: %s", what, error)
        self.counted.problems[what] = str(error)

    def _works(self, *steps: str) -> None:
        for step in self.counted.problems.keys() & {*steps}:
            del self.counted.problems[step]
            logger.info("%s works again", step)

    def _over(self) -> bool:
        return self._stopping.is_set() and self._monotonic() >= self._until

    def _pause(self, seconds: float) -> None:
        if self._stopping.is_set():
            # The event is set already; do not wait beyond the deadline.
            time.sleep(max(0.0, min(seconds, self._until - self._monotonic())))
        else:
            self._stopping.wait(seconds)


def _probe_batch(now_ns: int) -> tuple[bytes, str]:
    """Return a batch of one span that any store accepts, and a token of its own."""
    span = Span(
        trace_id=token_bytes(16), span_id=token_bytes(8), name="llmtrace.store_probe",
        start_time_unix_nano=now_ns, end_time_unix_nano=now_ns,
    )  # fmt: skip
    name = KeyValue(key="service.name", value=AnyValue(string_value="llmtrace-collector"))
    request = ExportTraceServiceRequest(
        resource_spans=[
            ResourceSpans(
                resource=Resource(attributes=[name]), scope_spans=[ScopeSpans(spans=[span])]
            )
        ]
    ).SerializeToString()
    return varint(len(request)) + request, f"probe-{span.trace_id.hex()}"
