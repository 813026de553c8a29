"""An application with a chat page, whose answers come from a simulated engine by the OpenAI SDK.

The page (`chat.html`) renders markdown. How it does that, and how it reads the stream, its address
says.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from llmtrace.browser import Middleware
from llmtrace.simulator.server import serve as serve_engine

PAGE = (Path(__file__).parent / "chat.html").read_text(encoding="utf-8")


@dataclass
class Served:
    """Where the application is, and what reached it.

    Attributes:
        url: of its page.
        headers: of each request for an answer, lower-case names.
        middleware: around it.
    """

    url: str = ""
    headers: list[dict[str, str]] = field(default_factory=list)
    middleware: Any = None


def make_app(engine_url: str, served: Served, tokens: int) -> Starlette:
    """Make the application: the page, and answers for it."""
    client = openai.AsyncOpenAI(base_url=engine_url, api_key="none", max_retries=0)

    async def page(_: Request) -> Response:
        return HTMLResponse(PAGE)

    async def chat(request: Request) -> Response:
        served.headers.append(dict(request.headers))
        stream = await client.chat.completions.create(
            model="llmtrace-sim",
            messages=[{"role": "user", "content": "Tell me a story."}],
            max_tokens=int(request.query_params.get("tokens", tokens)),
            stream=True,
            extra_body={"ignore_eos": True},
        )

        async def events() -> AsyncIterator[str]:
            async with stream:
                async for chunk in stream:
                    if chunk.choices and chunk.choices[0].delta.content:
                        yield f"data: {json.dumps(chunk.choices[0].delta.content)}\n\n"
            yield "data: [DONE]\n\n"

        anybody = {"access-control-allow-origin": "*"}
        return StreamingResponse(events(), media_type="text/event-stream", headers=anybody)

    async def refused(_: Request) -> Response:
        return Response("busy", 503)

    async def cached(_: Request) -> Response:
        return Response('data: "from a cache"\n\ndata: [DONE]\n\n', media_type="text/event-stream")

    async def moved(request: Request) -> Response:
        return RedirectResponse(request.query_params["to"], 307)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await client.close()

    routes = [
        Route("/", page),
        Route("/chat", chat, methods=["GET", "POST"]),
        Route("/refused", refused, methods=["POST"]),
        Route("/cached", cached, methods=["POST"]),
        Route("/moved", moved, methods=["GET", "POST"]),
    ]
    return Starlette(routes=routes, lifespan=lifespan)


@contextmanager
def serving(tokens: int = 120, **settings: Any) -> Iterator[Served]:
    """Serve the application on loopback, with the engine behind it."""
    served = Served()
    with serve_engine() as engine, socket.create_server(("127.0.0.1", 0)) as listener:
        served.middleware = Middleware(make_app(engine.url, served, tokens), **settings)
        server = uvicorn.Server(
            uvicorn.Config(served.middleware, log_config=None, timeout_graceful_shutdown=2)
        )
        thread = threading.Thread(
            target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True
        )
        thread.start()
        served.url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        try:
            yield served
        finally:
            server.should_exit = True
            thread.join()
