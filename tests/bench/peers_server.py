"""Who answers the clients of the comparison, and takes what their SDKs export?

One server in a process of its own: chat answers at once or paced, OTLP over HTTP, Langfuse's
endpoint. What was exported is kept until it is asked for, decoded to what the comparison reads.
"""

from __future__ import annotations

import gzip
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any, Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.bench.replay import events

FIRST_S: Final = 0.06
GAP_S: Final = 0.01
CHUNKS: Final = 20
_QUEUE_S: Final = 0.01
_KEPT: Final = 2_000


class _Taken:
    """What came since it was last asked for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.spans: list[dict[str, Any]] = []
        self.metrics: dict[str, dict[str, float]] = {}
        self.sent = 0


_taken = _Taken()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms for an acknowledgement
    at_once = b"".join(events(1))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path.endswith("/chat/completions"):
            if json.loads(body)["model"] == "paced":
                self._paced()
            else:
                self._say(self.at_once, "text/event-stream")
            return
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path.endswith("/traces"):
            _keep_spans(body)
        elif self.path.endswith("/metrics"):
            _keep_metrics(body)
        self._say(b"", "application/x-protobuf")

    def do_GET(self) -> None:
        if not self.path.endswith("/taken"):
            self._say(b"{}", "application/json")
            return
        with _taken.lock:
            received = {"spans": _taken.spans, "metrics": _taken.metrics, "sent": _taken.sent}
            _taken.forget()
        self._say(json.dumps(received).encode(), "application/json")

    def _say(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _paced(self) -> None:
        """Send headers at once, the first content after `FIRST_S`, the rest one by one."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        # The engine tells how long the first content took it, as vLLM does if asked.
        role, *rest = events(
            CHUNKS, queue_ms=_QUEUE_S * 1e3, prefill_ms=(FIRST_S - _QUEUE_S) * 1e3
        )
        due = time.monotonic() + FIRST_S
        for number, event in enumerate(rest):
            time.sleep(max(0.0, due - time.monotonic()))
            if number == 0:
                _taken.sent = time.monotonic_ns()
                event = role + event  # noqa: PLW2901 - as vLLM sends them
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            due += GAP_S
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _keep_spans(body: bytes) -> None:
    with _taken.lock:
        if len(_taken.spans) > _KEPT:
            return  # no queries now: the CPU is being measured
    request = ExportTraceServiceRequest.FromString(body)
    spans = [
        {
            "name": span.name,
            "start": span.start_time_unix_nano,
            "end": span.end_time_unix_nano,
            "attributes": {one.key: _value(one.value) for one in span.attributes},
            "events": [(event.name, event.time_unix_nano) for event in span.events],
        }
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    with _taken.lock:
        _taken.spans += spans


def _keep_metrics(body: bytes) -> None:
    """Keep each histogram's sum and count since the last time; the exporters send totals."""
    request = ExportMetricsServiceRequest.FromString(body)
    with _taken.lock:
        for resource in request.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.histogram.data_points:
                        key = f"{metric.name} {point.start_time_unix_nano} {point.attributes}"
                        before = _totals.get(key, (0.0, 0))
                        _totals[key] = point.sum, point.count
                        if point.count > before[1]:
                            _taken.metrics[metric.name] = {
                                "sum": point.sum - before[0],
                                "count": point.count - before[1],
                            }


_totals: dict[str, tuple[float, int]] = {}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return (
        getattr(value, kind)
        if kind in {"string_value", "bool_value", "int_value", "double_value"}
        else None
    )


def serve(port: Connection) -> None:
    """Serve until the process is ended; send the port first."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    port.send(server.server_address[1])
    server.serve_forever()
