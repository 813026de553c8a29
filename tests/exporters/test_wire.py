from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span, Status

from llmtrace.core import failopen
from llmtrace.core import span as spans
from llmtrace.core.stages import STAGES
from llmtrace.exporters.otlp import resource
from llmtrace.exporters.otlp.encode import Resources, child_id, encode, encode_row
from llmtrace.exporters.span_layout import laid_out
from llmtrace.semconv.attributes import ATTEMPT
from llmtrace.semconv.convert import from_attributes, to_attributes
from tests.exporters.samples import MS, START, typical, unsplit
from tests.strategies import requests
from tests.support.internal_errors import reset_internal_errors

MAX = 1 << 20
FAILED = {
    "error": "the request failed",
    "timeout": "the request timed out",
    "truncated": "the stream ended without a finish reason",
}


@pytest.fixture(autouse=True)
def _fresh():
    reset_internal_errors()
    yield
    reset_internal_errors()


def spans_of(row):
    """Decode the spans of a row."""
    return list(ScopeSpans.FromString(encode_row(row)).spans)


def plain(value):
    """Return the Python value of an OTLP one."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(plain(each) for each in value.array_value.values)
    return getattr(value, kind)


def attributes_of(span):
    """Return the attributes of a span, a resource or a data point."""
    return {pair.key: plain(pair.value) for pair in span.attributes}


def any_value(value):
    """Return the OTLP value of a Python one."""
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=value)
    return AnyValue(array_value=ArrayValue(values=[any_value(each) for each in value]))


def expected_client_span(row):
    """The row's span through the messages generated from OpenTelemetry's own definitions."""
    status = None
    if (said := FAILED.get(row.outcome)) is not None:
        said = said if row.error_type is None else f"{said}: {row.error_type}"
        status = Status(code=Status.STATUS_CODE_ERROR, message=said)
    return Span(
        trace_id=bytes.fromhex(row.trace_id),
        span_id=bytes.fromhex(row.span_id),
        parent_span_id=bytes.fromhex(row.parent_span_id or ""),
        name=row.operation if row.model is None else f"{row.operation} {row.model}",
        kind=Span.SPAN_KIND_CLIENT,
        start_time_unix_nano=row.start,
        end_time_unix_nano=row.start + row.e2e_ns,
        attributes=[
            KeyValue(key=name, value=any_value(value))
            for name, value in to_attributes(row).items()
        ],
        status=status,
    )


@given(requests)
@settings(max_examples=200)
def test_bytes_are_those_of_the_generated_messages(row):
    """Decoded, the hand-written bytes are the very message OpenTelemetry's own code makes."""
    sent, expected = spans_of(row)[0], expected_client_span(row)
    for span in (sent, expected):  # attributes have no order
        span.attributes.sort(key=lambda attribute: attribute.key)

    assert expected == sent


@given(requests)
def test_a_row_comes_back_from_its_span(row):
    """A receiver gets the whole row back from the span it was sent as."""
    sent = spans_of(row)[0]
    back = from_attributes(
        attributes_of(sent),
        start=sent.start_time_unix_nano,
        trace_id=sent.trace_id.hex(),
        span_id=sent.span_id.hex(),
        parent_span_id=sent.parent_span_id.hex() or None,
        resource={"service.name": row.service},
    )

    assert row == back


@given(requests)
def test_children_are_laid_end_to_end(row):
    """The stages' spans begin where the request's does, leave no hole, and end where it ends."""
    parent, *children = spans_of(row)
    children = [child for child in children if ATTEMPT not in attributes_of(child)]
    at = parent.start_time_unix_nano
    for child in children:
        assert child.start_time_unix_nano == at
        assert child.end_time_unix_nano > at
        at = child.end_time_unix_nano

    assert parent.end_time_unix_nano == at


def test_the_stages_of_a_typical_row():
    """Each stage that took time is a child with its name, its length and source."""
    parent, *children = spans_of(typical())
    seen = [
        (
            child.name,
            child.end_time_unix_nano - child.start_time_unix_nano,
            attributes_of(child),
        )
        for child in children
    ]
    expected = [
        ("network", 1_100_000, "client"),
        ("queue", 120 * MS, "engine_inband"),
        ("prefill", 230 * MS, "engine_inband"),
        ("first_chunk", 46_900_000, "client"),
        ("decode", 1_950 * MS, "client"),
        ("render", 52 * MS, "client"),
    ]

    assert [
        (name, ns, {"llmtrace.stage.name": name, "llmtrace.stage.source": source})
        for name, ns, source in expected
    ] == seen
    assert {parent.span_id} == {child.parent_span_id for child in children}
    assert {parent.trace_id} == {child.trace_id for child in children}
    assert {Span.SPAN_KIND_INTERNAL} == {child.kind for child in children}


def test_unattributed_time_lies_before_the_answer():
    """Time that cannot be split is a child of its own, without a source, before the decode."""
    children = spans_of(unsplit())[1:]

    assert [child.name for child in children] == ["network", "unattributed", "decode", "render"]
    assert attributes_of(children[1]) == {"llmtrace.stage.name": "unattributed"}


def test_child_ids_are_the_same_each_time_and_all_different():
    """A row sent twice has the same spans, and no two of them share an id."""
    first, second = spans_of(typical()), spans_of(typical())
    ids = [span.span_id for span in first]

    assert ids == [span.span_id for span in second]
    assert len(set(ids)) == len(ids)


def test_no_child_id_is_zero():
    """An id of zero would be no id at all."""
    zero = child_id(0, "queue")

    assert child_id(zero, "queue") == 1


@pytest.mark.parametrize(
    ("outcome", "error_type", "code", "message"),
    [
        ("success", None, Status.STATUS_CODE_UNSET, ""),
        ("cancelled", "asyncio.CancelledError", Status.STATUS_CODE_UNSET, ""),
        ("error", "api.Error", Status.STATUS_CODE_ERROR, "the request failed: api.Error"),
        ("timeout", None, Status.STATUS_CODE_ERROR, "the request timed out"),
        (
            "truncated",
            None,
            Status.STATUS_CODE_ERROR,
            "the stream ended without a finish reason",
        ),
    ],
)
def test_status(outcome, error_type, code, message):
    """Only what went wrong is an error; a cancellation is wanted."""
    span = spans_of(typical(outcome=outcome, error_type=error_type))[0]

    assert (code, message) == (span.status.code, span.status.message)


def test_what_otlp_cannot_hold_is_sent_as_text():
    """An integer beyond 64 bits and a lone surrogate do not cost the row."""
    row = typical(attributes={"big": 2**70, "odd": "a\ud800b", "yes": True, "long": "x" * 300})
    attributes = attributes_of(spans_of(row)[0])

    assert str(2**70) == attributes["big"]
    assert attributes["odd"] == "a?b"
    assert attributes["yes"] is True
    assert attributes["long"] == "x" * 300


def test_negative_integers():
    """A negative integer is written as its 64-bit two's complement."""
    row = typical(attributes={"n": -1, "m": -(2**63)})
    attributes = attributes_of(spans_of(row)[0])

    assert (attributes["n"], attributes["m"]) == (-1, -(2**63))


def requests_of(rows, most_bytes=MAX):
    """Decode the requests that rows become, and how many rows each says it has."""
    return [
        (ExportTraceServiceRequest.FromString(body), count)
        for body, count in encode(rows, Resources(), most_bytes)
    ]


def test_rows_are_grouped_by_service():
    """Each service's rows come under its own resource, in one request."""
    ((request, count),) = requests_of([typical(1), typical(2, service="bank"), typical(3)])
    seen = {
        {pair.key: plain(pair.value) for pair in each.resource.attributes}["service.name"]: [
            span.span_id
            for span in each.scope_spans[0].spans
            if span.kind == Span.SPAN_KIND_CLIENT
        ]
        for each in request.resource_spans
    }

    assert count == 3
    assert {
        "shop": [bytes.fromhex(typical(n).span_id) for n in (1, 3)],
        "bank": [bytes.fromhex(typical(2).span_id)],
    } == seen
    assert {"llmtrace"} == {each.scope_spans[0].scope.name for each in request.resource_spans}


def test_the_resource_names_sdk_and_process(monkeypatch):
    """The resource tells the SDK, the process, and what the environment adds."""
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    resource.detect.cache_clear()
    ((request, _),) = requests_of([typical(service="fresh")])
    resource.detect.cache_clear()
    sent = attributes_of(request.resource_spans[0].resource)

    assert sent["service.name"] == "fresh"
    assert sent["telemetry.sdk.language"] == "python"
    assert sent["deployment.environment.name"] == "test"
    assert len(sent["service.instance.id"]) == 36


def test_large_batches_are_split():
    """A request stays below the limit, and no row is lost over it."""
    sent = requests_of([typical(n) for n in range(10)], most_bytes=9_000)
    spans = [s for r, _ in sent for s in r.resource_spans[0].scope_spans[0].spans]

    assert len(sent) > 2
    assert sum(count for _, count in sent) == 10
    assert len({span.span_id for span in spans}) == 70
    assert all(request.ByteSize() < 10_000 for request, _ in sent)


def test_a_row_that_cannot_be_sent_costs_no_other():
    """A row with an impossible id is dropped and counted; its neighbours go."""
    ((request, count),) = requests_of([typical(1), replace(typical(2), trace_id="x"), typical(3)])

    assert count == 2
    assert failopen.internal_errors() == {"export.otlp.encode": 1}
    assert len(request.resource_spans[0].scope_spans[0].spans) == 14


def test_zero_length_stages_have_no_span():
    """A stage that took no time is known, but not drawn."""
    row = typical()
    timeline = replace(row.timeline, held_before=0, held_after=0)
    drawn = [name for name, *_ in laid_out(replace(row, timeline=timeline))]

    assert "render" not in drawn
    assert set(drawn) < set(STAGES)
    assert next(laid_out(row))[2] == START


HOP = spans.Span(
    name="POST /v1/chat/completions",
    kind="server",
    trace_id="0af7651916cd43dd8448eb211c80319c",
    span_id="b7ad6b7169203331",
    parent_span_id="00f067aa0ba902b7",
    service="edge",
    start=1_700_000_000_000_000_000,
    duration_ns=1_250_000,
    attributes={"http.response.status_code": 200, "llmtrace.gateway.self": 0.5, "x": ("a", "b")},
    error="the upstream closed",
)


def test_a_span_that_is_no_row():
    """It is sent as it stands, under its own service, in the same request as rows."""
    row = typical()
    [(body, count)] = encode([row, HOP], Resources(), MAX)
    sent = ExportTraceServiceRequest.FromString(body)
    services = {
        attributes_of(each.resource)["service.name"]: each.scope_spans[0].spans
        for each in sent.resource_spans
    }

    assert count == 2
    assert {row.service, "edge"} == set(services)
    assert [
        Span(
            trace_id=bytes.fromhex(HOP.trace_id),
            span_id=bytes.fromhex(HOP.span_id),
            parent_span_id=bytes.fromhex(HOP.parent_span_id),
            name=HOP.name,
            kind=Span.SPAN_KIND_SERVER,
            start_time_unix_nano=HOP.start,
            end_time_unix_nano=HOP.start + HOP.duration_ns,
            attributes=[KeyValue(key=k, value=any_value(v)) for k, v in HOP.attributes.items()],
            status=Status(code=Status.STATUS_CODE_ERROR, message=HOP.error),
        )
    ] == list(services["edge"])
