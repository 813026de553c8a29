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
        "llmtrace_receive_requests", "Requests taken and acknowledged, by way.",
        "way", took.requests,
    )  # fmt: skip
    yield _by(
        "llmtrace_receive_spans", "Spans taken and acknowledged, by way.",
        "way", took.spans,
    )  # fmt: skip
    yield _by(
        "llmtrace_receive_bytes", "Bytes taken, after decompression, by way.",
        "way", took.payload_bytes,
    )  # fmt: skip
    yield (
        "llmtrace_receive_refused_requests", "Requests not taken, by why not.", "counter",
        [({"way": way, "reason": why}, n) for (way, why), n in _now(took.refused)],
    )  # fmt: skip
    yield _by(
        "llmtrace_receive_refused_spans", "Spans left out of requests taken, by why.",
        "reason", took.refused_spans,
    )  # fmt: skip
    yield _by(
        "llmtrace_receive_dropped_connections", "HTTP connections closed, by why.",
        "reason", took.dropped_connections,
    )  # fmt: skip
    yield _one("llmtrace_receive_connections", "Open now, HTTP.", "gauge", took.connections)
    yield _one(
        "llmtrace_receive_memory_bytes", "Held by requests under way.", "gauge", took.memory_bytes
    )


def _of_spool(spool: Spool) -> Iterator[MetricSamples]:
    kept = spool.counted
    yield _one("llmtrace_spool_bytes", "The spool's files now.", "gauge", spool.disk_bytes)
    yield _one(
        "llmtrace_spool_limit_bytes", "Above this senders are to wait.", "gauge",
        spool.limits.disk_bytes,
    )  # fmt: skip
    yield _one("llmtrace_spool_backlog_bytes", "Not stored yet.", "gauge", spool.backlog_bytes)
    yield _one("llmtrace_spool_records", "Requests written.", "counter", kept.records)
    yield _one("llmtrace_spool_syncs", "Syncs of the disk.", "counter", kept.syncs)
    yield _by(
        "llmtrace_spool_errors", "What the disk did not do, by the error's name.",
        "error", kept.errors,
    )  # fmt: skip
    yield _one(
        "llmtrace_spool_torn_bytes", "Cut off what a killed process wrote last.", "counter",
        kept.torn_bytes,
    )  # fmt: skip
    yield _one(
        "llmtrace_spool_damaged_bytes", "Skipped, and put aside.", "counter", kept.damaged_bytes
    )


def _of_ingest(ingest: Ingest) -> Iterator[MetricSamples]:
    stored = ingest.counted
    yield _one("llmtrace_ingest_spans", "Spans stored.", "counter", stored.spans)
    yield _one("llmtrace_ingest_batches", "Batches stored.", "counter", stored.batches)
    yield _one("llmtrace_ingest_rows", "Rows the join wrote.", "counter", stored.rows)
    yield _one(
        "llmtrace_join_large_traces",
        "Times a trace had too many parts to join them by their place in it.", "counter",
        stored.large_traces,
    )  # fmt: skip
    yield _by(
        "llmtrace_join_spans_without_row", "Spans of requests that make no row, by why.",
        "reason", stored.without_row,
    )  # fmt: skip
    yield _by(
        "llmtrace_ingest_quarantined", "Requests that cannot be stored, set aside, by why.",
        "reason", stored.quarantined,
    )  # fmt: skip
    yield _by(
        "llmtrace_ingest_failures", "What did not succeed at once, by what.",
        "step", stored.failures,
    )  # fmt: skip
    yield _one("llmtrace_ingest_insert_seconds", "Spent inserting.", "counter", stored.insert_s)
    yield _one("llmtrace_ingest_join_seconds", "Spent joining.", "counter", stored.join_s)
    yield _one(
        "llmtrace_ingest_lag_seconds", "Since all that was taken was stored.", "gauge",
        ingest.lag_s,
    )  # fmt: skip


def _of_quarantine(quarantine: Quarantine) -> Iterator[MetricSamples]:
    yield _one(
        "llmtrace_quarantine_requests", "Set aside and still there.", "gauge",
        quarantine.count,
    )  # fmt: skip
    yield _one("llmtrace_quarantine_bytes", "Of the requests set aside.", "gauge", quarantine.size)
    yield _one(
        "llmtrace_quarantine_dropped", "Set aside, and deleted for lack of room.", "counter",
        quarantine.dropped,
    )  # fmt: skip


def _one(name: str, words: str, kind: str, value: float) -> MetricSamples:
    return name, words, kind, [({}, value)]


def _by(name: str, words: str, label: str, counts: Mapping[str, int]) -> MetricSamples:
    return name, words, "counter", [({label: value}, n) for value, n in _now(counts)]


def _now(counts: Mapping[K, int]) -> tuple[tuple[K, int], ...]:
    # Another thread counts on: a copy is what can be gone through.
    return tuple(dict(counts).items())
