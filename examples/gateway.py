"""A gateway of one's own: its guard shows in its clients' rows, and the engine behind it, too."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import openai
from engine import endpoint, serving
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

import llmtrace
from llmtrace import gateway

# Client and gateway are one process here; in truth each calls `init` for itself.
llmtrace.init("gateway-example", exporters=["console"], own_hosts=["127.0.0.1"])

EVENTS = "text/event-stream"
kept: dict[tuple[str, bytes], bytes] = {}  # whole responses; a real cache has bounds


def application(engine_url: str) -> Starlette:
    """Make a gateway that guards, caches and calls an engine."""

    async def chat(request: Request) -> Response:
        body, user = await request.body(), request.headers.get("authorization", "")
        await asyncio.sleep(0.05)  # a guardrail
        if (user, body) in kept:  # all of the request, and whose: no other's response is his
            gateway.cache_hit("exact")
            return Response(kept[user, body], media_type=EVENTS)
        upstream: httpx.AsyncClient = request.app.state.upstream
        headers = {"content-type": "application/json", "authorization": user}
        url = f"{engine_url}/chat/completions"
        asked = upstream.build_request("POST", url, content=body, headers=headers)
        response = await upstream.send(asked, stream=True)
        kind = response.headers.get("content-type", "")  # an error may come without one

        async def parts() -> AsyncIterator[bytes]:
            seen = []
            try:
                async for part in response.aiter_bytes():
                    seen.append(part)
                    yield part
            finally:
                await response.aclose()
            if response.is_success and kind.startswith(EVENTS):
                kept[user, body] = b"".join(seen)

        return StreamingResponse(parts(), response.status_code, media_type=kind or None)

    @asynccontextmanager
    async def connected(app: Starlette) -> AsyncIterator[None]:
        async with httpx.AsyncClient(timeout=600) as app.state.upstream:
            yield

    route = Route("/v1/chat/completions", chat, methods=["POST"])
    app = Starlette(routes=[route], lifespan=connected)
    app.add_middleware(gateway.Middleware, name="my-gateway")  # this is all there is to it
    return app


with endpoint() as (engine_url, model), serving(application(engine_url)) as address:
    client = openai.OpenAI(
        base_url=f"http://{address}/v1", api_key=os.environ.get("OPENAI_API_KEY", "none")
    )
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
