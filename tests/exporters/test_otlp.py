from __future__ import annotations

import email.utils
import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from google.protobuf import any_pb2
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from llmtrace.core.errors import ConfigError
from llmtrace.core.failopen import internal_errors
from llmtrace.exporters.otlp.http_transport import _retry_after
from llmtrace.exporters.otlp.sink import otlp_sink
from llmtrace.semconv.convert import from_attributes, to_attributes
from tests.exporters.receivers import Answer, grpc_receiver, http_receiver, silent_server
from tests.exporters.samples import START, typical
from tests.exporters.test_wire import attributes_of
from tests.support.free_ports import free_port

LONG = 60.0

both = pytest.mark.parametrize(
    ("receiver", "protocol"),
    [(http_receiver, "http/protobuf"), (grpc_receiver, "grpc")],
    ids=["http", "grpc"],
)


@contextmanager
def sending(url, environ=(), **settings):
    """A sink that sends to `url` when flushed, and is closed at the end."""
    variables = {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in dict(environ).items()}
    sink = otlp_sink(endpoint=url, environ=variables, **{"interval_s": LONG, **settings})
    try:
        yield sink
    finally:
        sink.close()


@both
def test_a_row_arrives_whole(receiver, protocol):
    """Every attribute of a row arrives, and the row comes back from them."""
    row = typical()
    with receiver() as received, sending(received.url, protocol=protocol) as sink:
        sink.write(row)
        assert sink.flush(10)
        span, *children = received.spans()

    assert to_attributes(row) == attributes_of(span)
    assert row == from_attributes(
        attributes_of(span),
        start=span.start_time_unix_nano,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_span_id=span.parent_span_id.hex(),
        resource={"service.name": "shop"},
    )
    assert (span.kind, span.name) == (Span.SPAN_KIND_CLIENT, "chat llama-3.1-8b")
    assert row.e2e_ns == sum(c.end_time_unix_nano - c.start_time_unix_nano for c in children)
    assert children[0].start_time_unix_nano == START
    assert children[-1].end_time_unix_nano == START + row.e2e_ns


@both
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_headers_and_compression(receiver, protocol, compression):
    """Headers go along with each request, and compressed requests are understood."""
    with (
        receiver() as received,
        sending(
            received.url,
            {"COMPRESSION": compression, "HEADERS": "Authorization=Bearer t0k3n"},
            protocol=protocol,
        ) as sink,
    ):
        sink.write(typical())
        assert sink.flush(10)

    assert received.requests[0].headers["authorization"] == "Bearer t0k3n"
    assert len(received.spans()) == 7
    if protocol != "grpc":
        assert received.requests[0].path == "/v1/traces"
        assert received.requests[0].headers["content-type"] == "application/x-protobuf"


def test_one_connection_serves_many_batches():
    """The connection is kept: a second batch comes over the same socket."""
    with http_receiver() as received, sending(received.url) as sink:
        for number in range(3):
            sink.write(typical(number))
            assert sink.flush(10)

    assert len(received.requests) == 3
    assert len({request.peer for request in received.requests}) == 1


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_http_is_retried(status):
    """A passing refusal is retried after the wait it asks for."""

    def answer(number):
        return Answer(status, {"retry-after": "0"}) if number < 2 else Answer()

    with http_receiver(answer) as received, sending(received.url) as sink:
        sink.write(typical())
        assert sink.flush(10)

    assert len(received.requests) == 3
    assert internal_errors() == {}


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 413, 500])
def test_http_is_not_retried(status, caplog):
    """A refusal for good drops the rows, counts them, and shows no secret."""
    headers = {"location": "/elsewhere"} if status == 301 else {}
    with (
        http_receiver(lambda _: Answer(status, headers)) as received,
        sending(received.url.replace("//", "//me:hunter2@"), {"HEADERS": "x-key=hunter2"}) as sink,
    ):
        sink.write(typical(0))
        sink.write(typical(1))
        assert not sink.flush(10)

    assert len(received.requests) == 1
    assert internal_errors() == {"export.otlp": 1, "export.otlp.dropped": 2}
    assert str(status) in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("body", "taken"),
    [
        (b"\n <!doctype html><p>Sign in</p>", False),
        (b"<html>", False),
        (b"ok", True),
        (b"{}", True),
    ],
)
def test_a_web_page_is_no_receiver(body, taken, caplog):
    """What answers 200 with a page took nothing, though other odd answers are accepted."""
    with (
        http_receiver(lambda _: Answer(200, {"content-type": "text/html"}, body)) as received,
        sending(received.url) as sink,
    ):
        sink.write(typical(0))
        assert sink.flush(10) == taken

    lost = {} if taken else {"export.otlp": 1, "export.otlp.dropped": 1}
    assert (internal_errors(), len(received.requests)) == (lost, 1)
    assert ("HTTP 200 with a web page from http://127.0.0.1" in caplog.text) != taken


def abort(code, *trailers):
    """Refuse the first call with this code."""

    def answer(number, context):
        if number == 0:
            context.set_trailing_metadata(trailers)
            context.abort(code, "because")

    return answer


def details(seconds):
    """Return a status that asks to wait, as collectors send it."""
    info = any_pb2.Any()
    info.Pack(error_details_pb2.RetryInfo(retry_delay=Duration(nanos=int(seconds * 1e9))))
    return status_pb2.Status(code=8, details=[info]).SerializeToString()


@pytest.mark.parametrize(
    "answer",
    [
        abort(
            grpc.StatusCode.UNAVAILABLE,
            ("google.rpc.retryinfo-bin", error_details_pb2.RetryInfo().SerializeToString()),
        ),
        abort(grpc.StatusCode.RESOURCE_EXHAUSTED, ("grpc-status-details-bin", details(0.001))),
    ],
    ids=["unavailable", "exhausted"],
)
def test_grpc_is_retried(answer):
    """A passing refusal is retried, after the wait it asks for in either place."""
    with grpc_receiver(answer) as received, sending(received.url, protocol="grpc") as sink:
        sink.write(typical())
        assert sink.flush(10)

    assert len(received.requests) == 2
    assert internal_errors() == {}


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    ],
)
def test_grpc_is_not_retried(code, caplog):
    """A refusal for good, or one that names no time, drops and counts the rows."""
    with grpc_receiver(abort(code)) as received, sending(received.url, protocol="grpc") as sink:
        sink.write(typical())
        assert not sink.flush(10)

    assert len(received.requests) == 1
    assert internal_errors() == {"export.otlp": 1, "export.otlp.dropped": 1}
    assert code.name in caplog.text


PARTIAL = ExportTraceServiceResponse(
    partial_success=ExportTracePartialSuccess(rejected_spans=2, error_message="too many")
)


@pytest.mark.parametrize(
    ("receiver", "protocol", "answer"),
    [
        (http_receiver, "http/protobuf", lambda _: Answer(body=PARTIAL.SerializeToString())),
        (grpc_receiver, "grpc", lambda *_: PARTIAL),
    ],
    ids=["http", "grpc"],
)
def test_partial_success(receiver, protocol, answer, caplog):
    """Spans rejected out of an accepted request are counted, not sent again."""
    with receiver(answer) as received, sending(received.url, protocol=protocol) as sink:
        sink.write(typical())
        assert sink.flush(10)

    assert len(received.requests) == 1
    assert internal_errors() == {"export.otlp.rejected": 2}
    assert "too many" in caplog.text


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_without_a_listener(protocol, caplog):
    """A refused connection is tried again until it is time to give up; then rows are dropped."""
    with sending(
        f"http://127.0.0.1:{free_port()}", protocol=protocol, give_up_after_s=0.0
    ) as sink:
        sink.write(typical())
        assert not sink.flush(10)

    assert ("UNAVAILABLE" if protocol == "grpc" else "Connection refused") in caplog.text
    assert internal_errors() == {"export.otlp": 1, "export.otlp.dropped": 1}


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_backend_that_hangs(protocol):
    """A backend that takes the connection and never answers costs the time-out, and the rows."""
    with (
        silent_server() as url,
        sending(url, {"TIMEOUT": "0.05"}, protocol=protocol, give_up_after_s=0.0) as sink,
    ):
        sink.write(typical())
        assert not sink.flush(10)

    assert internal_errors() == {"export.otlp": 1, "export.otlp.dropped": 1}


def test_writing_never_waits_for_a_backend():
    """With a backend that hangs, writing more than the queue holds still comes back."""
    with silent_server() as url, sending(url, {"TIMEOUT": "0.05"}, give_up_after_s=0.0) as sink:
        row = typical()
        for _ in range(11_000):
            sink.write(row)
        assert threading.main_thread().is_alive()
        sink.flush(10)

    assert internal_errors()["export.otlp.dropped"] == 11_000


def test_nonsense_is_said_at_set_up():
    """A wrong setting is an error before the first row."""
    with pytest.raises(ConfigError):
        otlp_sink(endpoint="nowhere")


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("3", 3, 3),
        ("-3", 0, 0),
        (timedelta(hours=1), 3500, 3600),
        (timedelta(hours=-1), 0, 0),
    ],
)
def test_retry_after(text, low, high):
    """A server may say when to come back in seconds or as a date."""
    if isinstance(text, timedelta):  # from now, which is long after the tests were collected
        text = email.utils.format_datetime(datetime.now(UTC) + text)

    assert low <= _retry_after(text) <= high


@pytest.mark.parametrize("text", [None, "", "soon", "nan"])
def test_retry_after_that_says_nothing(text):
    """What is neither seconds nor a date is no wish at all."""
    assert _retry_after(text) is None
