"""Count what came, was rejected and is waiting, where it happens; `/metrics` reads it.

Each counter is written by one thread alone: those of requests by the event loop's, those of the
spool by its writer's or its reader's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Received:
    """What senders brought.

    Attributes:
        requests: taken, by protocol (`http`, `grpc`, `beacon`).
        spans: taken, by protocol.
        payload_bytes: taken, after decompression, by protocol.
        rejected: requests not taken, by protocol and reason.
        rejected_spans: of requests that were taken otherwise, by reason.
        dropped_connections: closed by us, by reason.
        connections: open now, HTTP.
        memory_bytes: held now by requests under way.
    """

    requests: Counter[str] = field(default_factory=Counter)
    spans: Counter[str] = field(default_factory=Counter)
    payload_bytes: Counter[str] = field(default_factory=Counter)
    rejected: Counter[tuple[str, str]] = field(default_factory=Counter)
    rejected_spans: Counter[str] = field(default_factory=Counter)
    dropped_connections: Counter[str] = field(default_factory=Counter)
    connections: int = 0
    memory_bytes: int = 0


@dataclass(slots=True)
class Spooled:
    """What the spool did.

    Attributes:
        records: appended.
        syncs: of the disk.
        errors: what the disk did not do, by the error's name.
        torn_bytes: cut off the end of what a killed process had written.
        damaged_bytes: skipped between good records, and kept aside.
    """

    records: int = 0
    syncs: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    torn_bytes: int = 0
    damaged_bytes: int = 0


@dataclass(slots=True)
class Ingested:
    """What went from the spool to the store.

    Attributes:
        spans: stored.
        batches: stored.
        failures: of the store, by what it was doing (`insert`, `join`, `spool`).
        quarantined: requests that were set aside, by reason.
        rows: written by the join, again ones included.
        large_traces: times a trace had too many parts to tell whose they are by their place.
        without_row: spans of requests that make no row, by reason.
        insert_s: spent in inserts; `join_s` in joins.
        problem: what failed last, in words; `None` while all is well.
    """

    spans: int = 0
    batches: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    quarantined: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    large_traces: int = 0
    without_row: Counter[str] = field(default_factory=Counter)
    insert_s: float = 0.0
    join_s: float = 0.0
    problem: str | None = None
