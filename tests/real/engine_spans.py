"""Where do a real engine's spans go in a test? Into a list, over OTLP/HTTP on loopback."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class SpanReceiver:
    """Keeps the attributes of every span it is sent, by trace id in hex.

    Attributes:
        also: given every request as it came, if they are wanted.
    """

    def __init__(self) -> None:
        self.also: Callable[[bytes], None] | None = None
        self._spans: dict[str, dict[str, Any]] = {}
        self._arrived = threading.Condition()

    def take(self, body: bytes) -> None:
        """Take one OTLP request."""
        request = ExportTraceServiceRequest.FromString(body)
        with self._arrived:
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        if span.name == "llm_request":
                            self._spans[span.trace_id.hex()] = {
                                pair.key: getattr(pair.value, pair.value.WhichOneof("value"))
                                for pair in span.attributes
                            }
            self._arrived.notify_all()

    def of(self, trace_id: str, timeout_s: float = 20.0) -> dict[str, Any]:
        """Return the engine's span of a trace, waiting for it: vLLM sends in batches."""
        return self._wait_for(f"trace {trace_id}", lambda trace, _: trace == trace_id, timeout_s)

    def answering(self, response_id: str, timeout_s: float = 20.0) -> dict[str, Any]:
        """Return the engine's span of the request it answered with an id, waiting for it."""
        return self._wait_for(
            f"answer {response_id}",
            lambda _, span: span.get("gen_ai.request.id") == response_id,
            timeout_s,
        )

    def _wait_for(
        self, what: str, wanted: Callable[[str, dict[str, Any]], bool], timeout_s: float
    ) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        with self._arrived:
            while True:
                for trace_id, span in self._spans.items():
                    if wanted(trace_id, span):
                        return span
                if not self._arrived.wait(deadline - time.monotonic()):
                    raise AssertionError(f"no engine span of {what} in {timeout_s} s")


@contextmanager
def receiving() -> Iterator[tuple[SpanReceiver, str]]:
    """Run a receiver on a free loopback port; yield it and its endpoint for traces."""
    receiver = SpanReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.take(body)
            if receiver.also is not None:
                receiver.also(body)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver, f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
