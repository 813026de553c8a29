"""Servers of one's own that stand before an engine, for the recipes that need one."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import openai
from recipe import LENGTH, Engine
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from llmtrace import gateway

sys.path.append(str(Path(__file__).parents[1]))  # what all examples share
from engine import serving

Chat = Callable[[Request], Awaitable[Response]]


async def pass_on(
    request: Request, root: str, keep: Callable[[bytes], None] | None = None
) -> StreamingResponse:
    """Send a request on to an engine, and its response back; `keep` takes one that is whole."""
    asked = request.app.state.http.build_request(
        "POST",
        f"{root}/v1/chat/completions",
        content=await request.body(),
        headers={"content-type": "application/json"},
    )
    response = await request.app.state.http.send(asked, stream=True)

    async def parts() -> AsyncIterator[bytes]:
        seen = []
        try:
            async for part in response.aiter_bytes():
                seen.append(part)
                yield part
        finally:
            # Who has read [DONE] may leave before the last part is known to have gone out.
            whole = b"".join(seen)
            if keep is not None and response.is_success and whole.rstrip().endswith(b"[DONE]"):
                keep(whole)
            await response.aclose()

    kind = response.headers.get("content-type")  # an error may come without one
    return StreamingResponse(parts(), response.status_code, media_type=kind)


@contextmanager
def before(
    model: str,
    chat: Chat,
    name: str,
    routes: Sequence[BaseRoute] = (),
    options: Mapping[str, object] = LENGTH,
) -> Iterator[Engine]:
    """Serve a gateway whose chat requests `chat` handles; yield it as the engine it stands for."""

    @asynccontextmanager
    async def connected(app: Starlette) -> AsyncIterator[None]:
        async with httpx.AsyncClient(timeout=600) as app.state.http:
            yield

    own = Route("/v1/chat/completions", chat, methods=["POST"])
    app = Starlette(routes=[own, *routes], lifespan=connected)
    app.add_middleware(gateway.Middleware, name=name)
    with serving(app) as address:
        root = f"http://{address}"
        client = openai.OpenAI(base_url=f"{root}/v1", api_key="none", max_retries=0, timeout=600)
        yield Engine(client, model, root, options)
