"""Does what the OpenTelemetry SDK's own exporters send arrive, to the last screen that shows it?

By gRPC and HTTP, plain and with gzip; with the attributes that instrumentations write today, and
with those that they wrote before the names settled.
"""

from __future__ import annotations

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OverHttp
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode

from llmtrace import cli

from .collecting import collecting, wait_for

# The attributes of one chat, by who writes them so.
SENT = {
    "semconv-1.37": {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 11,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.response.finish_reasons": ("stop",),
    },
    "semconv-1.27": {
        "gen_ai.operation.name": "chat",
        "gen_ai.system": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.usage.prompt_tokens": 11,
        "gen_ai.usage.completion_tokens": 7,
    },
    "response model alone": {
        "gen_ai.operation.name": "chat",
        "gen_ai.system": "openai",
        "gen_ai.response.model": "m",
        "gen_ai.usage.input_tokens": 11,
        "gen_ai.usage.output_tokens": 7,
    },
}


def send(exporter, processor, service):
    """Have the SDK send one trace of each kind: a request of a user, and the model's below it."""
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(processor(exporter))
    tracer = provider.get_tracer("an.instrumentation", "1.0")
    for attributes in SENT.values():
        with (
            tracer.start_as_current_span("POST /ask", kind=SpanKind.SERVER),
            tracer.start_as_current_span("chat m", kind=SpanKind.CLIENT) as span,
        ):
            span.set_attributes(attributes)
    with tracer.start_as_current_span("chat m", kind=SpanKind.CLIENT) as span:
        span.set_attributes(SENT["semconv-1.37"])
        span.set_status(StatusCode.ERROR, "overloaded")
    provider.shutdown()


def exporters(one):
    """Make an exporter of each kind for a running collector, by a name for its service."""
    http = f"{one.otlp}/v1/traces"
    over_grpc = str(one.places.otlp_grpc)
    return {
        "http": OverHttp(endpoint=http),
        "http-gzip": OverHttp(endpoint=http, compression=Compression.Gzip),
        "http-deflate": OverHttp(endpoint=http, compression=Compression.Deflate),
        "grpc": OverGrpc(endpoint=over_grpc, insecure=True),
        "grpc-gzip": OverGrpc(
            endpoint=over_grpc, insecure=True, compression=grpc.Compression.Gzip
        ),
    }


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    """A collector that got all of it; its rows by service, its metrics, and a file of its rows."""
    folder = tmp_path_factory.mktemp("exporters")
    with collecting(folder / "data", metrics_settle="0.2") as one:
        made = exporters(one)
        for number, (service, exporter) in enumerate(made.items()):
            send(exporter, (BatchSpanProcessor, SimpleSpanProcessor)[number % 2], service)
        wanted = len(made) * (len(SENT) + 1)
        rows = wait_for(lambda: (got := one.rows()) and len(got) == wanted and got, "all rows")

        def counted():
            samples = one.metrics()
            total = sum(v for k, v in samples.items() if k[0] == "llmtrace_requests_total")
            return total == wanted and samples

        metrics = wait_for(counted, "all rows counted")
        file = folder / "rows.jsonl"
        file.write_bytes(one.get("/api/v1/rows?start=-1h"))
        live = one.json("/api/v1/live")
    return rows, metrics, file, live


def test_each_exporter_and_each_naming_makes_the_same_row(sent):
    """Model, provider, tokens and outcome; the user's own span makes none."""
    rows, _, _, _ = sent
    by_service: dict[str, list[dict]] = {}
    for one in rows:
        by_service.setdefault(one["service"], []).append(one)
    assert set(by_service) == {"http", "http-gzip", "http-deflate", "grpc", "grpc-gzip"}
    for found in by_service.values():
        assert sorted(one["outcome"] for one in found) == ["error", *["success"] * len(SENT)]
        for one in found:
            assert (one["model"], one["provider"]) == ("m", "openai")
            assert (one["prompt_tokens"], one["output_tokens"]) == (11, 7)


def test_metrics_the_live_page_and_the_commands_show_them(sent, capsys):
    """Counted by service and outcome; a waterfall, a report and a triage read the rows."""
    rows, metrics, file, live = sent
    assert sum(v for k, v in metrics.items() if k[0] == "llmtrace_requests_total"
               and "outcome=error" in k) == 5  # fmt: skip
    assert live["window"]["requests"] == len(rows)
    assert live["collector"]["problems"] == []

    assert cli.main(["waterfall", str(file)]) == 0
    assert cli.main(["budget", "report", str(file)]) == 0
    assert "m" in capsys.readouterr().out
    assert cli.main(["triage", "--rows", str(file)]) in {0, 10, 11}
