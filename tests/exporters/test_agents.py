"""Turns and tool calls in the metrics, and turns kept out of those of requests."""

from __future__ import annotations

from dataclasses import replace

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanPb
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest

import llmtrace
from llmtrace.core.failopen import internal_errors
from llmtrace.core.row import TURN
from llmtrace.core.span import Span
from llmtrace.core.stages import Timeline
from llmtrace.dataset.summary import summarise
from llmtrace.exporters.genai_metrics.sink import GenAISink
from llmtrace.exporters.otlp.encode import Resources, encode
from llmtrace.exporters.prometheus.agent_metrics import Agents
from llmtrace.exporters.prometheus.aggregate import Aggregate
from llmtrace.exporters.prometheus.sink import PrometheusSink
from llmtrace.testing import FakeClock, capture, fake_stream, make_row
from tests.exporters.receivers import http_receiver
from tests.exporters.test_genai import points
from tests.exporters.test_wire import attributes_of

MS = 1_000_000


def turn(**fields):
    """Make a turn's row."""
    given = {"agent": "trip", "tool_calls": 3, "tool_serial_loss_s": 3.0, **fields}
    timeline = Timeline(e2e=4500 * MS, stream=False)
    return make_row(operation=TURN, timeline=timeline, **given)


def tool(name="search", outcome="success", **attributes):
    """Make the span of a tool call."""
    return Span(
        name=f"execute_tool {name}",
        trace_id="0" * 31 + "1",
        span_id="0" * 15 + "2",
        service="test",
        start=1,
        duration_ns=1500 * MS,
        attributes={"gen_ai.tool.name": name, "llmtrace.outcome": outcome, **attributes},
    )


@pytest.fixture
def registry():
    """Make a registry of its own."""
    return CollectorRegistry()


@pytest.fixture
def sink(registry):
    """Make a sink over it."""
    made = PrometheusSink(registry=registry)
    yield made
    made.close()


def value(registry, name, **labels):
    """Return a sample's value, whatever its other labels are."""
    found = [
        sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return sum(found) if found else None


def test_a_turn_is_no_request(sink, registry):
    """It is in the metrics of turns, and in none of requests."""
    sink.write(turn())

    assert value(registry, "llmtrace_turn_duration_seconds_sum", agent="trip") == 4.5
    assert value(registry, "llmtrace_turn_tool_serial_loss_seconds_sum", agent="trip") == 3.0
    for name in ("requests_total", "e2e_seconds_count", "stage_duration_seconds_count"):
        assert value(registry, f"llmtrace_{name}") is None


def test_a_turn_without_tools_lost_nothing_that_could_be_measured(sink, registry):
    """Its loss is not observed, so that the count shows how many turns had tools."""
    sink.write(turn(tool_calls=0, tool_serial_loss_s=0.0))
    sink.write(turn())

    assert value(registry, "llmtrace_turn_duration_seconds_count") == 2
    assert value(registry, "llmtrace_turn_tool_serial_loss_seconds_count") == 1


def test_how_many_tool_calls_run_at_once(sink, registry):
    """Their time added up, over that in which any ran: of the same turns, so that it is exact."""
    sink.write(turn(tool_serial_s=3.0, tool_wall_s=1.0))
    sink.write(turn(tool_serial_s=1.5, tool_wall_s=1.5))
    sink.write(turn(tool_serial_s=7.0))  # when they ran is not known

    assert value(registry, "llmtrace_turn_tool_seconds_total", agent="trip") == 4.5
    assert value(registry, "llmtrace_turn_tool_wall_seconds_total", agent="trip") == 2.5


def test_a_turns_first_content_has_the_budgets_bound(registry):
    """Those that know it are counted, by a bound at exactly what the budget allows."""
    made = PrometheusSink(registry=registry, thresholds_s={"turn_ttft": 0.8})
    made.write(turn())
    for ns in (799_999_999, 800_000_000, 800_000_001):
        one = turn()
        made.write(replace(one, timeline=replace(one.timeline, ttft=ns)))

    assert value(registry, "llmtrace_turn_ttft_seconds_count", agent="trip") == 3
    assert value(registry, "llmtrace_turn_ttft_seconds_bucket", le="0.8") == 2
    made.close()


def test_tool_calls_by_tool_and_outcome(sink, registry):
    """Each is counted; a span of anything else is not."""
    sink.write(tool())
    sink.write(tool(outcome="error"))
    sink.write(tool("weather", **{"llmtrace.region": "eu"}))
    sink.write(Span(name="gateway", trace_id="", span_id="", service="x", start=0, duration_ns=1))

    name = "llmtrace_tool_duration_seconds_count"
    assert value(registry, name, tool="search", outcome="success") == 1
    assert value(registry, name, tool="search", outcome="error") == 1
    assert value(registry, name, tool="weather", region="eu") == 1
    assert value(registry, name) == 3


def test_a_tool_whose_name_has_half_a_character(sink, registry):
    """A model makes up names; one that is no UTF-8 must not cost the whole scrape."""
    sink.write(tool("look\ud83d"))
    sink.write(turn(agent="a\udc00"))

    page = generate_latest(registry).decode()

    assert 'tool="look?"' in page
    assert 'agent="a?"' in page


def test_a_turn_has_an_exemplar(sink, registry):
    """It points at the turn's trace."""
    row = turn()
    sink.write(row)

    lines = generate_latest(registry).decode().splitlines()
    assert any("llmtrace_turn_duration" in line and row.trace_id in line for line in lines)


def test_names_that_never_end():
    """Of tools with ever new names so many are kept apart; the others are counted together."""
    agents = Agents()
    for number in range(300):
        agents.span(tool(f"tool{number}"))
    counted = agents.tools.by(lambda labels: labels.tool)

    assert len(counted) == 201
    assert counted["other"]["duration"].count == 100
    assert internal_errors() == {"export.metrics.label_sets": 100}


def test_counting_anew():
    """Receivers that want differences get them."""
    agents = Agents()
    agents.span(tool())
    first = agents.tools.by(lambda labels: labels, reset=True)

    assert [cell["duration"].count for cell in first.values()] == [1]
    assert agents.tools.by(lambda labels: labels) == {}


def test_the_aggregate_of_requests_leaves_turns_out():
    """Given all rows, it counts requests."""
    aggregate = Aggregate()
    aggregate.add(turn())

    assert aggregate.by(lambda labels: labels) == {}


def test_a_summary_leaves_turns_out():
    """Percentiles are of requests."""
    from llmtrace.budget import DEFAULT

    assert summarise([turn(), make_row()], DEFAULT).rows == 1


def test_opentelemetrys_metrics_by_otlp():
    """Durations of agents and tools go by the conventions' names, and no request's metric does."""
    with http_receiver() as received:
        sink = GenAISink(environ={"OTEL_EXPORTER_OTLP_ENDPOINT": received.url})
        sink.write(turn())
        sink.write(tool())
        sink.write(tool(outcome="error", **{"error.type": "ValueError"}))
        assert sink.flush(10)
        sink.close()
        metrics = received.metrics()

    assert set(metrics) == {"gen_ai.invoke_agent.duration", "gen_ai.execute_tool.duration"}
    [agent] = metrics["gen_ai.invoke_agent.duration"].histogram.data_points
    assert (agent.count, agent.sum) == (1, 4.5)
    name = ("gen_ai.operation.name", "execute_tool"), ("gen_ai.tool.name", "search")
    assert set(points(metrics["gen_ai.execute_tool.duration"])) == {
        name, (("error.type", "ValueError"), *name),
    }  # fmt: skip


def test_opentelemetrys_metrics_by_a_provider():
    """The same through an application's own MeterProvider."""
    reader = InMemoryMetricReader()
    sink = GenAISink(meter_provider=MeterProvider([reader]))
    sink.write(turn(outcome="timeout"))
    sink.write(tool())
    sink.close()
    [resource] = reader.get_metrics_data().resource_metrics
    found = {
        metric.name: metric.data.data_points[0]
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }

    assert set(found) == {"gen_ai.invoke_agent.duration", "gen_ai.execute_tool.duration"}
    assert dict(found["gen_ai.invoke_agent.duration"].attributes) == {
        "gen_ai.agent.name": "trip", "error.type": "timeout",
    }  # fmt: skip
    assert found["gen_ai.execute_tool.duration"].sum == 1.5


def test_from_the_decorator_to_the_scrape(registry, sink):
    """What ran is what is counted, sampled or not."""
    clock = FakeClock()

    @llmtrace.tool
    def search():
        clock.advance(1.5)

    with capture(clock=clock, sinks=[sink], sample=0.0), llmtrace.turn("trip"):
        search()
        list(llmtrace.wrap(fake_stream("ab", clock, gaps=0.5)))

    assert value(registry, "llmtrace_tool_duration_seconds_sum", tool="search") == 1.5
    assert value(registry, "llmtrace_turn_duration_seconds_sum") == 2.5
    assert value(registry, "llmtrace_requests_total") == 1


def test_a_turn_on_the_wire():
    """One span of kind INTERNAL, named after its agent, without stages as children."""
    [(body, count)] = encode([turn(), tool()], Resources(), 1 << 20)
    [resource] = ExportTraceServiceRequest.FromString(body).resource_spans
    [scope] = resource.scope_spans
    one, other = scope.spans

    assert count == 2
    assert (one.name, one.kind) == ("invoke_agent trip", SpanPb.SPAN_KIND_INTERNAL)
    assert (other.name, other.kind) == ("execute_tool search", SpanPb.SPAN_KIND_INTERNAL)
    assert attributes_of(one)["gen_ai.agent.name"] == "trip"
    assert attributes_of(one)["llmtrace.tool_serial_loss"] == 3.0
