from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from opentelemetry import metrics as otel_metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from llmtrace.core.errors import ConfigError
from llmtrace.core.failopen import internal_errors
from llmtrace.exporters.genai_metrics.sink import GenAISink
from llmtrace.semconv.attributes import DURATION_BOUNDS_S
from tests.exporters.receivers import Answer, grpc_receiver, http_receiver
from tests.exporters.samples import SPAN, TRACE, typical
from tests.exporters.test_wire import attributes_of

COMMON = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "vllm",
    "gen_ai.request.model": "llama-3.1-8b",
    "server.address": "10.0.0.5",
    "server.port": 8000,
}
MODEL = yaml.safe_load(
    (Path(__file__).parents[1] / "semconv" / "data" / "genai_metrics.yaml").read_text()
)
OPT_IN = {"OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental"}


def sink_to(received, **environ):
    """Make a sink that sends to a receiver."""
    return GenAISink(environ={"OTEL_EXPORTER_OTLP_ENDPOINT": received.url, **environ})


def points(metric):
    """Return a metric's data points by their attributes."""
    return {
        tuple(sorted(attributes_of(point).items())): point
        for point in getattr(metric, metric.WhichOneof("data")).data_points
    }


def point(metric, **more):
    """Return the data point of the typical row."""
    return points(metric)[tuple(sorted({**COMMON, **more}.items()))]


@pytest.mark.parametrize(
    ("receiver", "protocol"),
    [(http_receiver, "http/protobuf"), (grpc_receiver, "grpc")],
    ids=["http", "grpc"],
)
def test_the_metrics_arrive(receiver, protocol):
    """The four released metrics arrive, with exact counts over the advised bounds."""
    with receiver() as received:
        sink = sink_to(received, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
        sink.write(typical())
        sink.write(typical())
        assert sink.flush(10)
        metrics = received.metrics()
        resource = received.requests[0].message.resource_metrics[0].resource
        sink.close()

    assert set(metrics) == {
        "gen_ai.client.operation.duration",
        "gen_ai.client.operation.time_to_first_chunk",
        "gen_ai.client.operation.time_per_output_chunk",
        "gen_ai.client.token.usage",
    }
    duration = point(metrics["gen_ai.client.operation.duration"])
    assert tuple(duration.explicit_bounds) == DURATION_BOUNDS_S
    assert (duration.count, duration.sum) == (2, 4.8)
    assert duration.bucket_counts[DURATION_BOUNDS_S.index(2.56)] == 2
    assert not duration.HasField("min")
    gaps = point(metrics["gen_ai.client.operation.time_per_output_chunk"])
    assert (gaps.count, list(gaps.bucket_counts[:2])) == (398, [240, 158])
    usage = metrics["gen_ai.client.token.usage"]
    assert point(usage, **{"gen_ai.token.type": "input"}).sum == 2400
    assert point(usage, **{"gen_ai.token.type": "output"}).sum == 400
    assert (
        metrics["gen_ai.client.operation.duration"].unit,
        usage.unit,
    ) == ("s", "{token}")
    assert attributes_of(resource)["service.name"] == "shop"


def test_the_latest_names():
    """Opted in, the metrics bear their latest names, and tokens are counters and histograms."""
    with http_receiver() as received:
        sink = sink_to(received, **OPT_IN)
        sink.write(typical())
        sink.close()
        metrics = received.metrics()

    assert set(metrics) == {
        "gen_ai.client.inference.duration",
        "gen_ai.client.inference.time_to_first_chunk",
        "gen_ai.client.inference.time_per_output_chunk",
        "gen_ai.client.inference.operation.input_tokens",
        "gen_ai.client.inference.operation.output_tokens",
        "gen_ai.client.inference.usage.input_tokens",
        "gen_ai.client.inference.usage.output_tokens",
        "gen_ai.client.inference.usage.cache_read.input_tokens",
        "gen_ai.client.inference.usage.cache_write.input_tokens",
        "gen_ai.client.inference.usage.reasoning.output_tokens",
    }
    usage = metrics["gen_ai.client.inference.usage.input_tokens"]
    assert point(usage, **{"gen_ai.token.modality": "unknown"}).as_int == 1200
    assert metrics["gen_ai.client.inference.usage.input_tokens"].sum.is_monotonic


def latest_rows():
    """Rows that use all there is: usage of every kind, none at all, and a turn."""
    turn = typical(operation="invoke_agent", agent="planner", inference_calls=3, tool_calls=2)
    failed = {"prompt_tokens": None, "output_tokens": None, "cached_tokens": None}
    return [
        typical(cache_write_tokens=500, reasoning_tokens=40),
        typical(outcome="error", error_type="500", **failed),
        turn,
    ]


def test_the_latest_metrics_are_the_conventions_own():
    """Names, instruments, units, required attributes and the schema are those of the model."""
    with http_receiver() as received:
        sink = sink_to(received, **OPT_IN)
        for one in latest_rows():
            sink.write(one)
        sink.close()
        metrics = received.metrics()
        scopes = received.requests[0].message.resource_metrics[0].scope_metrics

    assert [scope.schema_url for scope in scopes] == [MODEL["schema_url"]]
    assert set(metrics) == set(MODEL["metrics"])
    for name, wanted in MODEL["metrics"].items():
        metric = metrics[name]
        instrument = {"sum": "counter"}.get(metric.WhichOneof("data"), metric.WhichOneof("data"))
        assert (instrument, metric.unit) == (wanted["instrument"], wanted["unit"]), name
        for attributes in map(dict, points(metric)):
            assert set(wanted["required"]) <= set(attributes), name
            assert not (wanted.get("no_error") and "error.type" in attributes), name
    unknown = {"gen_ai.token.modality": "unknown"}
    usage = "gen_ai.client.inference.usage"
    assert point(metrics[f"{usage}.cache_write.input_tokens"], **unknown).as_int == 500
    assert point(metrics[f"{usage}.reasoning.output_tokens"], **unknown).as_int == 40
    inputs = metrics["gen_ai.client.inference.operation.input_tokens"]
    assert (point(inputs).count, point(inputs).sum) == (1, 1200)
    failed = point(inputs, **{"error.type": "500"})
    assert (failed.count, failed.sum, failed.bucket_counts[0]) == (1, 0, 1)
    (calls,) = points(metrics["gen_ai.invoke_agent.inference_calls"]).values()
    assert (calls.count, calls.sum, list(calls.explicit_bounds)[:3]) == (1, 3, [1, 2, 4])


def test_a_failed_request_alone_records_0():
    """Without any usage there is a point of 0, of unknown modality."""
    _, failed, _ = latest_rows()
    with http_receiver() as received:
        sink = sink_to(received, **OPT_IN)
        sink.write(failed)
        sink.close()
        metrics = received.metrics()

    counter = metrics["gen_ai.client.inference.usage.output_tokens"]
    assert point(counter, **{"gen_ai.token.modality": "unknown"}).as_int == 0


def test_errors_have_a_type():
    """What failed has an `error.type`; success and cancellation share a point without one."""
    with http_receiver() as received:
        sink = sink_to(received)
        for outcome, error_type in (
            ("success", None),
            ("cancelled", "asyncio.CancelledError"),
            ("error", None),
            ("error", "openai.APIError"),
            ("timeout", None),
        ):
            sink.write(typical(outcome=outcome, error_type=error_type))
        sink.close()
        found = points(received.metrics()["gen_ai.client.operation.duration"])

    assert {dict(key).get("error.type"): each.count for key, each in found.items()} == {
        None: 2,
        "_OTHER": 1,
        "openai.APIError": 1,
        "timeout": 1,
    }


def test_cumulative_and_delta():
    """By default totals run on from one start; on request each export holds the difference."""
    for preference, kind, counts in (
        ("cumulative", AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE, [1, 2]),
        ("DELTA", AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA, [1, 1]),
    ):
        with http_receiver() as received:
            sink = sink_to(received, OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=preference)
            seen = []
            for _ in range(2):
                sink.write(typical())
                assert sink.flush(10)
                metric = received.metrics()["gen_ai.client.operation.duration"]
                assert kind == metric.histogram.aggregation_temporality
                seen.append(point(metric))
            sink.close()
        assert counts == [each.count for each in seen]
        starts = [each.start_time_unix_nano for each in seen]
        ends = [each.time_unix_nano for each in seen]
        assert starts[1] == (ends[0] if preference == "DELTA" else starts[0])


def test_nothing_is_sent_before_the_first_row():
    """A process that made no request sends no metrics."""
    with http_receiver() as received:
        sink = sink_to(received)
        assert sink.flush(10)
        sink.close()

    assert received.requests == []


def test_a_backend_without_metrics():
    """A backend that takes no metrics is counted as a failure, and nothing raises."""
    with http_receiver(lambda _: Answer(404)) as received:
        sink = sink_to(received)
        sink.write(typical())
        assert not sink.flush(10)
        sink.close()

    assert internal_errors()["export.otlp-metrics"] >= 1


def test_data_points_rejected_after_all_are_counted():
    """What a receiver rejects out of a request it accepts is counted."""
    partial = ExportMetricsPartialSuccess(rejected_data_points=4, error_message="too many")
    said = ExportMetricsServiceResponse(partial_success=partial).SerializeToString()
    with http_receiver(lambda n: Answer(body=said) if n == 0 else Answer()) as received:
        sink = sink_to(received)
        sink.write(typical())
        assert sink.flush(10)
        sink.close()

    assert internal_errors() == {"export.otlp-metrics.rejected": 4}


def test_headers_and_full_url():
    """The metrics' own endpoint is used as it is, with the headers."""
    with http_receiver() as received:
        sink = GenAISink(
            environ={
                "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{received.url}/own/v1/metrics",
                "OTEL_EXPORTER_OTLP_HEADERS": "x-key=1",
                "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            }
        )
        sink.write(typical())
        assert sink.flush(10)
        sink.close()

    assert received.requests[0].path == "/own/v1/metrics"
    assert received.requests[0].headers["x-key"] == "1"


def test_an_unknown_temporality():
    """A slip would send sums to a backend that wants differences."""
    variable = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
    with pytest.raises(ConfigError, match=f"^{variable}='detla' is not one of cumulative, delta"):
        GenAISink(environ={variable: "detla"})


@pytest.mark.parametrize("text", ["often", "0", "-1", "nan", "inf"])
def test_an_impossible_interval(text):
    """An interval that is none is an error at set-up."""
    with pytest.raises(ConfigError, match="OTEL_METRIC_EXPORT_INTERVAL"):
        GenAISink(environ={"OTEL_METRIC_EXPORT_INTERVAL": text})


def through_provider(environ, *rows):
    """Return what rows become through an application's own MeterProvider."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    sink = GenAISink(meter_provider=provider, environ=environ)
    for row in rows:
        sink.write(row)
    sink.close()
    (resource,) = reader.get_metrics_data().resource_metrics
    (scope,) = resource.scope_metrics
    provider.shutdown()
    assert scope.scope.name == "llmtrace"
    return {metric.name: metric for metric in scope.metrics}


def test_an_applications_own_provider():
    """With a MeterProvider of the application's, its instruments get each row once."""
    metrics = through_provider({}, typical(), typical(error_type="E", outcome="error"))
    ok, failed = metrics["gen_ai.client.operation.duration"].data.data_points
    usage = metrics["gen_ai.client.token.usage"].data.data_points

    assert set(metrics) == {
        "gen_ai.client.operation.duration",
        "gen_ai.client.operation.time_to_first_chunk",
        "gen_ai.client.token.usage",
    }
    assert (ok.count, ok.sum, ok.explicit_bounds) == (1, 2.4, DURATION_BOUNDS_S)
    assert dict(ok.attributes) == COMMON
    assert dict(failed.attributes) == {**COMMON, "error.type": "E"}
    assert {"input", "output"} == {each.attributes["gen_ai.token.type"] for each in usage}
    assert internal_errors() == {}


def test_exemplars_of_an_applications_own_provider_point_at_the_row():
    """An exemplar's ids are those of the request's own span."""
    metrics = through_provider({}, typical())
    (point_,) = metrics["gen_ai.client.operation.duration"].data.data_points

    assert [(int(TRACE, 16), int(SPAN, 16))] == [(e.trace_id, e.span_id) for e in point_.exemplars]


def test_the_latest_names_through_an_applications_own_provider():
    """Opted in, the instruments bear the latest names."""
    metrics = through_provider(OPT_IN, typical())

    assert "gen_ai.client.inference.duration" in metrics
    both = through_provider(OPT_IN, *latest_rows())
    for name, wanted in MODEL["metrics"].items():
        if "time_per_output_chunk" not in name:  # would cost a record for each chunk
            assert both[name].unit == wanted["unit"]
            for each in both[name].data.data_points:
                assert set(wanted["required"]) <= set(each.attributes)
    assert "gen_ai.client.token.usage" not in metrics
    (cached,) = metrics["gen_ai.client.inference.usage.cache_read.input_tokens"].data.data_points
    assert cached.value == 1024


def test_a_global_provider_set_later_is_used(monkeypatch):
    """The way is chosen with the first row, so that a provider set after `init` counts."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    sink = GenAISink(environ={})
    monkeypatch.setattr(otel_metrics, "get_meter_provider", lambda: provider)
    sink.write(typical())
    sink.close()

    assert reader.get_metrics_data() is not None
    provider.shutdown()


def test_a_bad_row_raises_nothing():
    """Whatever a row holds, writing it raises nothing."""
    sink = GenAISink(meter_provider=MeterProvider(), environ={})
    sink.write(typical(trace_id="not hex"))
    sink.close()

    assert internal_errors() == {"export.otlp-metrics": 1}
