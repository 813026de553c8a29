"""OTLP receivers on loopback, for tests: they keep what they get and respond as set."""

from __future__ import annotations

import gzip
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc


@dataclass
class Received:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    message: object
    peer: object = None


@dataclass
class Receiver:
    """What came, and where to send it."""

    url: str = ""
    requests: list[Received] = field(default_factory=list)

    def spans(self):
        """All spans of all requests, in order."""
        return [
            span
            for request in self.requests
            for resource in request.message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def metrics(self):
        """The metrics of the last request, by name."""
        return {
            metric.name: metric
            for resource in self.requests[-1].message.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@dataclass
class Answer:
    """What a receiver says: an HTTP status, headers and a body."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@contextmanager
def http_receiver(
    answer: Callable[[int], Answer] = lambda _: Answer(), tls: ssl.SSLContext | None = None
) -> Iterator[Receiver]:
    """Receive OTLP by HTTP; `answer` gets the number of the request, from 0."""
    receiver = Receiver()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            kind = (
                metrics_pb.ExportMetricsServiceRequest
                if self.path.endswith("/metrics")
                else trace_pb.ExportTraceServiceRequest
            )
            headers = {name.lower(): value for name, value in self.headers.items()}
            with lock:
                number = len(receiver.requests)
                receiver.requests.append(
                    Received(self.path, headers, kind.FromString(body), self.client_address)
                )
            said = answer(number)
            self.send_response(said.status)
            for name, value in said.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(said.body)))
            self.end_headers()
            self.wfile.write(said.body)

        def log_message(self, *args):
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request, client_address):
            if not isinstance(sys.exception(), ConnectionError):  # who gave up is no news
                super().handle_error(request, client_address)

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        receiver.url = f"https://127.0.0.1:{server.server_port}"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def grpc_receiver(
    answer: Callable[[int, grpc.ServicerContext], object | None] = lambda *_: None,
    tls: grpc.ServerCredentials | None = None,
) -> Iterator[Receiver]:
    """Receive OTLP by gRPC; `answer` may abort the call or return the response."""
    receiver = Receiver()

    def keep(path, request, context):
        number = len(receiver.requests)
        headers = dict(context.invocation_metadata())
        receiver.requests.append(Received(path, headers, request))
        return answer(number, context)

    class Traces(trace_grpc.TraceServiceServicer):
        def Export(self, request, context):  # noqa: N802
            return keep("traces", request, context) or trace_pb.ExportTraceServiceResponse()

    class Metrics(metrics_grpc.MetricsServiceServicer):
        def Export(self, request, context):  # noqa: N802
            return keep("metrics", request, context) or metrics_pb.ExportMetricsServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    trace_grpc.add_TraceServiceServicer_to_server(Traces(), server)
    metrics_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)
    if tls is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", tls)
    server.start()
    receiver.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"
    try:
        yield receiver
    finally:
        server.stop(0).wait()


@contextmanager
def silent_server() -> Iterator[str]:
    """Accept connections and never answer."""
    listening = socket.create_server(("127.0.0.1", 0))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.close()
