"""Expose the receiver's own counters as metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias, TypeVar

from llmtrace_collector.receive.admission import Admission
from llmtrace_collector.receive.ingest import Ingest
from llmtrace_collector.receive.quarantine import Quarantine
from llmtrace_collector.receive.spool import Spool

K = TypeVar("K")
Samples = Iterable[tuple[Mapping[str, str], float]]
MetricSamples: TypeAlias = tuple[str, str, str, Samples]


def own_metrics(admission: Admission, spool: Spool, ingest: Ingest) -> Iterator[MetricSamples]:
    """Yield each metric's name (a counter's without `_total`), words, kind and samples."""
    yield from _of_receiver(admission)
    yield from _of_spool(spool)
    yield from _of_ingest(ingest)
    yield from _of_quarantine(spool.quarantine)


def _of_receiver(admission: Admission) -> Iterator[MetricSamples]:
    took = admission.counted
    yield _by(
        "llmtrace_receive_requests", "OTLP requests accepted and acknowledged, by transport.",
        "transport", took.requests,
    )  # fmt: skip
    yield _by(
        "llmtrace_receive_spans", "Spans accepted and acknowledged, by transport.",
        "transport", took.spans,
    )  # fmt: skip
    yield _by(
        "llmtrace_receive_bytes", "Bytes accepted, after decompression, by transport.",
        "transport", took.payload_bytes,
    )  # fmt: skip
    yield (
        "llmtrace_receive_rejected_requests", "OTLP requests rejected, by transport and reason.",
        "counter",
        [
            ({"transport": transport, "reason": reason}, number)
            for (transport, reason), number in _now(took.rejected)
        ],
    )  # fmt: skip
    yield _by(
        "llmtrace_receive_rejected_spans", "Spans rejected from accepted requests, by reason.",
        "reason", took.rejected_spans,
    )  # fmt: skip
    yield _by(
        "llmtrace_receive_dropped_connections",
        "HTTP connections closed by the receiver, by reason.",
        "reason", took.dropped_connections,
    )  # fmt: skip
    yield _one(
        "llmtrace_receive_connections", "HTTP connections open now.", "gauge", took.connections
    )
    yield _one(
        "llmtrace_receive_memory_bytes", "Memory held by requests in progress.", "gauge",
        took.memory_bytes,
    )  # fmt: skip


def _of_spool(spool: Spool) -> Iterator[MetricSamples]:
    kept = spool.counted
    yield _one("llmtrace_spool_bytes", "Size of the spool on disk.", "gauge", spool.disk_bytes)
    yield _one(
        "llmtrace_spool_limit_bytes",
        "Size of the spool above which requests are rejected.", "gauge",
        spool.limits.disk_bytes,
    )  # fmt: skip
    yield _one(
        "llmtrace_spool_backlog_bytes", "Bytes in the spool that are not stored yet.", "gauge",
        spool.backlog_bytes,
    )  # fmt: skip
    yield _one("llmtrace_spool_records", "Requests written to the spool.", "counter", kept.records)
    yield _one(
        "llmtrace_spool_syncs", "Times the spool was synced to disk.", "counter", kept.syncs
    )
    yield _by(
        "llmtrace_spool_errors", "Failed operations on the spool's disk, by error.",
        "error", kept.errors,
    )  # fmt: skip
    yield _one(
        "llmtrace_spool_torn_bytes",
        "Incomplete bytes, left by a killed process, that were cut off.", "counter",
        kept.torn_bytes,
    )  # fmt: skip
    yield _one(
        "llmtrace_spool_damaged_bytes", "Damaged bytes, skipped and set aside.", "counter",
        kept.damaged_bytes,
    )  # fmt: skip


def _of_ingest(ingest: Ingest) -> Iterator[MetricSamples]:
    stored = ingest.counted
    yield _one("llmtrace_ingest_spans", "Spans stored.", "counter", stored.spans)
    yield _one("llmtrace_ingest_batches", "Batches stored.", "counter", stored.batches)
    yield _one("llmtrace_ingest_rows", "Rows written by the join.", "counter", stored.rows)
    yield _one(
        "llmtrace_join_large_traces",
        "Times a trace had too many parts to be joined by anything but ids.", "counter",
        stored.large_traces,
    )  # fmt: skip
    yield _by(
        "llmtrace_join_spans_without_row", "Request spans that make no row, by reason.",
        "reason", stored.without_row,
    )  # fmt: skip
    yield _by(
        "llmtrace_ingest_quarantined",
        "Requests that cannot be stored and were set aside, by reason.",
        "reason", stored.quarantined,
    )  # fmt: skip
    yield _by(
        "llmtrace_ingest_failures",
        "Failed attempts to store or join, which are retried, by step.",
        "step", stored.failures,
    )  # fmt: skip
    yield _one(
        "llmtrace_ingest_insert_seconds", "Time spent inserting.", "counter", stored.insert_s
    )
    yield _one("llmtrace_ingest_join_seconds", "Time spent joining.", "counter", stored.join_s)
    yield _one(
        "llmtrace_ingest_lag_seconds", "Time since everything accepted was stored.", "gauge",
        ingest.lag_s,
    )  # fmt: skip


def _of_quarantine(quarantine: Quarantine) -> Iterator[MetricSamples]:
    yield _one(
        "llmtrace_quarantine_requests", "Requests set aside and still kept.", "gauge",
        quarantine.count,
    )  # fmt: skip
    yield _one(
        "llmtrace_quarantine_bytes", "Size of the requests set aside.", "gauge", quarantine.size
    )
    yield _one(
        "llmtrace_quarantine_dropped",
        "Requests set aside and later deleted for lack of space.", "counter",
        quarantine.dropped,
    )  # fmt: skip


def _one(name: str, words: str, kind: str, value: float) -> MetricSamples:
    return name, words, kind, [({}, value)]


def _by(name: str, words: str, label: str, counts: Mapping[str, int]) -> MetricSamples:
    return name, words, "counter", [({label: value}, n) for value, n in _now(counts)]


def _now(counts: Mapping[K, int]) -> tuple[tuple[K, int], ...]:
    # Another thread counts on: a copy is what can be gone through.
    return tuple(dict(counts).items())
