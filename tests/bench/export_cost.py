"""What does each exporter cost a request? CPU time of the whole process, all its threads.

    python -m tests.bench.export_cost [rows]

Rows are made and split before the clock starts. Receivers run in a process of their own and throw
away what they get. The SDK lines show what the usual way would have cost.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from llmtrace.core.row import Row
from llmtrace.exporters import tracer_provider
from llmtrace.exporters.console.sink import console_sink
from llmtrace.exporters.genai_metrics.sink import GenAISink
from llmtrace.exporters.otlp.sink import otlp_sink
from llmtrace.exporters.prometheus.sink import PrometheusSink
from llmtrace.exporters.sink import Sink
from tests.exporters.samples import typical

ROUNDS = 5
BATCH = 512


def made(count: int) -> list[Row]:
    """Make rows that differ as requests do: ids, tokens and every duration."""
    rows = []
    for n in range(count):
        row = typical(n, trace_id=f"{n + 1:032x}", prompt_tokens=1000 + n % 997)
        timeline = row.timeline
        rows.append(
            replace(
                row,
                output_tokens=100 + n % 211,
                timeline=replace(
                    timeline,
                    e2e=timeline.e2e + 1009 * n,
                    held_before=40_000 + n,  # an eager reader
                    held_after=timeline.held_after + 13 * n,
                ),
            )
        )
        assert rows[-1].stages  # a row is split once, at the first use
    return rows


def cost_us(rows: list[Row], sinks: Iterable[Callable[[], Sink]]) -> float:
    """Measure CPU microseconds a row: writing to all sinks, and everything they do until done."""
    rounds = []
    for _ in range(ROUNDS):
        open_sinks = [make() for make in sinks]
        for sink in open_sinks:  # connections and threads are not what a request costs
            sink.write(rows[0])
            sink.flush(30)
        before = time.process_time()
        for start in range(0, len(rows), BATCH):
            for row in rows[start : start + BATCH]:
                for sink in open_sinks:
                    sink.write(row)
            for sink in open_sinks:
                if not isinstance(sink, GenAISink):  # sends once a minute, not once a batch
                    sink.flush(30)
        for sink in open_sinks:
            sink.flush(30)
        rounds.append((time.process_time() - before) / len(rows) * 1e6)
        for sink in open_sinks:
            sink.close()
    return statistics.median(rounds)


def sdk_us(rows: list[Row], *, encoded: bool) -> float:
    """Measure the same rows as spans of OpenTelemetry's SDK, and through its encoder."""
    rounds = []
    for _ in range(ROUNDS):
        kept = InMemorySpanExporter()
        own = TracerProvider()
        own.add_span_processor(SimpleSpanProcessor(kept))
        tracer = own.get_tracer("llmtrace")
        before = time.process_time()
        for row in rows:
            tracer_provider.finish(tracer_provider.start(tracer, {}, row.start), row)
        if encoded:
            encode_spans(kept.get_finished_spans()).SerializeToString()
        rounds.append((time.process_time() - before) / len(rows) * 1e6)
        own.shutdown()
    return statistics.median(rounds)


def receive() -> None:
    """Take OTLP by HTTP and gRPC until killed; print the two ports."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Anything(grpc.GenericRpcHandler):
        def service(self, _: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(lambda *_: b"")

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Anything(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(http.server_port, port, flush=True)
    http.serve_forever()


def main(count: int) -> None:
    """Print the table."""
    child = subprocess.Popen(
        [sys.executable, "-c", "from tests.bench.export_cost import receive; receive()"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        http_port, grpc_port = child.stdout.readline().split()
        http, grpc_ = f"http://127.0.0.1:{http_port}", f"http://127.0.0.1:{grpc_port}"
        report(made(count), http, grpc_)
    finally:
        child.kill()
        child.wait()


def report(rows: list[Row], http: str, grpc_: str) -> None:
    """Measure each exporter alone and the usual ones together."""
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": http, "OTEL_METRIC_EXPORT_INTERVAL": "600000"}

    def spans(url: str, protocol: str | None = None, **environ: str) -> Callable[[], Sink]:
        return lambda: otlp_sink(endpoint=url, protocol=protocol, interval_s=600, environ=environ)

    def metrics() -> Sink:
        return GenAISink(environ=environ)

    def prometheus() -> Sink:
        return PrometheusSink(registry=CollectorRegistry())

    def console() -> Sink:
        return console_sink(sink_hole, interval_s=600)

    with open("/dev/null", "w") as sink_hole:  # noqa: PTH123 - a device, not a file
        lines: list[tuple[str, Iterable[Callable[[], Sink]]]] = [
            ("OTLP spans, HTTP", [spans(http)]),
            ("OTLP spans, HTTP, gzip", [spans(http, OTEL_EXPORTER_OTLP_COMPRESSION="gzip")]),
            ("OTLP spans, gRPC", [spans(grpc_, protocol="grpc")]),
            ("OTLP GenAI metrics", [metrics]),
            ("Prometheus", [prometheus]),
            ("console", [console]),
            ("spans (HTTP) + metrics + Prometheus", [spans(http), metrics, prometheus]),
            (
                "spans (gRPC) + metrics + Prometheus",
                [spans(grpc_, protocol="grpc"), metrics, prometheus],
            ),
        ]
        print(f"CPU µs a request, {len(rows)} rows in batches of {BATCH}, median of {ROUNDS}")
        for name, sinks in lines:
            print(f"{cost_us(rows, sinks):8.1f}  {name}", flush=True)
    print(f"{sdk_us(rows, encoded=False):8.1f}  an application's own provider (SDK spans)")
    print(f"{sdk_us(rows, encoded=True):8.1f}  the same, and OpenTelemetry's own encoder")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4096)
