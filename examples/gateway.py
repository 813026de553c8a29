"""A gateway of one's own: its guard shows in its clients' rows, and the engine behind it, too."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import openai
import uvicorn
from engine import endpoint
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

import llmtrace
from llmtrace import gateway

# Client and gateway are one process here; in truth each calls `init` for itself.
llmtrace.init("gateway-example", exporters=["console"], own_hosts=["127.0.0.1"])

kept: dict[str, list[str]] = {}  # a cache of whole responses


def application(engine_url: str) -> Starlette:
    """Make a gateway that guards, caches and calls an engine."""

    async def chat(request: Request) -> Response:
        body: dict[str, Any] = await request.json()
        question = body["messages"][-1]["content"]
        await asyncio.sleep(0.05)  # a guardrail
        if question in kept:
            gateway.cache_hit("exact")
            return StreamingResponse(iter(kept[question]), media_type="text/event-stream")
        return StreamingResponse(answer(body, question), media_type="text/event-stream")

    async def answer(body: dict[str, Any], question: str) -> AsyncIterator[str]:
        events = []
        async with openai.AsyncOpenAI(base_url=engine_url, api_key="none") as upstream:
            async for chunk in await upstream.chat.completions.create(**body):
                events.append(f"data: {chunk.model_dump_json(exclude_none=True)}\n\n")
                yield events[-1]
        events.append("data: [DONE]\n\n")
        yield events[-1]
        kept[question] = events

    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    app.add_middleware(gateway.Middleware, name="my-gateway")  # this is all there is to it
    return app


@contextmanager
def serving(app: Starlette) -> Iterator[str]:
    """Serve an application on loopback, in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


with endpoint() as (engine_url, model), serving(application(engine_url)) as url:
    client = openai.OpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    # Two rows: the gateway's own request, and the client's, with `gateway` in it. Then one: the
    # cache answers, and there is no engine to report.
    for _ in range(2):
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "What is a gateway?"}],
            max_tokens=20,
            stream=True,
        )
        print("".join(c.choices[0].delta.content or "" for c in stream if c.choices))

llmtrace.shutdown()
