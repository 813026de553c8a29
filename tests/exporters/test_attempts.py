"""The HTTP attempts of a request are spans under it, by OpenTelemetry's conventions of HTTP."""

from __future__ import annotations

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from llmtrace.core.attempts import MAX_ATTEMPTS, Attempt
from llmtrace.exporters import tracer_provider
from llmtrace.exporters.otlp.encode import encode_row
from llmtrace.exporters.span_layout import attempt_spans
from llmtrace.semconv.convert import is_row
from tests.exporters.samples import MS, SPAN, START, TRACE, typical

ATTEMPTS = (
    Attempt(
        start_ns=0, duration_ns=50 * MS, backoff_ns=200 * MS, status=429, retry_after_ns=150 * MS
    ),
    Attempt(start_ns=250 * MS, duration_ns=10 * MS, error_type="httpx.ConnectError"),
    Attempt(start_ns=260 * MS, duration_ns=2_000 * MS, status=200),
)  # fmt: skip
EXPECTED = {
    "attempt 1": {
        "llmtrace.attempt": 1, "http.response.status_code": 429, "error.type": "429",
        "llmtrace.retry_after": 0.15, "llmtrace.backoff": 0.2,
    },
    "attempt 2": {
        "llmtrace.attempt": 2, "http.request.resend_count": 1, "error.type": "httpx.ConnectError",
    },
    "attempt 3": {
        "llmtrace.attempt": 3, "http.request.resend_count": 2, "http.response.status_code": 200,
    },
}  # fmt: skip


def test_each_attempt_is_a_span():
    """It has its number, its status or error, and Retry-After."""
    spans = list(attempt_spans(typical(attempt_log=ATTEMPTS, attempts=3)))

    assert {span.name: dict(span.attributes) for span in spans} == EXPECTED
    assert [span.error for span in spans] == ["429", "httpx.ConnectError", None]
    assert [(span.start - START, span.duration_ns) for span in spans] == [
        (one.start_ns, one.duration_ns) for one in ATTEMPTS
    ]
    assert {(span.trace_id, span.parent_span_id) for span in spans} == {(TRACE, SPAN)}
    assert len({span.span_id for span in spans} | {SPAN}) == 4
    assert not any(is_row(span.attributes) for span in spans)


def test_a_row_sent_twice_has_the_same_attempts():
    """The ids follow from the request's."""
    one, two = (
        [span.span_id for span in attempt_spans(typical(attempt_log=ATTEMPTS))] for _ in range(2)
    )

    assert one == two


def test_the_last_of_many_has_its_own_number():
    """Where attempts in between were forgotten, the last still says the how manieth it was."""
    many = typical(attempt_log=ATTEMPTS[:1] * MAX_ATTEMPTS, attempts=40)

    assert [span.name for span in attempt_spans(many)][-2:] == ["attempt 15", "attempt 40"]


def test_on_the_wire():
    """They follow the row and its stages, in the same message."""
    sent = {
        span.name: span
        for span in ScopeSpans.FromString(encode_row(typical(attempt_log=ATTEMPTS))).spans
    }

    assert set(EXPECTED) < set(sent)
    assert sent["attempt 1"].parent_span_id.hex() == SPAN
    assert sent["attempt 1"].status.message == "429"
    assert not sent["attempt 3"].status.message
    assert "attempt 1" not in {
        span.name for span in ScopeSpans.FromString(encode_row(typical())).spans
    }


@pytest.fixture
def exported():
    """Keep what the application's provider exports."""
    return InMemorySpanExporter()


def test_through_the_applications_provider(exported):
    """They are children of the request's span there, too."""
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(exported))
    row = typical(attempt_log=ATTEMPTS)
    span = tracer_provider.start(made.get_tracer("llmtrace"), {}, row.start)
    tracer_provider.finish(span, row)
    spans = {each.name: each for each in exported.get_finished_spans()}

    for name, attributes in EXPECTED.items():
        assert dict(spans[name].attributes) == attributes
        assert spans[name].parent.span_id == span.get_span_context().span_id
    assert spans["attempt 2"].status.status_code is StatusCode.ERROR
    made.shutdown()
