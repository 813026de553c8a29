"""A WebSocket endpoint or a gRPC method is in its client's trace, and reports its time.

Gateways over WebSocket and gRPC in front of the simulated engine, on loopback, in one process.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio
import openai
import pytest
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import connect

import llmtrace
from llmtrace import gateway, websocket
from llmtrace.core.errors import ConfigError
from llmtrace.core.row import Row
from llmtrace.core.span import Span
from llmtrace.grpc import (
    aio_client_interceptors,
    aio_server_interceptor,
    client_interceptors,
    server_interceptor,
)
from llmtrace.propagate import trace_headers
from llmtrace.simulator.server import SimulatedServer, serve
from llmtrace.testing import capture
from tests.gateway.asgi import Spans
from tests.gateway.serving import serving
from tests.instrumentation.reading import eventually
from tests.support.taking_time import aspend, spend

GUARD_S = 0.05
QUESTION: dict[str, Any] = {
    "model": "llmtrace-sim",
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 8,
    "stream": True,
}
SERVICE = "edge.Chat"


@pytest.fixture(scope="module")
def engine() -> Iterator[SimulatedServer]:
    """An engine for all tests."""
    with serve() as server:
        yield server


@pytest.fixture
def sink() -> Iterator[Spans]:
    """Collect what client and gateway record: they are one process here."""
    collected = Spans()
    with capture(sinks=[collected]):
        yield collected


def client() -> dict[str, Any]:
    """Return how the gateway's own client is made."""
    return {"api_key": "none", "max_retries": 0}


async def upstream(engine: SimulatedServer) -> Any:
    """Think, then ask the engine, and pass on its words."""
    await aspend(GUARD_S)
    async with openai.AsyncOpenAI(base_url=engine.url, **client()) as upstream_client:
        async for chunk in await upstream_client.chat.completions.create(**QUESTION):
            if chunk.choices and chunk.choices[0].delta.content:
                yield chunk.choices[0].delta.content


def upstream_sync(engine: SimulatedServer) -> Iterator[str]:
    """Do the same in a thread."""
    spend(GUARD_S)
    with openai.OpenAI(base_url=engine.url, **client()) as upstream_client:
        for chunk in upstream_client.chat.completions.create(**QUESTION):
            if chunk.choices and chunk.choices[0].delta.content:
                yield chunk.choices[0].delta.content


def one_trace(sink: Spans, questions: int = 1) -> list[tuple[Row, Span, Row]]:
    """Return each question's row, the gateway's span and the upstream's row: a chain of children.

    The gateway's self time is reported to the client to the nanosecond.
    """
    eventually(lambda: len(sink.finished) >= questions and len(sink.rows) >= 2 * questions, 20)
    found = []
    for row in sink.rows:
        if row.client == "openai":
            continue
        [span] = [span for span in sink.finished if span.parent_span_id == row.span_id]
        [behind] = [one for one in sink.rows if one.parent_span_id == span.span_id]
        assert row.trace_id == span.trace_id == behind.trace_id
        assert behind.client == "openai"
        assert span.kind == "server"
        assert span.attributes["llmtrace.request_id"] == row.request_id
        assert row.stages.total == row.e2e_ns
        found.append((row, span, behind))
    assert len(found) == questions
    return found


def check_reported(row: Row, span: Span) -> None:
    """Check that the client's row has what the gateway's span says, and the engine's time, too."""
    own = round(float(str(span.attributes["llmtrace.gateway.self"])) * 1e9)
    assert own >= GUARD_S * 1e9
    assert row.stages.gateway is not None
    assert abs(row.stages.gateway - own) < 1_000
    assert row.stages.sources["gateway"] == "server_timing"
    assert row.gateway == "edge"
    assert row.stages.queue is not None
    assert row.stages.prefill is not None
    assert row.stages.inconsistent == ()


# --- WebSocket -----------------------------------------------------------------------------------


def app(endpoint: Callable[[WebSocket], Any]) -> Starlette:
    """Make an application with one endpoint, behind the middleware as others of its would be."""
    made = Starlette(routes=[WebSocketRoute("/chat", endpoint)])
    made.add_middleware(gateway.Middleware, name="edge")
    return made


@contextmanager
def chat(endpoint: Callable[[WebSocket], Any]) -> Iterator[str]:
    """Serve an endpoint; yield its address."""
    with serving(app(endpoint), ws="websockets-sansio") as url:
        yield f"ws{url.removeprefix('http')}/chat"


def classify(message: str) -> Any:
    """Say what a message carries."""
    event = json.loads(message)
    end = {"finish_reason": "stop", "server_timing": event.get("server_timing")}
    return end if event.get("end") else "text"


async def ask(connection: Any, **along: str) -> None:
    """Ask a question and read the response to its end."""
    await connection.send(json.dumps({"text": "Why?", **along}))
    while not json.loads(await connection.recv()).get("end"):
        pass


def test_a_question_of_a_connection(sink: Spans, engine: SimulatedServer) -> None:
    """The handshake's trace context serves for the first; later ones bring their own."""

    async def endpoint(socket: WebSocket) -> None:
        await socket.accept()
        async for question in socket.iter_json():
            with gateway.serving(socket, question, name="edge") as timing:
                async for word in upstream(engine):
                    await socket.send_json({"text": word})
                await socket.send_json({"end": True, "server_timing": timing()})

    @llmtrace.trace(route="later")
    async def later(connection: Any) -> None:
        await ask(connection, **trace_headers())

    async def main(url: str) -> None:
        async with websocket.wrap(connect(url), classify=classify) as connection:
            await ask(connection)
            await later(connection)

    with chat(endpoint) as url:
        asyncio.run(main(url))
        first, second = one_trace(sink, 2)
    for row, span, _ in (first, second):
        check_reported(row, span)
        assert (span.name, span.error) == ("WEBSOCKET /chat", None)
        assert span.attributes["network.protocol.name"] == "websocket"
    assert first[0].trace_id != second[0].trace_id
    assert second[0].route == "later"


def test_an_endpoint_that_fails(sink: Spans) -> None:
    """Its error goes through, and is on its span; so is a client that has gone."""
    raised: list[type[BaseException]] = []

    async def endpoint(socket: WebSocket) -> None:
        await socket.accept()
        question = await socket.receive_json()
        try:
            with gateway.serving(socket, question):
                if question["text"] == "Leave":
                    await socket.receive_json()
                raise LookupError("why")
        except Exception as error:
            raised.append(type(error))

    async def main(url: str) -> None:
        for text in ("Fail", "Leave"):
            async with connect(url) as connection:
                await connection.send(json.dumps({"text": text}))
                if text == "Fail":
                    await connection.wait_closed()

    with chat(endpoint) as url:
        asyncio.run(main(url))
        eventually(lambda: len(sink.finished) == 2, 20)
    failed, left = sink.finished
    assert raised == [LookupError, WebSocketDisconnect]
    assert (failed.error, failed.attributes["llmtrace.outcome"]) == ("LookupError", "error")
    assert (left.error, left.attributes["llmtrace.outcome"]) == (None, "cancelled")


def test_questions_side_by_side(sink: Spans, engine: SimulatedServer) -> None:
    """Each is timed by what it sends itself, on one connection."""

    async def endpoint(socket: WebSocket) -> None:
        async def answers(question: Any) -> None:
            with gateway.serving(socket, question, name="edge") as timing:
                async for word in upstream(engine):
                    await socket.send_json({"id": question["id"], "text": word})
                end = {"id": question["id"], "end": True, "server_timing": timing()}
                await socket.send_json(end)

        await socket.accept()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(2):
                tasks.create_task(answers(await socket.receive_json()))

    async def main(url: str) -> None:
        async with connect(url) as connection:
            for number in range(2):
                await connection.send(json.dumps({"id": number}))
            ends = 0
            while ends < 2:
                ends += bool(json.loads(await connection.recv()).get("end"))

    with chat(endpoint) as url:
        asyncio.run(main(url))
        eventually(lambda: len(sink.finished) == 2, 20)
    for span in sink.finished:
        assert float(str(span.attributes["llmtrace.gateway.self"])) >= GUARD_S
        assert span.attributes["llmtrace.gateway.calls"] == 1


def test_what_cannot_be_served_is_served_all_the_same(faulty: None) -> None:
    """Nothing is raised in a running request."""
    del faulty
    with gateway.serving(object()) as timing:
        assert timing() == ""
    with capture(), gateway.serving(object(), name="not a word") as timing:
        assert timing() == ""
    with capture(), gateway.serving(object(), {"traceparent": 5}) as timing:
        assert timing() == ""


# --- gRPC ----------------------------------------------------------------------------------------


def methods(engine: SimulatedServer) -> Any:
    """Return what a gRPC gateway serves in threads."""

    def stream(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        context.set_trailing_metadata((("x-own", "kept"),))
        if request == b"fail":
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no")
        if request == b"raise":
            raise LookupError
        for word in upstream_sync(engine):
            yield word.encode()

    def whole(_request: bytes, _context: grpc.ServicerContext) -> bytes:
        return "".join(upstream_sync(engine)).encode()

    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "Stream": grpc.unary_stream_rpc_method_handler(stream),
            "Whole": grpc.unary_unary_rpc_method_handler(whole),
        },
    )


@contextmanager
def threads(engine: SimulatedServer, **how: Any) -> Iterator[str]:
    """Serve a gRPC gateway in threads; yield the target."""
    server = grpc.server(
        futures.ThreadPoolExecutor(4), interceptors=[server_interceptor(name="edge", **how)]
    )
    server.add_generic_rpc_handlers((methods(engine),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(5).wait()


def amethods(engine: SimulatedServer) -> Any:
    """Return what a gRPC gateway serves under asyncio, in each way there is."""

    async def stream(request: bytes, context: Any) -> Any:
        context.set_trailing_metadata((("x-own", "kept"),))
        if request == b"fail":
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no")
        if request == b"raise":
            raise LookupError
        async for word in upstream(engine):
            yield word.encode()

    async def writes(_request: bytes, context: Any) -> None:
        async for word in upstream(engine):
            await context.write(word.encode())

    async def whole(_request: bytes, _context: Any) -> bytes:
        return "".join([word async for word in upstream(engine)]).encode()

    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "Stream": grpc.unary_stream_rpc_method_handler(stream),
            "Writes": grpc.unary_stream_rpc_method_handler(writes),
            "Whole": grpc.unary_unary_rpc_method_handler(whole),
        },
    )


@contextmanager
def tasks(engine: SimulatedServer, **how: Any) -> Iterator[str]:
    """Serve a gRPC gateway under asyncio, in a thread of its own; yield the target."""
    target: futures.Future[str] = futures.Future()
    stop = threading.Event()

    async def main() -> None:
        server = grpc.aio.server(interceptors=[aio_server_interceptor(name="edge", **how)])
        server.add_generic_rpc_handlers((amethods(engine),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        target.set_result(f"127.0.0.1:{port}")
        await asyncio.to_thread(stop.wait)
        await server.stop(5)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    try:
        yield target.result(20)
    finally:
        stop.set()
        thread.join()


SERVERS = pytest.mark.parametrize("served", [threads, tasks])


def ask_sync(target: str, method: str, request: bytes = b"?") -> Any:
    """Ask over gRPC in a thread; return what was read, and the call."""
    with grpc.insecure_channel(target) as plain:
        channel = grpc.intercept_channel(plain, *client_interceptors())
        if method == "Whole":
            return channel.unary_unary(f"/{SERVICE}/{method}").with_call(request)
        call = channel.unary_stream(f"/{SERVICE}/{method}")(request)
        return b"".join(call), call


def ask_async(target: str, method: str) -> Any:
    """Ask over gRPC in a task."""

    async def main() -> bytes:
        interceptors = aio_client_interceptors()
        async with grpc.aio.insecure_channel(target, interceptors=interceptors) as channel:
            if method == "Whole":
                answer: bytes = await channel.unary_unary(f"/{SERVICE}/{method}")(b"?")
                return answer
            call = channel.unary_stream(f"/{SERVICE}/{method}")(b"?")
            return b"".join([message async for message in call])

    return asyncio.run(main()), None


@SERVERS
@pytest.mark.parametrize("asks", [ask_sync, ask_async])
@pytest.mark.parametrize("method", ["Stream", "Whole"])
def test_a_grpc_gateway(
    sink: Spans, engine: SimulatedServer, served: Any, asks: Any, method: str
) -> None:
    """The client's row has what the gateway took, and the engine's figures from behind it."""
    with served(engine) as target:
        answer, call = asks(target, method)
        [(row, span, behind)] = one_trace(sink)
    assert len(answer.split()) > 1
    assert row.outcome == behind.outcome == "success"
    check_reported(row, span)
    assert span.name == f"{SERVICE}/{method}"
    assert span.attributes["rpc.response.status_code"] == "OK"
    if call is not None and method == "Stream":
        assert dict(call.trailing_metadata())["x-own"] == "kept"


def test_a_method_that_writes_to_its_context(sink: Spans, engine: SimulatedServer) -> None:
    """When its first content went out is unknown, and so is its own time."""
    with tasks(engine) as target:
        answer, _ = ask_sync(target, "Writes")
        [(row, span, _)] = one_trace(sink)
    assert len(answer.split()) > 1
    assert "llmtrace.gateway.self" not in span.attributes
    assert row.stages.gateway is None
    assert row.stages.queue is not None


@SERVERS
@pytest.mark.parametrize(
    ("request_", "status"), [(b"fail", "RESOURCE_EXHAUSTED"), (b"raise", "UNKNOWN")]
)
def test_a_method_that_fails(
    sink: Spans, engine: SimulatedServer, served: Any, request_: bytes, status: str
) -> None:
    """The client sees what it saw; span and row have the status."""
    with served(engine) as target:
        with pytest.raises(grpc.RpcError) as raised:
            ask_sync(target, "Stream", request_)
        eventually(lambda: sink.finished and sink.rows, 20)
    [span], [row] = sink.finished, sink.rows
    error: Any = raised.value
    assert error.code().name == status
    assert dict(error.trailing_metadata())["x-own"] == "kept"
    assert (row.outcome, row.error_type) == ("error", status)
    assert span.parent_span_id == row.span_id
    assert (span.error, span.attributes["llmtrace.outcome"]) == (status, "error")


@SERVERS
def test_a_caller_that_leaves(sink: Spans, engine: SimulatedServer, served: Any) -> None:
    """A call that is cancelled ends the method, and its span says so."""
    with served(engine) as target, grpc.insecure_channel(target) as plain:
        channel = grpc.intercept_channel(plain, *client_interceptors())
        call = channel.unary_stream(f"/{SERVICE}/Stream")(b"?")
        next(call)
        call.cancel()
        eventually(lambda: sink.finished, 20)
    [span] = sink.finished
    assert span.attributes["llmtrace.outcome"] == "cancelled"


@SERVERS
def test_a_gateway_that_tells_nothing(sink: Spans, engine: SimulatedServer, served: Any) -> None:
    """Its time is in the trace alone."""
    with served(engine, tell=False) as target:
        _, call = ask_sync(target, "Stream")
        [(row, span, _)] = one_trace(sink)
    assert "server-timing" not in dict(call.trailing_metadata())
    assert row.stages.gateway is None
    assert "llmtrace.gateway.self" in span.attributes


@SERVERS
def test_nothing_is_done_without_init(engine: SimulatedServer, served: Any) -> None:
    """Methods are served as they are."""
    with served(engine) as target:
        for method in ("Stream", "Whole"):
            answer, call = ask_sync(target, method)
            assert len(answer.split()) > 1
            assert "server-timing" not in dict(call.trailing_metadata())


@pytest.mark.parametrize("make", [server_interceptor, aio_server_interceptor])
def test_a_name_that_is_no_label(make: Any) -> None:
    """It is found when the interceptor is made."""
    with pytest.raises(ConfigError, match=rf"llmtrace\.grpc\.{make.__name__}: name='a b'"):
        make(name="a b")
