from __future__ import annotations

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

from llmtrace.core.span import Span
from llmtrace.exporters import tracer_provider
from llmtrace.semconv.convert import from_attributes, to_attributes
from tests.exporters.samples import START, typical, unsplit


@pytest.fixture
def exported():
    """Keep what the application's provider exports."""
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exported):
    """Make a tracer of an application's own provider."""
    made = TracerProvider(resource=Resource({"service.name": "shop"}))
    made.add_span_processor(SimpleSpanProcessor(exported))
    yield made.get_tracer("llmtrace")
    made.shutdown()


def finished(tracer, exported, row):
    """Return the spans a row becomes, by name."""
    span = tracer_provider.start(tracer, {}, row.start)
    tracer_provider.finish(span, row)
    return {each.name: each for each in exported.get_finished_spans()}


def test_the_row_is_on_the_span(tracer, exported):
    """The span has the row's name, kind, times and every attribute."""
    row = typical()
    span = finished(tracer, exported, row)["chat llama-3.1-8b"]

    assert to_attributes(row) == dict(span.attributes)
    assert (START, START + row.e2e_ns) == (span.start_time, span.end_time)
    assert SpanKind.CLIENT is span.kind
    assert row == from_attributes(
        span.attributes,
        start=span.start_time,
        trace_id=row.trace_id,
        span_id=row.span_id,
        parent_span_id=row.parent_span_id,
        resource=span.resource.attributes,
    )


def test_stages_are_children_laid_end_to_end(tracer, exported):
    """The stages are children through the same tracer, one after the other."""
    row = typical()
    spans = finished(tracer, exported, row)
    parent = spans.pop("chat llama-3.1-8b")
    at = START
    for child in sorted(spans.values(), key=lambda each: each.start_time):
        assert child.start_time == at
        assert child.parent.span_id == parent.context.span_id
        assert child.instrumentation_scope.name == "llmtrace"
        at = child.end_time

    assert parent.end_time == at
    assert list(spans) == ["network", "queue", "prefill", "first_chunk", "decode", "render"]
    assert spans["queue"].attributes["llmtrace.stage.source"] == "engine_inband"


def test_time_that_cannot_be_split(tracer, exported):
    """Unattributed time is a child without a source."""
    spans = finished(tracer, exported, unsplit())

    assert dict(spans["unattributed"].attributes) == {"llmtrace.stage.name": "unattributed"}


def test_what_failed_is_an_error(tracer, exported):
    """The span's status says what went wrong."""
    row = typical(outcome="timeout", error_type="httpx.ReadTimeout")
    status = finished(tracer, exported, row)["chat llama-3.1-8b"].status

    assert StatusCode.ERROR is status.status_code
    assert status.description == "the request timed out: httpx.ReadTimeout"


def test_another_service(tracer, exported):
    """A service's name is the resource's, and on no span, whatever `init` was given."""
    span = finished(tracer, exported, typical(service="bank"))["chat llama-3.1-8b"]

    assert "service.name" not in span.attributes


def test_the_applications_context_is_the_parent(tracer, exported):
    """The span is a child of what the given context holds."""
    outer = tracer.start_span("outer")
    span = tracer_provider.start(tracer, {}, START, set_span_in_context(outer))
    tracer_provider.finish(span, typical(), set_span_in_context(span))
    outer.end()
    spans = {each.name: each for each in exported.get_finished_spans()}

    assert spans["chat llama-3.1-8b"].parent.span_id == outer.get_span_context().span_id


def test_a_trace_that_is_not_sampled(exported):
    """Without sampling nothing is made, and nothing is kept."""
    made = TracerProvider(sampler=ALWAYS_OFF)
    made.add_span_processor(SimpleSpanProcessor(exported))
    span = tracer_provider.start(made.get_tracer("llmtrace"), {}, START)
    tracer_provider.finish(span, typical())

    assert exported.get_finished_spans() == ()
    assert span not in tracer_provider._tracers
    made.shutdown()


def test_a_span_ends_even_if_the_row_is_broken(tracer, exported):
    """What goes wrong while describing a row does not leave its span open."""
    span = tracer_provider.start(tracer, {}, START)
    with pytest.raises(AttributeError):
        tracer_provider.finish(span, typical(attributes=None))

    assert len(exported.get_finished_spans()) == 1


def test_a_span_that_is_no_row(tracer, exported):
    """It is written whole, under whatever is current."""
    span = Span(
        name="execute_tool search",
        trace_id="0" * 31 + "1",
        span_id="0" * 15 + "1",
        service="shop",
        start=START,
        duration_ns=1_500_000,
        attributes={"gen_ai.tool.name": "search"},
        error="ValueError",
    )
    with tracer.start_as_current_span("turn") as turn:
        tracer_provider.write(tracer, span)
    written = {each.name: each for each in exported.get_finished_spans()}["execute_tool search"]

    assert turn.get_span_context().span_id == written.parent.span_id
    assert (written.start_time, written.end_time) == (START, START + 1_500_000)
    assert dict(written.attributes) == {"gen_ai.tool.name": "search"}
    assert StatusCode.ERROR is written.status.status_code
    assert SpanKind.INTERNAL is written.kind
