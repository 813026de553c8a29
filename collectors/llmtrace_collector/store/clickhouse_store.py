"""A store of spans and rows, on any engine that runs ClickHouse's SQL.

There are two: one runs inside this process, the other is a ClickHouse server. Both have the same
tables, SQL and tests.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from llmtrace.core.errors import LlmtraceError
from llmtrace_collector.store import otlp_to_spans, retention, upgrade
from llmtrace_collector.store.join_sql import Joiner
from llmtrace_collector.store.query_deadline import kill
from llmtrace_collector.store.records import Event, Facts, JoinReport, SignalSample
from llmtrace_collector.store.retention import Trimmed
from llmtrace_collector.store.sql_engine import Engine, Settings, query
from llmtrace_collector.store.tables import Keep

_MS: Final = 1_000_000
_DAY_NS: Final = 86_400_000_000_000
_IN_S: Final = 1_000
_INSERT_BYTES: Final = 2 << 30
_OTLP: Final[Settings] = {
    "input_format_protobuf_oneof_presence": 1,
    # Otherwise a batch that was stored in one table only would never reach the others.
    "deduplicate_blocks_in_dependent_materialized_views": 1,
    # A batch with spans of many days is unusual, but valid.
    "max_partitions_per_insert_block": 0,
    # An insert that is too large fails, before the system kills this process; then the batch is
    # divided, and a single request that is too large is set aside.
    "max_memory_usage": _INSERT_BYTES,
    "exclude_materialize_skip_indexes_on_insert": ",".join(otlp_to_spans.INDEXED_LATER),
}
_EACH_ROW: Final = "JSONEachRow"


class StoreReader:
    """Queries the contents of a store. Any thread may call; it does not survive a fork.

    Nothing is created, so that a read-only user will do.

    Args:
        engine: runs the SQL; closed with this.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

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
        return [tuple(row) for row in query(self.engine, sql, parameters)]

    def end(self, name: str) -> None:
        """End the running queries of a `QueryDeadline`, by its name. Raises `StoreError`."""
        self.engine.run(kill(name))

    def close(self) -> None:
        """Close the engine, and with it the store. Later calls raise `StoreError`."""
        self.engine.close()


class Store(StoreReader):
    """Stores spans, rows, signals, events and facts. Creates the tables that are missing.

    Args:
        engine: runs the SQL; closed with this.
        keep: the retention times.

    Raises:
        ConfigError: the engine cannot do what is needed, or the store is of a newer version.
        StoreError: it does not answer.
    """

    def __init__(self, engine: Engine, keep: Keep | None = None) -> None:
        super().__init__(engine)
        self.keep = keep or Keep()
        self._facts: dict[str, tuple[str, int]] = {}  # as last written, and on which day
        self._lock = threading.Lock()
        upgrade.open_schema(engine, self.keep)
        retention.follow(engine, self.keep)
        self._otlp = {**_OTLP, **engine.schema(otlp_to_spans.PROTO, otlp_to_spans.MESSAGE)}
        self._joiner = Joiner(engine)

    @property
    def shared(self) -> bool:
        """Whether others may write to it, so that there may be spans to join at any time."""
        return self.engine.shared

    def insert_otlp(self, body: bytes, token: str) -> None:
        """Store the spans of one batch, exactly once for each token.

        Args:
            body: `ExportTraceServiceRequest` messages, each after its length as a varint.
            token: names the batch; a token that is used again stores nothing. The last 1,000 or
                more are remembered, across restarts.

        Raises:
            BadBatch: a message cannot be parsed. Nothing of the batch is stored.
            StoreError: try again later, with the same token.
        """
        if body:
            settings = {**self._otlp, "insert_deduplication_token": token}
            try:
                self.engine.insert("otlp", "Protobuf", body, settings)
            except LlmtraceError:
                self._joiner.keyed = False
                raise

    def insert_signals(self, samples: Sequence[SignalSample]) -> None:
        """Store readings of signals. Raises `StoreError`."""
        self._insert("signals", [_line(one, "instance", "signal", "value") for one in samples])

    def insert_events(self, events: Sequence[Event]) -> None:
        """Store events. The same event twice is one. Raises `StoreError`."""
        self._insert("events", [_line(one, "kind", "text", "instance") for one in events])

    def insert_facts(self, facts: Sequence[Facts]) -> None:
        """Store facts that changed, and once a day all of them, before they expire."""
        news, known = [], {}
        with self._lock:
            for one in facts:
                text = json.dumps(dict(one.facts), sort_keys=True)
                version = (text, one.t_ns // _DAY_NS)
                if self._facts.get(one.instance) != version:
                    known[one.instance] = version
                    news.append({"t": _time(one.t_ns), "instance": one.instance, "facts": text})
            self._insert("facts", news)
            self._facts.update(known)

    def _insert(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        if rows:
            body = "\n".join(json.dumps(row, allow_nan=True) for row in rows).encode()
            self.engine.insert(table, _EACH_ROW, body, {})

    def join(self, now_ns: int) -> JoinReport:
        """Write the rows of all requests of which parts arrived since the last call.

        No row is duplicated by running it again, or twice at once.

        Args:
            now_ns: unix nanoseconds by this process's clock.

        Raises:
            StoreError: try again later; nothing is lost.
        """
        with self._lock:
            return self._joiner.join(now_ns)

    def trim(self, most_bytes: int) -> Trimmed:
        """Drop the oldest days until everything takes at most `most_bytes` on disk."""
        return retention.trim(self.engine, most_bytes)


def _line(one: SignalSample | Event, *names: str) -> dict[str, Any]:
    same = {name: getattr(one, name) for name in names}
    return {"t": _time(one.t_ns), **same, "labels": dict(one.labels)}


def _time(t_ns: int) -> str:
    """Write a time as JSON for a column of milliseconds, where a number means seconds."""
    seconds, ms = divmod(t_ns // _MS, _IN_S)
    return f"{seconds}.{ms:03d}"
