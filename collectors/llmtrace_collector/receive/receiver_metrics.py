"""Convert the receiver's own counters into metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from prometheus_client import Metric
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from llmtrace_collector.receive.admission import Admission
from llmtrace_collector.receive.ingest import Ingest
from llmtrace_collector.receive.quarantine import Quarantine
from llmtrace_collector.receive.spool import Spool

K = TypeVar("K")


def own_metrics(admission: Admission, spool: Spool, ingest: Ingest) -> list[Metric]:
    """Return the metrics of the receiver, the spool, the ingest and the quarantine."""
    return [
        *_of_receiver(admission),
        *_of_spool(spool),
        *_of_ingest(ingest),
        *_of_quarantine(spool.quarantine),
    ]


def _of_receiver(admission: Admission) -> list[Metric]:
    took = admission.counted
    rejected = CounterMetricFamily(
        "llmtrace_receive_rejected_requests", "OTLP requests rejected, by transport and reason.",
        labels=("transport", "reason"),
    )  # fmt: skip
    for labels, number in _copied(took.rejected):
        rejected.add_metric(labels, number)
    return [
        by_label("llmtrace_receive_requests",
                 "OTLP requests accepted and acknowledged, by transport.", "transport",
                 took.requests),
        by_label("llmtrace_receive_spans", "Spans accepted and acknowledged, by transport.",
                 "transport", took.spans),
        by_label("llmtrace_receive_bytes", "Bytes accepted, after decompression, by transport.",
                 "transport", took.payload_bytes),
        rejected,
        by_label("llmtrace_receive_rejected_spans",
                 "Spans rejected from accepted requests, by reason.", "reason",
                 took.rejected_spans),
        by_label("llmtrace_receive_dropped_connections",
                 "HTTP connections closed by the receiver, by reason.", "reason",
                 took.dropped_connections),
        gauge("llmtrace_receive_connections", "HTTP connections open now.", took.connections),
        gauge("llmtrace_receive_memory_bytes", "Memory held by requests in progress.",
              took.memory_bytes),
    ]  # fmt: skip


def _of_spool(spool: Spool) -> list[Metric]:
    kept = spool.counted
    return [
        gauge("llmtrace_spool_bytes", "Size of the spool on disk.", spool.disk_bytes),
        gauge("llmtrace_spool_limit_bytes", "Size of the spool above which requests are rejected.",
              spool.limits.disk_bytes),
        gauge("llmtrace_spool_backlog_bytes", "Bytes in the spool that are not stored yet.",
              spool.backlog_bytes),
        counter("llmtrace_spool_records", "Requests written to the spool.", kept.records),
        counter("llmtrace_spool_syncs", "Times the spool was synced to disk.", kept.syncs),
        by_label("llmtrace_spool_errors", "Failed operations on the spool's disk, by error.",
                 "error", kept.errors),
        counter("llmtrace_spool_torn_bytes",
                "Incomplete bytes, left by a killed process, that were cut off.", kept.torn_bytes),
        counter("llmtrace_spool_damaged_bytes", "Damaged bytes, skipped and set aside.",
                kept.damaged_bytes),
    ]  # fmt: skip


def _of_ingest(ingest: Ingest) -> list[Metric]:
    stored = ingest.counted
    return [
        counter("llmtrace_ingest_spans", "Spans stored.", stored.spans),
        counter("llmtrace_ingest_batches", "Batches stored.", stored.batches),
        counter("llmtrace_ingest_rows", "Rows written by the join.", stored.rows),
        counter("llmtrace_join_large_traces",
                "Times a trace had too many parts to be joined by anything but ids.",
                stored.large_traces),
        by_label("llmtrace_join_spans_without_row", "Request spans that make no row, by reason.",
                 "reason", stored.without_row),
        by_label("llmtrace_ingest_quarantined",
                 "Requests that cannot be stored and were set aside, by reason.", "reason",
                 stored.quarantined),
        by_label("llmtrace_ingest_failures",
                 "Failed attempts to store or join, which are retried, by step.", "step",
                 stored.failures),
        counter("llmtrace_ingest_insert_seconds", "Time spent inserting.", stored.insert_s),
        counter("llmtrace_ingest_join_seconds", "Time spent joining.", stored.join_s),
        gauge("llmtrace_ingest_lag_seconds", "How long spans not stored or joined have waited.",
              ingest.lag_s),
    ]  # fmt: skip


def _of_quarantine(quarantine: Quarantine) -> list[Metric]:
    return [
        gauge("llmtrace_quarantine_requests", "Requests set aside and still kept.",
              quarantine.count),
        gauge("llmtrace_quarantine_bytes", "Size of the requests set aside.", quarantine.size),
        counter("llmtrace_quarantine_dropped",
                "Requests set aside and later deleted for lack of space.", quarantine.dropped),
    ]  # fmt: skip


def gauge(name: str, words: str, value: float) -> Metric:
    """Return a gauge without labels."""
    return GaugeMetricFamily(name, words, value)


def counter(name: str, words: str, value: float) -> Metric:
    """Return a counter without labels; its name is without `_total`."""
    return CounterMetricFamily(name, words, value)


def by_label(name: str, words: str, label: str, counts: Mapping[str, int]) -> Metric:
    """Return a counter with a value for each value of one label."""
    metric = CounterMetricFamily(name, words, labels=[label])
    for value, number in _copied(counts):
        metric.add_metric([value], number)
    return metric


def _copied(counts: Mapping[K, int]) -> tuple[tuple[K, int], ...]:
    # Other threads go on counting while this is iterated.
    return tuple(dict(counts).items())
