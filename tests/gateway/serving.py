"""Gateways over real HTTP on loopback, and what their applications do."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import openai
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.support.taking_time import aspend
from tests.support.waiting import until

START_S = 20.0
SSE = "text/event-stream"
Handler = Callable[[Request], Awaitable[Response]]


@contextmanager
def serving(app: Any, ws: Any = "none") -> Iterator[str]:
    """Serve an application in a thread of its own, WebSocket too if set; yield its address."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    # uvloop's timers are whole milliseconds and may end early; tests compare with the time slept.
    server = uvicorn.Server(
        uvicorn.Config(app, loop="asyncio", log_config=None, ws=ws, timeout_graceful_shutdown=5)
    )
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    until(lambda: server.started or not thread.is_alive(), "the server did not start", START_S)
    assert server.started
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def app(handler: Handler, **settings: Any) -> Starlette:
    """Make an application with one endpoint."""
    return Starlette(routes=[Route("/v1/chat/completions", handler, methods=["POST"])], **settings)


def relay(
    base_url: str,
    guard_s: float = 0.0,
    release_s: float = 0.0,
    guarded: list[int] | None = None,
) -> Handler:
    """Make the endpoint of a gateway that calls an upstream by the SDK and writes events anew.

    Args:
        base_url: of the upstream.
        guard_s: how long it thinks before it asks.
        release_s: how long it holds the first chunk.
        guarded: gets the nanoseconds that each guard took in truth.
    """

    async def handle(request: Request) -> Response:
        body = await request.json()
        body.pop("stream_options", None)  # so that no figures go through in the body
        begun = time.perf_counter_ns()
        await aspend(guard_s)
        if guarded is not None:
            guarded.append(time.perf_counter_ns() - begun)
        if not body.get("stream"):
            async with upstream_client(base_url) as client:
                answer = await client.chat.completions.create(**body)
            # As gateways do that make responses of their own.
            content = answer.model_dump(exclude={"metrics"}, exclude_none=True)
            return JSONResponse(content)
        return StreamingResponse(events(base_url, body, release_s), media_type=SSE)

    return handle


def upstream_client(base_url: str) -> openai.AsyncOpenAI:
    """Make a client that reads no certificates: that takes longer than all the rest."""
    http = openai.DefaultAsyncHttpxClient(verify=False)
    return openai.AsyncOpenAI(base_url=base_url, api_key="none", http_client=http)


async def events(base_url: str, body: dict[str, Any], release_s: float) -> AsyncIterator[str]:
    """Stream from an upstream; the first content is delayed for a while."""
    released = False
    async with upstream_client(base_url) as client:
        async for chunk in await client.chat.completions.create(**body):
            if not released and chunk.choices and chunk.choices[0].delta.content:
                await aspend(release_s)
                released = True
            yield f"data: {chunk.model_dump_json(exclude_none=True)}\n\n"
    yield "data: [DONE]\n\n"
