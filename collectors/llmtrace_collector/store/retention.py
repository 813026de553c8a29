"""Keep a store within its size and its retention times.

The engine itself drops what is too old (`Keep`); tables with other retention times are altered when
the store is opened. To limit the size, `trim` drops the oldest days: spans first, and the rows of
requests, which are small and needed longest, last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from llmtrace_collector.store import tables
from llmtrace_collector.store.sql_builder import from_file
from llmtrace_collector.store.sql_engine import Engine, query
from llmtrace_collector.store.tables import Keep

# In the order in which they are dropped.
_DROPPED: Final = ("otel_traces", "request_parts", "signals", "requests")
# A smaller day is not worth dropping: something else fills the disk.
_MIN_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What was dropped, and what is left.

    Attributes:
        dropped: (table, day) pairs, also of days that were dropped in part.
        freed: their bytes.
        size: bytes of all tables afterwards.
    """

    dropped: tuple[tuple[str, str], ...]
    freed: int
    size: int


def size(engine: Engine) -> dict[str, int]:
    """Return how many bytes each table takes on disk."""
    return {name: int(count) for name, count in query(engine, from_file("bytes_by_table"))}


def trim(engine: Engine, most_bytes: int) -> Trimmed:
    """Drop the oldest days until all tables take at most `most_bytes`.

    Days far from today are taken for a wrong clock, and dropped first. If only today's spans are
    left, the older part of them is deleted.

    Args:
        engine: of the store; on a cluster each node has to trim its own.
        most_bytes: of all tables together.

    Raises:
        StoreError: a day could not be dropped.
    """
    total = sum(size(engine).values())
    dropped: list[tuple[str, str]] = []
    freed = 0
    for table in _DROPPED:
        for day, has in _days(engine, table):
            left = total - freed
            if left <= most_bytes:
                break
            today = day == _today(engine)
            if today and table != "otel_traces":
                break
            if today:
                if has < _MIN_BYTES:
                    break
                share = min(1.0, (left - most_bytes) / has)
                _delete_older(engine, share)
                freed += round(has * share)
            else:
                engine.run(f"ALTER TABLE {table} DROP PARTITION '{day}'")
                freed += has
            dropped.append((table, day))
    return Trimmed(tuple(dropped), freed, sum(size(engine).values()) if dropped else total)


def _today(engine: Engine) -> str:
    return engine.read("SELECT toString(toDate(now()))", "TSV").decode().strip()


def _days(engine: Engine, table: str) -> list[tuple[str, int]]:
    found = query(engine, from_file("days_kept", table=table))
    return [(day, int(count)) for day, count in found]


def _delete_older(engine: Engine, share: float) -> None:
    """Delete the oldest share of today's spans."""
    [until] = engine.read(from_file("oldest_spans", share=f"{share:.4f}"), "TSV").split()
    engine.run(from_file("delete_spans", until_ns=f"{float(until):.0f}"))


def follow(engine: Engine, keep: Keep) -> None:
    """Give existing tables the present retention times."""
    made = dict(
        query(
            engine,
            "SELECT name, engine_full FROM system.tables WHERE database = currentDatabase()",
        )
    )
    for table in tables.TABLES:
        days = tables.days_kept(table, keep)
        now = made.get(table.name, "")
        if " TTL " in now and f"toIntervalDay({days})" not in now:
            engine.run(f"ALTER TABLE {table.name} MODIFY TTL {table.time} + INTERVAL {days} DAY")
