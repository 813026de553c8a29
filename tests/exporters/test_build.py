from __future__ import annotations

import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry

from llmtrace.core.errors import ConfigError
from llmtrace.exporters import ExportSettings, build, build_all
from llmtrace.exporters.sink import receiver
from tests.exporters.samples import typical


@pytest.fixture
def settings():
    """Settings with a registry of their own."""
    return ExportSettings(service="shop", registry=CollectorRegistry())


@pytest.mark.parametrize(
    ("name", "every_row"),
    [
        ("otlp", False),
        ("otlp-metrics", True),
        ("prometheus", True),
        ("prometheus:0", True),
        ("console", False),
    ],
)
def test_names(name, every_row, settings):
    """Each name makes its sink; those that count want the rows sampling leaves out."""
    sink = build(name, settings)

    assert every_row is receiver(sink).every_row
    assert sink.flush(0)
    sink.close()


@pytest.mark.parametrize(
    "name",
    ["", "jaeger", "otlp:4317", "console:1", "prometheus:", "prometheus:http", "prometheus:99999"],
)
def test_other_names(name, settings):
    """A name there is not, or a port that is none, is an error that says what there is."""
    with pytest.raises(ConfigError, match=r"exporters: .*prometheus:"):
        build(name, settings)


def test_settings_reach_prometheus(settings):
    """Thresholds, budgets, tenants and the registry reach the exporter."""
    settings = ExportSettings(
        service="shop",
        thresholds_s={"ttft": 0.333},
        budget_seconds={"dialogue": {"total": 2.5}},
        tenant_metrics=True,
        registry=settings.registry,
    )
    sink = build("prometheus", settings)
    sink.write(typical(tenant="a"))
    read = settings.registry.get_sample_value

    labels = {
        "model": "llama-3.1-8b", "route": "/chat", "service": "shop", "region": "eu",
        "outcome": "success", "tenant": "a",
    }  # fmt: skip
    assert read("llmtrace_ttft_seconds_bucket", {**labels, "le": "0.333"}) == 0
    limit = {"budget": "dialogue", "stage": "total", "bound": "2.5"}
    assert read("llmtrace_budget_seconds", limit) == 2.5
    sink.close()


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({}, 2),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, 2),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318"}, 1),
        (
            {
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318",
                "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://m:4318",
            },
            2,
        ),
        ({"OTEL_METRICS_EXPORTER": "none"}, 1),
    ],
)
def test_otlp_brings_the_metrics(environ, count, settings):
    """`otlp` stands for spans and metrics, unless the environment has no place for metrics."""
    sinks = build_all(["otlp", "otlp"], settings, environ)

    assert count == len(sinks)
    for sink in sinks:
        sink.close()


def test_the_metrics_are_sent_once(settings):
    """`otlp` brings the metrics; to name them as well does not send them twice."""
    sinks = build_all(["otlp", "otlp-metrics"], settings, {})

    assert [type(sink).__name__ for sink in sinks] == ["QueuedSink", "GenAISink"]
    for sink in sinks:
        sink.close()


def test_only_what_is_used_is_imported():
    """Importing llmtrace imports neither gRPC, nor the SDK, nor any client of a backend."""
    program = "import sys, llmtrace; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    heavy = {"grpc", "requests", "prometheus_client", "opentelemetry.sdk", "google.protobuf"}

    assert set() == heavy & set(ran.stdout.split())
