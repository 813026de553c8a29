"""The same responses over SSE, a WebSocket and gRPC: three servers before one engine."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

import grpc
import openai
from recipe import Engine, capture, engine, report, run
from servers import before, pass_on
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect

import llmtrace
from llmtrace import gateway, websocket
from llmtrace.grpc import aio_client_interceptors, aio_server_interceptor
from llmtrace.propagate import trace_headers

QUOTED = "SSE, WebSocket, gRPC server streaming: all three are used, none is quoted as faster"
METHOD = "/recipe.Chat/Answer"
QUESTION: Any = [{"role": "user", "content": "What is a token?"}]


# --- the servers ---------------------------------------------------------------------------------


def client(to: Engine) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{to.root}/v1", api_key="none", max_retries=0)


async def ask(client: openai.AsyncOpenAI, to: Engine) -> AsyncIterator[Any]:
    stream = await client.chat.completions.create(
        model=to.model, messages=QUESTION, max_tokens=20, stream=True, extra_body=to.options
    )
    async for chunk in stream:
        yield chunk


async def words(upstream: openai.AsyncOpenAI, to: Engine) -> AsyncIterator[dict[str, Any]]:
    """Yield the messages of one response, as a WebSocket and gRPC carry them."""
    async for chunk in ask(upstream, to):
        if chunk.choices and chunk.choices[0].delta.content:
            yield {"text": chunk.choices[0].delta.content}
    yield {"end": "length"}


def web(behind: Engine) -> AbstractContextManager[Engine]:
    """Serve SSE, as OpenAI's API, and a WebSocket."""

    async def sse(request: Request) -> Response:
        return await pass_on(request, behind.root)

    async def chat(ws: WebSocket) -> None:
        await ws.accept()
        async with client(behind) as upstream:
            async for question in ws.iter_json():
                with gateway.serving(ws, question, name="websocket") as timing:
                    async for message in words(upstream, behind):
                        last = {"server_timing": timing()} if "end" in message else {}
                        await ws.send_json(message | last)

    routes = [WebSocketRoute("/chat", chat)]
    return before(behind.model, sse, "sse", routes, behind.options)


@asynccontextmanager
async def grpc_server(behind: Engine) -> AsyncIterator[str]:
    """Serve gRPC; messages are JSON, which needs no compiler."""
    upstream = client(behind)

    async def answer(_question: Any, _context: Any) -> AsyncIterator[dict[str, Any]]:
        async for message in words(upstream, behind):
            yield message

    server = grpc.aio.server(interceptors=[aio_server_interceptor(name="grpc")])
    handler = grpc.unary_stream_rpc_method_handler(answer, json.loads, encode)
    own = grpc.method_handlers_generic_handler("recipe.Chat", {"Answer": handler})
    server.add_generic_rpc_handlers((own,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(5)
        await upstream.close()


# --- the clients ---------------------------------------------------------------------------------


def encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode()


def classify(message: Any) -> Any:
    """Say what a message carries; the one with a finish reason is the last."""
    event = json.loads(message) if isinstance(message, str) else message
    if "end" not in event:
        return "text"
    return {"finish_reason": event["end"], "server_timing": event.get("server_timing")}


@llmtrace.trace
async def over_websocket(ws: Any) -> None:
    await ws.send(json.dumps(trace_headers()))
    async for message in ws:
        if "end" in json.loads(message):
            break


async def in_turn(behind: Engine, to: Engine, count: int) -> None:
    """Ask over each, again and again, so that what drifts drifts for all."""
    address = to.root.replace("http:", "ws:") + "/chat"
    interceptors = aio_client_interceptors(classify=classify)
    async with (
        grpc_server(behind) as target,
        grpc.aio.insecure_channel(target, interceptors=interceptors) as channel,
        websocket.wrap(connect(address), classify=classify) as ws,
        client(to) as sse,
    ):
        over_grpc = channel.unary_stream(METHOD, encode, json.loads)
        for _ in range(count + 1):
            async for _chunk in ask(sse, to):
                pass
            await over_websocket(ws)
            async for _message in over_grpc({}):
                pass


def main(count: int) -> bool:
    with engine() as behind, capture() as seen, web(behind) as to:
        asyncio.run(in_turn(behind, to, max(4, count // 2)))
    sse, ws, rpc = (
        [row for row in seen if row.gateway == name] for name in ("sse", "websocket", "grpc")
    )
    first = ", ".join(f"{1e3 * rows[0].ttft_s:.0f} ms" for rows in (sse, ws, rpc))
    print(f"TTFT of the first request of each, which connects (SSE, WebSocket, gRPC): {first}")
    right = True
    for name, rows in (("a WebSocket", ws), ("gRPC", rpc)):
        right &= report(
            f"SSE, and {name}", QUOTED, sse[1:], rows[1:], moved=None, still="e2e", shown="ttft"
        )
    return right


if __name__ == "__main__":
    run(main)
