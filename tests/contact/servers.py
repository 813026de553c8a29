"""Other people's servers: FastAPI with its middlewares under two servers, and gRPC.

Each application is a gateway of one's own: it calls the model by the OpenAI SDK, so that a request
is one row, and the gateway's one span.
"""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

from llmtrace import gateway
from llmtrace.grpc import client_interceptors
from tests.contact.subjects import MESSAGES, Subject, _async_openai, _with_provider, async_chat
from tests.support.free_ports import free_port
from tests.support.taking_time import spend
from tests.support.waiting import until

PATH: Final = "/v1/chat/completions"
_START_S: Final = 20.0
_OTEL: Final = "opentelemetry.instrumentation"

# --- FastAPI ------------------------------------------------------------------------------------


def _application(root: str) -> Any:
    """Make a gateway with the middlewares that applications have."""
    from fastapi import FastAPI, Request
    from fastapi.middleware.cors import CORSMiddleware
    from fastapi.middleware.gzip import GZipMiddleware
    from fastapi.responses import JSONResponse, StreamingResponse

    application, upstream = FastAPI(), _async_openai(root)

    async def chat(request: Request) -> Any:
        if not (await request.json())["stream"]:
            return JSONResponse({"said": await async_chat(upstream, stream=False)})
        answer = await upstream.chat.completions.create(
            model="tiny", messages=MESSAGES, stream=True
        )

        async def events() -> AsyncIterator[str]:
            async for one in answer:
                yield f"data: {one.model_dump_json()}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    chat.__annotations__["request"] = Request
    application.post(PATH)(chat)

    @application.middleware("http")
    async def stamped(request: Any, call_next: Any) -> Any:
        answer = await call_next(request)
        answer.headers["x-stamped"] = "yes"
        return answer

    application.add_middleware(CORSMiddleware, allow_origins=["*"])
    application.add_middleware(GZipMiddleware, minimum_size=1)
    application.add_middleware(gateway.Middleware, name="router")
    return application


def _with_asgi(root: str) -> Any:
    from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware

    _with_provider()
    return OpenTelemetryMiddleware(_application(root))


def _with_fastapi(root: str) -> Any:
    from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor

    _with_provider()
    application = _application(root)
    FastAPIInstrumentor.instrument_app(application)
    return application


@contextmanager
def _uvicorn(application: Any) -> Iterator[int]:
    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application, log_config=None))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(_START_S)


@contextmanager
def _hypercorn(application: Any) -> Iterator[int]:
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    port = free_port()
    config = Config()
    config.bind, config.loglevel, config.graceful_timeout = [f"127.0.0.1:{port}"], "CRITICAL", 5
    loop, over = asyncio.new_event_loop(), asyncio.Event()
    running = serve(application, config, shutdown_trigger=over.wait)  # type: ignore[arg-type]
    thread = threading.Thread(target=loop.run_until_complete, args=(running,), daemon=True)
    thread.start()
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(_START_S)


def _connected(port: int) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_START_S)

    def connected() -> bool:
        with suppress(OSError):
            connection.connect()
        return connection.sock is not None

    until(connected, "the server does not listen", _START_S)
    return connection


def _ask(serve: Callable[[Any], Any], application: Any, stream: bool) -> str:
    """Request by a client that nothing instruments, and end the server."""
    with serve(application) as port:
        connection = _connected(port)
        headers = {"content-type": "application/json", "accept-encoding": "gzip"}
        connection.request("POST", PATH, json.dumps({"stream": stream}), headers)
        answer = connection.getresponse()
        assert answer.getheader("x-stamped") == "yes", answer.getheaders()
        body = answer.read()
        connection.close()
    if answer.getheader("content-encoding") == "gzip":
        body = gzip.decompress(body)
    if not stream:
        return str(json.loads(body)["said"])
    events = [line[6:] for line in body.decode().splitlines() if line.startswith("data: {")]
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events]
    return "".join(delta.get("content") or "" for delta in deltas)


# --- gRPC ---------------------------------------------------------------------------------------

_SERVICE: Final = "llm.Chat"


def _grpc(_root: str) -> None:
    from opentelemetry.instrumentation.grpc import GrpcInstrumentorClient

    _with_provider()
    GrpcInstrumentorClient().instrument()


def _served(request: bytes, _context: Any) -> Iterator[bytes]:
    for word in json.loads(request)["words"]:
        spend(0.01)
        yield word.encode()


def _call(_state: None, stream: bool) -> str:
    import grpc

    server = grpc.server(futures.ThreadPoolExecutor(1))
    ways = {
        "Stream": grpc.unary_stream_rpc_method_handler(_served),
        "Ask": grpc.unary_unary_rpc_method_handler(
            lambda request, context: b"".join(_served(request, context))
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, ways),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    request = json.dumps({"words": [f"word{number} " for number in range(5)]}).encode()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as plain:
        channel = grpc.intercept_channel(plain, *client_interceptors(model="tiny"))
        if stream:
            said = b"".join(channel.unary_stream(f"/{_SERVICE}/Stream")(request))
        else:
            said = channel.unary_unary(f"/{_SERVICE}/Ask")(request)
    server.stop(0).wait()
    return said.decode()


_GRPC: Final = dict.fromkeys(
    ("prompt_tokens", "output_tokens", "http_status", "queue_s", "prefill_s", "finish_reason",
     "response_id")
)  # fmt: skip
_IMPORTS: Final = ("openai", "fastapi", "uvicorn")

SUBJECTS: Final[Mapping[str, Subject]] = {
    "fastapi-uvicorn": Subject(_application, partial(_ask, _uvicorn), _IMPORTS),
    "fastapi-hypercorn": Subject(
        _application, partial(_ask, _hypercorn), ("openai", "fastapi", "hypercorn.asyncio")
    ),
    "otel-asgi": Subject(_with_asgi, partial(_ask, _uvicorn), (*_IMPORTS, f"{_OTEL}.asgi")),
    "otel-fastapi": Subject(
        _with_fastapi, partial(_ask, _uvicorn), (*_IMPORTS, f"{_OTEL}.fastapi")
    ),
    "otel-grpc": Subject(
        _grpc, _call, (f"{_OTEL}.grpc",),
        expects={**_GRPC, "provider": None, "client": "grpc"},
    ),
}  # fmt: skip
