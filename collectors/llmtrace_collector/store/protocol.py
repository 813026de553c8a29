"""The protocol of a store of spans and rows, whichever engine is behind it.

Two implementations, one contract: `embedded` runs the ClickHouse engine inside this process,
`server` speaks to a ClickHouse server. Same tables, same SQL, same tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from llmtrace.core.errors import DataError, SourceError


class StoreError(SourceError):
    """The store failed: out of disk, unreachable, locked, too slow.

    What was to be inserted may be in the store, or may not: insert it again with the same token.

    Attributes:
        reason: in one word, for a counter.
    """

    def __init__(self, words: str, reason: str = "store") -> None:
        super().__init__(words)
        self.reason = reason


class BadBatch(DataError):  # noqa: N818 - it is the batch that is bad
    """These bytes are no OTLP spans: inserting them again will fail again."""

    reason = "unreadable"


@dataclass(frozen=True, slots=True)
class SignalSample:
    """One reading of one signal of one engine, gateway or GPU.

    Attributes:
        t_ns: unix nanoseconds.
        instance: whose; matches a row's `replica`.
        signal: its name, one of `signals.SIGNALS`.
        value: gauges as sampled, counters raw and cumulative.
        labels: what tells several readings of one signal apart.
    """

    t_ns: int
    instance: str
    signal: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """A change that was made to the system: a deploy, a scaling, a change of settings.

    Attributes:
        t_ns: unix nanoseconds.
        kind: `deploy`, `scale`, `config`, or a word of one's own.
        text: what was done, for people.
        instance: to which engine; empty = to all.
        labels: anything else, such as `version` or `service`.
    """

    t_ns: int
    kind: str
    text: str
    instance: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one engine from this moment on.

    Attributes:
        t_ns: unix nanoseconds.
        instance: the engine.
        facts: by the names of a case's `facts.json` (`engine`, `version`, `max_num_seqs`, …);
            values of JSON.
    """

    t_ns: int
    instance: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JoinReport:
    """What one run of the join did.

    Attributes:
        rows: written anew or again, because a part of them came late.
        seconds: how long it took.
        large_traces: of those with fresh parts, how many have too many to tell whose they are by
            their place in the trace.
        without_row: fresh spans that make no row, though they are of a request, by reason.
    """

    rows: int
    seconds: float
    large_traces: int = 0
    without_row: Mapping[str, int] = field(default_factory=dict)


class Readable(Protocol):
    """What is in a store, to be queried. Any thread may call; none of it survives a fork."""

    def query(
        self, sql: str, parameters: Mapping[str, object] | None = None
    ) -> list[tuple[Any, ...]]:
        """Run a query that changes nothing and return its rows.

        Args:
            sql: of ClickHouse, with `{name:Type}` where parameters go.
            parameters: their values.

        Raises:
            DataError: the query is wrong, or would change something.
            StoreError: the store did not answer.
        """

    def end(self, name: str) -> None:
        """End the running queries of a `QueryDeadline`, by its name.

        Raises:
            StoreError: the store did not answer.
        """

    def close(self) -> None:
        """Let go of the store. Calls after it raise `StoreError`."""


class Store(Readable, Protocol):
    """Spans, rows, signals, events and facts. Any thread may call; none of it survives a fork."""

    @property
    def shared(self) -> bool:
        """Whether others may write to it, so that there may be something to join at any time."""

    def insert_otlp(self, body: bytes, token: str) -> None:
        """Store the spans of one batch, exactly once for each token.

        Args:
            body: `ExportTraceServiceRequest` messages, each after its length as a varint.
            token: names the batch; the same one again stores nothing. The last 1,000 or more
                are remembered, across restarts.

        Raises:
            BadBatch: a message cannot be parsed. Nothing of the batch is stored.
            StoreError: try again later, with the same token.
        """

    def insert_signals(self, samples: Sequence[SignalSample]) -> None:
        """Store readings of signals. Raises `StoreError`."""

    def insert_events(self, events: Sequence[Event]) -> None:
        """Store events. The same event twice is one. Raises `StoreError`."""

    def insert_facts(self, facts: Sequence[Facts]) -> None:
        """Store facts that an engine did not have before. Raises `StoreError`."""

    def join(self, now_ns: int) -> JoinReport:
        """Write the rows of all requests of which parts arrived since the last call.

        Running it again, or twice at once, makes no row twice.

        Args:
            now_ns: unix nanoseconds by this process's clock.

        Raises:
            StoreError: try again later; nothing is lost.
        """
