"""Over real HTTP, with the real SDKs: does a client's row get what gateways took, once?"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import aiohttp
import anthropic
import httpx
import openai
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import llmtrace
from llmtrace import gateway
from llmtrace.core.row import Row
from llmtrace.core.span import Span
from llmtrace.gateway.first_content import FirstContent
from llmtrace.runtime.trace_context import HeaderPolicy
from llmtrace.simulator.server import ServerConfig, SimulatedServer, serve
from llmtrace.testing import capture
from tests.support.taking_time import aspend, spend
from tests.support.waiting import until

from .asgi import Spans
from .serving import SSE, app, events, relay, serving

GUARD_S = 0.05
RELEASE_S = 0.03
# What a proxy has to pass on for the gateway behind it to know the client.
ACCEPTS = {"content-type", "accept", "x-llmtrace-accept"}
QUESTION: dict[str, Any] = {
    "model": "llmtrace-sim",
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 8,
}


@pytest.fixture(scope="session")
def engine() -> Iterator[SimulatedServer]:
    """An engine for all tests."""
    with serve(ServerConfig()) as server:
        yield server


@pytest.fixture
def sink() -> Iterator[Spans]:
    """Collect what client and gateways record: they are one process here."""
    collected = Spans()
    with capture(sinks=[collected], headers=HeaderPolicy(own_hosts=frozenset({"127.0.0.1"}))):
        yield collected


def finished(sink: Spans, spans: int, rows: int) -> None:
    """Wait until the gateways' threads have written all they have to."""
    until(lambda: len(sink.finished) >= spans and len(sink.rows) >= rows, "spans or rows lack")


def clients_row(sink: Spans) -> Row:
    """Return the row of the client: the one without a parent."""
    [row] = [row for row in sink.rows if row.parent_span_id is None]
    assert row.stages.total == row.e2e_ns
    assert row.stages.inconsistent == (), (row, sink.finished)
    return row


def hop(sink: Spans, name: str = "edge") -> Span:
    """Return a gateway's span."""
    [span] = [span for span in sink.finished if span.attributes["llmtrace.gateway"] == name]
    return span


def own_ns(span: Span) -> int:
    """Return what a gateway took for itself."""
    return round(span.attributes["llmtrace.gateway.self"] * 1e9)


def ask_sync(url: str, **question: Any) -> None:
    """Ask with the SDK, and read to the end."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(**{**QUESTION, **question})
        if question.get("stream"):
            assert len(list(answer)) > 2


def ask_async(url: str, **question: Any) -> None:
    """Do the same, async."""

    async def run() -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0
        ) as client:
            answer = await client.chat.completions.create(**{**QUESTION, **question})
            if question.get("stream"):
                assert len([chunk async for chunk in answer]) > 2

    asyncio.run(run())


ASKING = pytest.mark.parametrize("asks", [ask_sync, ask_async], ids=["sync", "async"])
STREAMED = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


# --- one gateway --------------------------------------------------------------------------------


@ASKING
@STREAMED
def test_the_callers_row_has_what_the_gateway_took(
    sink: Spans, engine: SimulatedServer, asks: Callable[..., None], stream: bool
) -> None:
    """To the nanosecond what the gateway's own span says, with the engine's times behind it."""
    one = app(relay(engine.url, GUARD_S, RELEASE_S))
    one.add_middleware(gateway.Middleware, name="edge")
    with serving(one) as url:
        asks(url, stream=stream)
        finished(sink, spans=1, rows=2)

    row, span = clients_row(sink), hop(sink)
    [upstream] = [row for row in sink.rows if row.parent_span_id == span.span_id]
    assert row.timeline.gateway.ns == own_ns(span) == row.stages.gateway
    assert row.stages.gateway >= (GUARD_S + (RELEASE_S if stream else 0)) * 1e9
    assert row.stages.sources["gateway"] == "server_timing"
    assert (row.stages.queue, row.stages.prefill) == (
        upstream.timeline.queue.ns,
        upstream.timeline.prefill.ns,
    )
    assert row.stages.first_chunk is not None
    assert (row.gateway, row.cache_hit) == ("edge", None)
    assert (span.trace_id, span.parent_span_id) == (row.trace_id, row.span_id)
    assert upstream.trace_id == row.trace_id
    assert upstream.stages.gateway is None
    assert span.attributes["http.response.status_code"] == 200


@ASKING
def test_a_header_is_all_there_is_for_a_stream_without_comments(
    sink: Spans, engine: SimulatedServer, asks: Callable[..., None]
) -> None:
    """Compressed on the way, comments cannot be seen: the header's share is what is known."""
    one = app(relay(engine.url, GUARD_S, RELEASE_S))
    one.add_middleware(gateway.Middleware, name="edge")

    async def claims(scope: Any, receive: Any, send: Any) -> None:
        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = [*message["headers"], (b"content-encoding", b"identity, identity")]
                message = {**message, "headers": headers}
            await send(message)

        await one(scope, receive, sent)

    with serving(claims) as url:
        asks(url, stream=True)
        finished(sink, spans=1, rows=2)

    row, span = clients_row(sink), hop(sink)
    assert GUARD_S * 1e9 <= row.stages.gateway <= own_ns(span) - RELEASE_S * 1e9


def test_fastapi_with_middleware_of_its_own_on_both_sides(
    sink: Spans, engine: SimulatedServer
) -> None:
    """Starlette's BaseHTTPMiddleware runs the application in another task, and streams anew."""
    one = FastAPI()
    handle = relay(engine.url, GUARD_S)

    @one.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await handle(request)

    async def inside(request: Request, call_next: Any) -> Response:
        await aspend(RELEASE_S)
        return await call_next(request)

    async def outside(request: Request, call_next: Any) -> Response:
        await aspend(RELEASE_S)
        return await call_next(request)

    one.add_middleware(BaseHTTPMiddleware, dispatch=inside)
    one.add_middleware(gateway.Middleware, name="edge")
    one.add_middleware(BaseHTTPMiddleware, dispatch=outside)
    with serving(one) as url:
        ask_sync(url, stream=True)
        finished(sink, spans=1, rows=2)

    row, span = clients_row(sink), hop(sink)
    assert row.stages.gateway == own_ns(span) >= (GUARD_S + RELEASE_S) * 1e9
    assert span.name == "POST /v1/chat/completions"
    assert row.stages.queue is not None


def test_endpoints_in_threads(sink: Spans, engine: SimulatedServer) -> None:
    """A framework's thread pool takes the request's context along."""
    one = FastAPI()

    @one.post("/v1/chat/completions")
    def chat() -> Any:
        spend(GUARD_S)
        with openai.OpenAI(base_url=engine.url, api_key="none") as client:
            return client.chat.completions.create(**QUESTION).model_dump()

    with serving(gateway.Middleware(one, name="edge")) as url:
        ask_sync(url)
        finished(sink, spans=1, rows=2)

    row, span = clients_row(sink), hop(sink)
    assert row.stages.gateway == own_ns(span) >= GUARD_S * 1e9
    assert span.attributes["llmtrace.gateway.calls"] == 1


def test_anthropics_stream(sink: Spans, engine: SimulatedServer) -> None:
    """A protocol without an end mark sends the rest after its last event."""

    async def handle(request: Request) -> Response:
        body = await request.json()

        async def relayed() -> Any:
            async with anthropic.AsyncAnthropic(base_url=engine.root, api_key="none") as client:
                async for event in await client.messages.create(**body):
                    kind = event.type
                    yield f"event: {kind}\ndata: {event.model_dump_json(exclude_none=True)}\n\n"

        await aspend(GUARD_S)
        return StreamingResponse(relayed(), media_type=SSE)

    one = Starlette(routes=[Route("/v1/messages", handle, methods=["POST"])])
    one.add_middleware(gateway.Middleware, name="edge")
    with serving(one) as url:
        with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
            assert len(list(client.messages.create(**QUESTION, stream=True))) > 3
        finished(sink, spans=1, rows=2)

    row, span = clients_row(sink), hop(sink)
    assert row.stages.gateway == own_ns(span) >= GUARD_S * 1e9


def test_retries_of_the_gateway_are_its_own(sink: Spans, engine: SimulatedServer) -> None:
    """What a refusal and its backoff cost is no wait of the engine's."""

    async def handle(request: Request) -> Response:
        async with openai.AsyncOpenAI(
            base_url=engine.url,
            api_key="none",
            max_retries=2,
            default_headers={"x-llmtrace-sim": "reject_first=1, retry_after_s=0.1"},
        ) as client:
            answer = await client.chat.completions.create(**QUESTION)
        return JSONResponse(answer.model_dump(exclude={"metrics"}))

    one = app(handle)
    one.add_middleware(gateway.Middleware, name="edge")
    with serving(one) as url:
        ask_sync(url)
        finished(sink, spans=1, rows=2)

    row = clients_row(sink)
    assert row.stages.gateway == own_ns(hop(sink)) >= 0.1 * 1e9
    assert row.attempts == 1


# --- gateways behind gateways -------------------------------------------------------------------


@contextmanager
def two(engine: SimulatedServer, outer: Callable[[str], Any]) -> Iterator[str]:
    """Put a gateway in front of a gateway in front of the engine."""
    with ExitStack() as stack:
        inner = app(relay(engine.url, GUARD_S, RELEASE_S))
        inner.add_middleware(gateway.Middleware, name="inner")
        behind = stack.enter_context(serving(inner))
        edge = outer(behind)
        edge.add_middleware(gateway.Middleware, name="edge")
        yield stack.enter_context(serving(edge))


def counted_once(sink: Spans) -> None:
    """Check that the client's row has each gateway's own time once."""
    row, edge, inner = clients_row(sink), hop(sink), hop(sink, "inner")
    assert row.stages.gateway == own_ns(edge) + own_ns(inner)
    assert own_ns(edge) >= GUARD_S * 1e9
    assert own_ns(inner) >= GUARD_S * 1e9
    assert row.gateway == "edge,inner"
    assert row.stages.queue is not None
    assert row.stages.prefill is not None


@STREAMED
def test_two_gateways(sink: Spans, engine: SimulatedServer, stream: bool) -> None:
    """Each is in the client's row once, and in the outer one's own row there is the inner one."""
    with two(engine, lambda behind: app(relay(f"{behind}/v1", GUARD_S, RELEASE_S))) as url:
        ask_sync(url, stream=stream)
        finished(sink, spans=2, rows=3)

    counted_once(sink)
    edge, inner = hop(sink), hop(sink, "inner")
    [between] = [row for row in sink.rows if row.parent_span_id == edge.span_id]
    assert between.stages.gateway == own_ns(inner)
    assert inner.parent_span_id == between.span_id
    assert (
        len({row.trace_id for row in sink.rows} | {span.trace_id for span in sink.finished}) == 1
    )


@STREAMED
@pytest.mark.parametrize("headers", [True, False], ids=["with headers", "without"])
def test_a_proxy_that_passes_bytes_on(
    sink: Spans, engine: SimulatedServer, stream: bool, headers: bool
) -> None:
    """What the inner gateway exposes comes through by itself, and counts no second time for it."""

    def proxy(behind: str) -> Any:
        async def handle(request: Request) -> Response:
            await aspend(GUARD_S)
            client = httpx.AsyncClient(timeout=30)
            asked = client.build_request(
                "POST", f"{behind}{request.url.path}", content=await request.body(),
                headers={k: v for k, v in request.headers.items() if k in ACCEPTS},
            )  # fmt: skip
            answer = await client.send(asked, stream=True)

            async def relayed() -> Any:
                async for piece in answer.aiter_raw():
                    yield piece
                await answer.aclose()
                await client.aclose()

            left = {"date", "server", *(() if headers else ("server-timing",))}
            kept = {k: v for k, v in answer.headers.items() if k not in left}
            return StreamingResponse(relayed(), answer.status_code, headers=kept)

        return app(handle)

    with two(engine, proxy) as url:
        ask_sync(url, stream=stream)
        finished(sink, spans=2, rows=3)

    counted_once(sink)


def test_a_proxy_whose_client_is_not_recorded(sink: Spans, engine: SimulatedServer) -> None:
    """It says itself when it waits; the inner gateway's comments pass through it."""

    def proxy(behind: str) -> Any:
        def handle(scope_headers: Any, body: bytes) -> Any:
            spend(GUARD_S)
            with gateway.upstream() as joining:
                given = {k: v for k, v in scope_headers.items() if k in ACCEPTS}
                asked = urllib.request.Request(
                    f"{behind}/v1/chat/completions", body, {**given, **joining}
                )
                answer = urllib.request.urlopen(asked, timeout=30)
                first, content = [answer.read1()], FirstContent()
                while not content.in_these(first[-1]):
                    first.append(answer.read1())

            def relayed() -> Any:
                with answer:
                    yield b"".join(first)
                    while piece := answer.read1():
                        yield piece

            return StreamingResponse(relayed(), media_type=SSE)

        async def endpoint(request: Request) -> Response:
            return await run_in_threadpool(handle, request.headers, await request.body())

        return app(endpoint)

    with two(engine, proxy) as url:
        ask_sync(url, stream=True)
        finished(sink, spans=2, rows=2)

    counted_once(sink)
    assert hop(sink, "inner").parent_span_id == hop(sink).span_id


# --- a cache ------------------------------------------------------------------------------------


@STREAMED
def test_an_answer_from_a_cache_is_the_gateways(
    sink: Spans, engine: SimulatedServer, stream: bool
) -> None:
    """There are no stages of an engine, even if the cache kept its figures."""
    kept: list[bytes] = []
    whole: list[Any] = []

    async def handle(request: Request) -> Response:
        body = await request.json()
        if kept or whole:
            await aspend(GUARD_S)
            gateway.cache_hit("exact")
            if whole:
                return JSONResponse(whole[0])
            return StreamingResponse(iter([b"".join(kept)]), media_type=SSE)
        if not stream:
            async with openai.AsyncOpenAI(base_url=engine.url, api_key="none") as client:
                whole.append((await client.chat.completions.create(**body)).model_dump())
            return JSONResponse(whole[0])

        async def relayed() -> Any:
            async for event in events(engine.url, body, 0.0):
                kept.append(event.encode())
                yield event

        return StreamingResponse(relayed(), media_type=SSE)

    one = app(handle)
    one.add_middleware(gateway.Middleware, name="edge")
    with serving(one) as url:
        ask_sync(url, stream=stream)
        finished(sink, spans=1, rows=2)
        missed = clients_row(sink)
        sink.rows.clear()
        sink.finished.clear()
        ask_sync(url, stream=stream)
        finished(sink, spans=1, rows=1)

    row, span = clients_row(sink), hop(sink)
    assert (missed.cache_hit, missed.stages.queue is None) == (None, False)
    assert row.cache_hit is True
    assert (row.stages.queue, row.stages.prefill, row.stages.first_chunk) == (None, None, None)
    assert row.stages.gateway == own_ns(span) >= GUARD_S * 1e9
    assert row.outcome == "success"
    assert span.attributes["llmtrace.cache_kind"] == "exact"


# --- everybody else, and bad ends ---------------------------------------------------------------

FIXED = [
    b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n',
    b'data: {"choices": [{"delta": {"content": "a"}}]}\r\n\r\n',
    b": keep-alive\n\n",
    'data: {"choices": [{"delta": {"content": "é\\t\\n"}}]}\n'.encode(),
    b"\ndata: [DONE]\n\n",
]


async def fixed(_: Request) -> Response:
    """Answer the same each time."""

    async def relayed() -> Any:
        with gateway.upstream():
            await aspend(0.01)
        for piece in FIXED:
            yield piece

    return StreamingResponse(relayed(), media_type=SSE)


def test_other_clients_get_the_very_same_bytes(sink: Spans) -> None:
    """With the middleware and without, the body is one and the same."""

    def ask(url: str) -> tuple[bytes, dict[str, str]]:
        asked = urllib.request.Request(f"{url}/v1/chat/completions", b"{}")
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return answer.read(), {k.lower(): v for k, v in answer.headers.items()}

    with (
        serving(gateway.Middleware(app(fixed), name="edge")) as url,
        serving(app(fixed)) as bare,
    ):
        (body, headers), (plain, plain_headers) = ask(url), ask(bare)
        finished(sink, spans=1, rows=0)

    assert body == plain == b"".join(FIXED)
    assert headers.keys() - plain_headers.keys() == {"server-timing", "x-request-id"}
    assert "gateway;dur=" in headers["server-timing"]


def lines_by_httpx(url: str, headers: dict[str, str]) -> list[str]:
    """Read a stream line by line, without an SDK."""
    with (
        httpx.Client() as client,
        client.stream("POST", f"{url}/v1/chat/completions", json={}, headers=headers) as answer,
    ):
        return [*answer.iter_lines()]


def lines_by_aiohttp(url: str, headers: dict[str, str]) -> list[str]:
    """Do the same with aiohttp."""

    async def run() -> list[str]:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/v1/chat/completions", json={}, headers=headers) as answer,
        ):
            return [line.decode().rstrip("\r\n") async for line in answer.content]

    with llmtrace.instrument(aiohttp):
        return asyncio.run(run())


@pytest.mark.parametrize("read", [lines_by_httpx, lines_by_aiohttp])
@pytest.mark.parametrize("accept", [{}, {"accept": "text/event-stream"}], ids=["any", "events"])
def test_a_reader_of_raw_bytes(
    sink: Spans, accept: dict[str, str], read: Callable[..., list[str]]
) -> None:
    """A client that requests an event stream gets comments; others may not know them."""
    with serving(gateway.Middleware(app(fixed), name="edge")) as url:
        lines = read(url, accept)
        finished(sink, spans=1, rows=1)

    row = clients_row(sink)
    comments = [line for line in lines if line.startswith(":\tllmtrace ")]
    assert next(line for line in lines if line.startswith("data:")) in FIXED[0].decode()
    assert len(comments) == len(accept)
    assert row.gateway == "edge"
    assert (row.stages.gateway == own_ns(hop(sink))) is bool(accept)
    assert row.stages.gateway <= own_ns(hop(sink))


async def _passes_on(request: Request, call_next: Any) -> Response:
    return await call_next(request)


@pytest.mark.parametrize("framework", ["plain", "http middleware"])
def test_a_client_that_leaves_in_the_middle(
    framework: str, sink: Spans, engine: SimulatedServer
) -> None:
    """The gateway's stream ends, its upstream's with it, and nothing counts as an error."""
    one = app(relay(engine.url))
    if framework == "http middleware":  # what `@app.middleware("http")` adds
        one.add_middleware(BaseHTTPMiddleware, dispatch=_passes_on)
    one.add_middleware(gateway.Middleware, name="edge")
    with serving(one) as url:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            stream = client.chat.completions.create(
                **{**QUESTION, "max_tokens": 2000}, stream=True
            )
            for _ in range(3):
                next(stream)
            stream.close()
        finished(sink, spans=1, rows=2)

    row, span = clients_row(sink), hop(sink)
    assert row.outcome == "cancelled"
    assert (span.attributes["llmtrace.outcome"], span.error) == ("cancelled", None)
    assert row.stages.gateway == own_ns(span)
    [upstream] = [row for row in sink.rows if row.parent_span_id == span.span_id]
    assert upstream.outcome == "cancelled"


def test_an_application_that_fails(sink: Spans) -> None:
    """The framework's response goes out, the exception to the server, and the span names it."""

    async def handle(_: Request) -> Response:
        await aspend(GUARD_S)
        raise LookupError("no such route")

    one = app(handle)
    one.add_middleware(gateway.Middleware, name="edge")
    with serving(one) as url:
        with pytest.raises(openai.InternalServerError):
            ask_sync(url)
        finished(sink, spans=1, rows=1)

    span = hop(sink)
    assert (span.error, span.attributes["llmtrace.outcome"]) == ("LookupError", "error")


def test_an_application_that_fails_in_the_middle(sink: Spans, engine: SimulatedServer) -> None:
    """What the client got stays, and how it ended is what it is without us."""

    async def handle(request: Request) -> Response:
        body = await request.json()

        async def relayed() -> Any:
            async for event in events(engine.url, body, 0.0):
                yield event
                if "content" in event:
                    raise ConnectionError("gone")

        return StreamingResponse(relayed(), media_type=SSE)

    one = app(handle)
    one.add_middleware(gateway.Middleware, name="edge")
    with serving(one) as url:
        with pytest.raises((openai.APIError, httpx.HTTPError)):
            ask_sync(url, stream=True)
        finished(sink, spans=1, rows=1)

    assert clients_row(sink).outcome == "error"
    assert hop(sink).error == "ConnectionError"


def test_a_refusal_is_a_failed_attempt_of_its_caller(sink: Spans) -> None:
    """Time of a gateway that turned a request away is the gateway's, as a whole."""

    async def handle(_: Request) -> Response:
        await aspend(GUARD_S)
        return JSONResponse({"error": {"message": "slow down"}}, 429)

    one = app(handle)
    one.add_middleware(gateway.Middleware, name="edge")
    with serving(one) as url:
        with pytest.raises(openai.RateLimitError):
            ask_sync(url)
        finished(sink, spans=1, rows=1)

    row = clients_row(sink)
    assert row.stages.gateway >= GUARD_S * 1e9
    assert hop(sink).attributes["http.response.status_code"] == 429


def test_nothing_went_wrong_inside(sink: Spans, engine: SimulatedServer) -> None:
    """Many at a time keep their times apart."""
    one = app(relay(engine.url, GUARD_S))
    one.add_middleware(gateway.Middleware, name="edge")

    async def run(url: str) -> None:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:

            async def ask() -> None:
                stream = await client.chat.completions.create(**QUESTION, stream=True)
                assert [chunk async for chunk in stream]

            await asyncio.gather(*(ask() for _ in range(10)))

    with serving(one) as url:
        asyncio.run(run(url))
        finished(sink, spans=10, rows=20)

    spans = {span.parent_span_id: span for span in sink.finished}
    for row in sink.rows:
        if row.parent_span_id is None:
            assert row.stages.gateway == own_ns(spans[row.span_id]) >= GUARD_S * 1e9
            assert row.stages.queue is not None
    assert llmtrace.internal_errors() == {}
