"""Expose the receiver's own counters as metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias, TypeVar

from llmtrace_collector.receive.admission import Admission
from llmtrace_collector.receive.ingest import Ingest
from llmtrace_collector.receive.quarantine import Quarantine
from llmtrace_collector.receive.spool import Spool

K = TypeVar("K")
Samples = Iterable[tuple[Mapping[str, str], float]]
MetricSamples: TypeAlias = tuple[str, str, str, Samples]


def own_metrics(admission: Admission, spool: Spool, ingest: Ingest) -> list[MetricSamples]:
    """Return each metric's name (a counter's without `_total`), words, kind and samples."""
    return [*_of_receiver(admission), *_of_spool(spool), *_of_ingest(ingest),
            *_of_quarantine(spool.quarantine)]  # fmt: skip


def _of_receiver(admission: Admission) -> list[MetricSamples]:
    took = admission.counted
    rejected = [({"transport": transport, "reason": reason}, number)
                for (transport, reason), number in _now(took.rejected)]  # fmt: skip
    return [
        _by("llmtrace_receive_requests", "OTLP requests accepted and acknowledged, by transport.",
            "transport", took.requests),
        _by("llmtrace_receive_spans", "Spans accepted and acknowledged, by transport.",
            "transport", took.spans),
        _by("llmtrace_receive_bytes", "Bytes accepted, after decompression, by transport.",
            "transport", took.payload_bytes),
        ("llmtrace_receive_rejected_requests", "OTLP requests rejected, by transport and reason.",
         "counter", rejected),
        _by("llmtrace_receive_rejected_spans", "Spans rejected from accepted requests, by reason.",
            "reason", took.rejected_spans),
        _by("llmtrace_receive_dropped_connections",
            "HTTP connections closed by the receiver, by reason.",
            "reason", took.dropped_connections),
        _one("llmtrace_receive_connections", "HTTP connections open now.",
             "gauge", took.connections),
        _one("llmtrace_receive_memory_bytes", "Memory held by requests in progress.",
             "gauge", took.memory_bytes),
    ]  # fmt: skip


def _of_spool(spool: Spool) -> list[MetricSamples]:
    kept = spool.counted
    return [
        _one("llmtrace_spool_bytes", "Size of the spool on disk.", "gauge", spool.disk_bytes),
        _one("llmtrace_spool_limit_bytes", "Size of the spool above which requests are rejected.",
             "gauge", spool.limits.disk_bytes),
        _one("llmtrace_spool_backlog_bytes", "Bytes in the spool that are not stored yet.",
             "gauge", spool.backlog_bytes),
        _one("llmtrace_spool_records", "Requests written to the spool.", "counter", kept.records),
        _one("llmtrace_spool_syncs", "Times the spool was synced to disk.", "counter", kept.syncs),
        _by("llmtrace_spool_errors", "Failed operations on the spool's disk, by error.",
            "error", kept.errors),
        _one("llmtrace_spool_torn_bytes",
             "Incomplete bytes, left by a killed process, that were cut off.",
             "counter", kept.torn_bytes),
        _one("llmtrace_spool_damaged_bytes", "Damaged bytes, skipped and set aside.",
             "counter", kept.damaged_bytes),
    ]  # fmt: skip


def _of_ingest(ingest: Ingest) -> list[MetricSamples]:
    stored = ingest.counted
    return [
        _one("llmtrace_ingest_spans", "Spans stored.", "counter", stored.spans),
        _one("llmtrace_ingest_batches", "Batches stored.", "counter", stored.batches),
        _one("llmtrace_ingest_rows", "Rows written by the join.", "counter", stored.rows),
        _one("llmtrace_join_large_traces",
             "Times a trace had too many parts to be joined by anything but ids.",
             "counter", stored.large_traces),
        _by("llmtrace_join_spans_without_row", "Request spans that make no row, by reason.",
            "reason", stored.without_row),
        _by("llmtrace_ingest_quarantined",
            "Requests that cannot be stored and were set aside, by reason.",
            "reason", stored.quarantined),
        _by("llmtrace_ingest_failures",
            "Failed attempts to store or join, which are retried, by step.",
            "step", stored.failures),
        _one("llmtrace_ingest_insert_seconds", "Time spent inserting.",
             "counter", stored.insert_s),
        _one("llmtrace_ingest_join_seconds", "Time spent joining.", "counter", stored.join_s),
        _one("llmtrace_ingest_lag_seconds", "Time since everything accepted was stored.",
             "gauge", ingest.lag_s),
    ]  # fmt: skip


def _of_quarantine(quarantine: Quarantine) -> list[MetricSamples]:
    return [
        _one("llmtrace_quarantine_requests", "Requests set aside and still kept.",
             "gauge", quarantine.count),
        _one("llmtrace_quarantine_bytes", "Size of the requests set aside.",
             "gauge", quarantine.size),
        _one("llmtrace_quarantine_dropped",
             "Requests set aside and later deleted for lack of space.",
             "counter", quarantine.dropped),
    ]  # fmt: skip


def _one(name: str, words: str, kind: str, value: float) -> MetricSamples:
    return name, words, kind, [({}, value)]


def _by(name: str, words: str, label: str, counts: Mapping[str, int]) -> MetricSamples:
    return name, words, "counter", [({label: value}, n) for value, n in _now(counts)]


def _now(counts: Mapping[K, int]) -> tuple[tuple[K, int], ...]:
    # Another thread counts on: a copy is what can be gone through.
    return tuple(dict(counts).items())
