"""Counters of what was received, rejected, spooled and stored; `/metrics` reads them.

Each counter is written by one thread only: those of requests by the event loop, those of the spool
by its writer or its reader.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Received:
    """Counters of the receiver.

    Attributes:
        requests: accepted, by protocol (`http`, `grpc`, `beacon`).
        spans: accepted, by protocol.
        payload_bytes: accepted, after decompression, by protocol.
        rejected: rejected requests, by protocol and reason.
        rejected_spans: rejected spans of accepted requests, by reason.
        dropped_connections: closed by us, by reason.
        connections: open now, HTTP.
        memory_bytes: held now by requests in progress.
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
    """Counters of the spool.

    Attributes:
        records: appended.
        syncs: of the disk.
        errors: failed operations of the disk, by the name of the error.
        torn_bytes: incomplete bytes at the end of what a killed process wrote.
        damaged_bytes: skipped between good records, and set aside.
    """

    records: int = 0
    syncs: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    torn_bytes: int = 0
    damaged_bytes: int = 0


@dataclass(slots=True)
class Ingested:
    """Counters of the way from the spool to the store.

    Attributes:
        spans: stored.
        batches: stored.
        failures: by what was being done (`insert`, `join`, `spool`).
        quarantined: requests that were set aside, by reason.
        rows: written by the join, including repeated writes.
        large_traces: times a trace had too many parts to match them by their place.
        without_row: spans of requests that make no row, by reason.
        insert_s: spent in inserts.
        join_s: spent in joins.
        problems: what fails now (`insert`, `join`, `spool`), and why, in words.
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
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def problem(self) -> str | None:
        """What fails now, in words; `None` while all is well."""
        return "; ".join(f"{step}: {why}" for step, why in tuple(self.problems.items())) or None
