"""Is the gateway's span the right one where the application has OpenTelemetry of its own?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from opentelemetry import baggage
from opentelemetry import context as otel_context
from opentelemetry import trace as otel_trace
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import llmtrace
from llmtrace.testing import capture

from .asgi import DONE, LLMTRACE, WORD, Spans, ask, ms, read_all, start, through

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLER = {"traceparent": f"00-{TRACE}-{PARENT}-01", "baggage": "tenant=acme"}


class Own:
    """An application's own OpenTelemetry."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def spans(self) -> dict[str, ReadableSpan]:
        """Return what was written, by name."""
        return {span.name: span for span in self._exporter.get_finished_spans()}

    def servers(self) -> list[ReadableSpan]:
        """Return the server spans among them."""
        return [s for s in self.spans().values() if s.kind is otel_trace.SpanKind.SERVER]


@pytest.fixture
def own() -> Iterator[Own]:
    """An application with OpenTelemetry set up, and llmtrace as well."""
    made = Own()
    with capture(tracer_provider=made.provider):
        yield made
    made.provider.shutdown()


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer by way of a recorded request and a span of the application's own."""
    await read_all(receive)
    with otel_trace.get_tracer("shop").start_as_current_span("handle"):
        list(answer())
    await send(start())
    await send({"type": "http.response.body", "body": WORD + DONE})


@llmtrace.trace(model="tiny")
def answer() -> Iterator[str]:
    """Answer."""
    yield str(baggage.get_baggage("tenant"))


def parent(span: ReadableSpan) -> int | None:
    """Return the id of a span's parent."""
    return None if span.parent is None else span.parent.span_id


def test_the_applications_own_provider_starts_the_span(own):
    """Its children have the right parent, though they are written before it."""
    ask(through(app), CALLER)
    [server], spans = own.servers(), own.spans()

    assert server.name == "POST"
    assert (server.context.trace_id, parent(server)) == (int(TRACE, 16), int(PARENT, 16))
    assert parent(spans["chat tiny"]) == server.context.span_id
    assert server.attributes["llmtrace.gateway"] == "edge"
    assert server.attributes["llmtrace.gateway.upstream"] >= 0


def test_the_answer_names_that_span(own):
    """The id in the header is the one that was written."""
    answered = ask(through(app), {**CALLER, **LLMTRACE})
    [server] = own.servers()

    assert answered.timing[0].hop == f"{server.context.span_id:016x}"
    assert answered.comments[0][0].hop == answered.timing[0].hop


def test_an_error_is_the_spans_status(own):
    """As OpenTelemetry says it."""

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError

    ask(through(broken), CALLER)
    [server] = own.servers()

    assert server.status.status_code is otel_trace.StatusCode.ERROR
    assert server.status.description == "ValueError"


def test_what_the_caller_sends_along_is_there_inside(own, monkeypatch):
    """Baggage comes with the trace."""
    seen: list[Any] = []
    monkeypatch.setattr(
        "tests.gateway.test_trace.answer", lambda: seen.append(baggage.get_baggage("tenant")) or []
    )
    ask(through(app), CALLER)

    assert seen == ["acme"]


def test_an_instrumentation_around_us_has_the_server_span(own):
    """There is one, and it gets what the gateway knows."""
    around = OpenTelemetryMiddleware(
        through(app), tracer_provider=own.provider, exclude_spans=["receive", "send"]
    )
    answered = ask(around, CALLER)
    [server], spans = own.servers(), own.spans()

    assert parent(server) == int(PARENT, 16)
    assert server.attributes["llmtrace.gateway"] == "edge"
    assert answered.timing[0].hop == f"{server.context.span_id:016x}"
    assert parent(spans["chat tiny"]) == server.context.span_id


def test_an_instrumentation_inside_us_leaves_the_server_span_to_us(own):
    """Its own becomes a child."""
    inside = OpenTelemetryMiddleware(
        app, tracer_provider=own.provider, exclude_spans=["receive", "send"]
    )
    ask(through(inside), CALLER)

    [server] = own.servers()
    assert parent(server) == int(PARENT, 16)


def test_an_unsampled_server_span(own):
    """The enclosing instrumentation has decided; the times are exposed all the same."""
    unsampled = TracerProvider(sampler=ALWAYS_OFF)
    around = OpenTelemetryMiddleware(through(app), tracer_provider=unsampled)
    answered = ask(around)

    assert own.servers() == []
    assert ms(answered.timing)[0] is not None


def test_a_client_in_the_same_process_is_not_around_us(own):
    """A test without a network has the client's span current: it is the client's."""

    async def run() -> None:
        transport = httpx.ASGITransport(through(json_app))
        http = httpx.AsyncClient(transport=transport)
        async with openai.AsyncOpenAI(
            base_url="http://edge/v1", api_key="none", http_client=http
        ) as client:
            await client.chat.completions.create(model="asked", messages=[])

    asyncio.run(run())
    [server], spans = own.servers(), own.spans()

    assert parent(server) == spans["chat asked"].context.span_id
    assert parent(spans["chat tiny"]) == server.context.span_id


def test_such_a_client_is_its_own_row():
    """What is recorded inside the gateway does not join the client's request."""
    sink = Spans()

    async def run() -> None:
        transport = httpx.ASGITransport(through(json_app))
        http = httpx.AsyncClient(transport=transport)
        async with openai.AsyncOpenAI(
            base_url="http://edge/v1", api_key="none", http_client=http
        ) as client:
            await client.chat.completions.create(model="asked", messages=[])

    with capture(sinks=[sink]):
        asyncio.run(run())
    inner, outer = sink.rows

    assert (inner.model, outer.model) == ("tiny", "asked")
    assert outer.gateway == "edge"
    assert (sink.one.parent_span_id, inner.parent_span_id) == (outer.span_id, sink.one.span_id)


async def json_app(scope: Any, receive: Any, send: Any) -> None:
    """Answer in one piece."""
    await read_all(receive)
    list(answer())
    body = (
        b'{"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [{'
        b'"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "a"}}]}'
    )
    length = (b"content-length", str(len(body)).encode())
    await send(start([(b"content-type", b"application/json"), length]))
    await send({"type": "http.response.body", "body": body})


def test_nothing_of_the_trace_is_left_current(own):
    """After the request, the context is what it was."""
    before = otel_context.get_current()

    async def run() -> Any:
        scope = {"type": "http", "headers": [], "method": "POST", "path": "/"}

        async def received() -> Any:
            return {"type": "http.request"}

        async def sent(message: Any) -> None:
            pass

        await through(app)(scope, received, sent)
        return otel_context.get_current()

    assert asyncio.run(run()) == before
