"""Store spans, rows and signals."""

from llmtrace_collector.store.clickhouse_store import Store
from llmtrace_collector.store.open_store import open_store
from llmtrace_collector.store.records import (
    BadBatch,
    Event,
    Facts,
    JoinReport,
    SignalSample,
    StoreError,
)

__all__ = [
    "BadBatch",
    "Event",
    "Facts",
    "JoinReport",
    "SignalSample",
    "Store",
    "StoreError",
    "open_store",
]
