"""A store of spans and rows, on any engine that runs ClickHouse's SQL.

Two engines, one contract: one runs inside this process, the other is a ClickHouse server. Same
tables, same SQL, same tests.
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
from llmtrace_collector.store.sql_engine import Engine, Settings
from llmtrace_collector.store.tables import Keep

_MS: Final = 1_000_000
_DAY_NS: Final = 86_400_000_000_000
_IN_S: Final = 1_000
_INSERT_BYTES: Final = 2 << 30
_OTLP: Final[Settings] = {
    "input_format_protobuf_oneof_presence": 1,
    # Or a batch that was stored in one table and not in the next would stay so.
    "deduplicate_blocks_in_dependent_materialized_views": 1,
    # Spans of many days in one batch are odd, and no reason to refuse it.
    "max_partitions_per_insert_block": 0,
    # Too much for one insert fails, instead of having the system end this process; what failed is
    # divided, and what alone is too much is set aside.
    "max_memory_usage": _INSERT_BYTES,
    "exclude_materialize_skip_indexes_on_insert": ",".join(otlp_to_spans.INDEXED_LATER),
}
_EACH_ROW: Final = "JSONEachRow"


class StoreReader:
    """What is in a store, to be queried. Any thread may call; none of it survives a fork.

    Nothing is made, so that a user who may only read will do.

    Args:
        engine: what runs the SQL; closed with this.
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
        lines = self.engine.read(sql, "JSONCompactEachRow", parameters)
        return [tuple(json.loads(line)) for line in lines.splitlines()]

    def end(self, name: str) -> None:
        """End the running queries of a `QueryDeadline`, by its name. Raises `StoreError`."""
        self.engine.run(kill(name))

    def close(self) -> None:
        """Close the engine, and with it the store. Calls after it raise `StoreError`."""
        self.engine.close()


class Store(StoreReader):
    """Spans, rows, signals, events and facts. Makes what tables are missing.

    Args:
        engine: what runs the SQL; closed with this.
        keep: for how long what is kept.

    Raises:
        ConfigError: the engine cannot do what is needed, or its store is of a newer version.
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
        """Whether others may write to it, so that there may be something to join at any time."""
        return self.engine.shared

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
        """Store facts that an engine did not have; once a day all, or they would grow too old."""
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

        Running it again, or twice at once, makes no row twice.

        Args:
            now_ns: unix nanoseconds by this process's clock.

        Raises:
            StoreError: try again later; nothing is lost.
        """
        with self._lock:
            return self._joiner.join(now_ns)

    def trim(self, most_bytes: int) -> Trimmed:
        """Drop the oldest days until everything takes at most so many bytes on disk."""
        return retention.trim(self.engine, most_bytes)


def _line(one: SignalSample | Event, *names: str) -> dict[str, Any]:
    same = {name: getattr(one, name) for name in names}
    return {"t": _time(one.t_ns), **same, "labels": dict(one.labels)}


def _time(t_ns: int) -> str:
    """Write a moment as JSON has it for a column of milliseconds: a number there means seconds."""
    seconds, ms = divmod(t_ns // _MS, _IN_S)
    return f"{seconds}.{ms:03d}"
