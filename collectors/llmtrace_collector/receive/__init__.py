"""Take spans and beacons from their senders to the store, each of them once.

They are checked and appended to a spool, acknowledged, and stored from there: `Admission` appends
what `routes` (HTTP) and `start_grpc` receive to a `Spool`, and `Ingest` empties that into a store.
"""

from llmtrace_collector.receive.admission import Admission
from llmtrace_collector.receive.auth import HttpAccess
from llmtrace_collector.receive.http_server import HttpServer
from llmtrace_collector.receive.ingest import Ingest, IngestSettings
from llmtrace_collector.receive.limits import ReceiveLimits, SpoolLimits
from llmtrace_collector.receive.otlp_grpc import start_grpc
from llmtrace_collector.receive.otlp_http import routes
from llmtrace_collector.receive.receiver_metrics import own_metrics
from llmtrace_collector.receive.spool import Spool

__all__ = [
    "Admission",
    "HttpAccess",
    "HttpServer",
    "Ingest",
    "IngestSettings",
    "ReceiveLimits",
    "Spool",
    "SpoolLimits",
    "own_metrics",
    "routes",
    "start_grpc",
]
