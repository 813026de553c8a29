"""A response streamed over gRPC, sync and under asyncio, and cut short by a deadline."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import openai
from engine import endpoint

import llmtrace
from llmtrace.grpc import aio_client_interceptors, client_interceptors, server_interceptor
from llmtrace.testing import capture

METHOD = "/example.Chat/Answer"
KEY = os.environ.get("OPENAI_API_KEY", "none")


def encode(message: dict[str, Any]) -> bytes:
    """Write a message. Yours are protobuf's, and generated: these need no compiler."""
    return json.dumps(message).encode()


# --- the server ----------------------------------------------------------------------------------


@contextmanager
def serving(engine_url: str, model: str) -> Iterator[str]:
    """Serve responses of an engine over gRPC, on loopback."""

    def answer(question: dict[str, Any], _context: Any) -> Iterator[dict[str, Any]]:
        time.sleep(0.05)  # a guardrail: the interceptor reports it to the client
        with openai.OpenAI(base_url=engine_url, api_key=KEY) as engine:
            for chunk in engine.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": question["text"]}],
                max_tokens=question["max_tokens"],
                stream=True,
            ):
                if chunk.choices and chunk.choices[0].delta.content:
                    yield {"text": chunk.choices[0].delta.content}
        yield {"end": "stop"}

    server = grpc.server(
        ThreadPoolExecutor(4), interceptors=[server_interceptor(name="chat-server")]
    )
    handler = grpc.unary_stream_rpc_method_handler(answer, json.loads, encode)
    methods = grpc.method_handlers_generic_handler("example.Chat", {"Answer": handler})
    server.add_generic_rpc_handlers((methods,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(5).wait()


# --- the clients ---------------------------------------------------------------------------------


def classify(message: dict[str, Any]) -> Any:
    """Say what a message carries."""
    return {"finish_reason": message["end"]} if "end" in message else "text"


def sync(target: str) -> None:
    with grpc.insecure_channel(target) as plain:
        channel = grpc.intercept_channel(plain, *client_interceptors(classify=classify))
        ask = channel.unary_stream(METHOD, encode, json.loads)
        for message in ask({"text": "What is a token?", "max_tokens": 20}):
            print(message.get("text", "\n"), end="", flush=True)
        try:
            for _ in ask({"text": "Tell me everything.", "max_tokens": 500}, timeout=0.3):
                pass
        except grpc.RpcError as error:
            print("gave up:", error.code().name)


async def under_asyncio(target: str) -> None:
    interceptors = aio_client_interceptors(classify=classify, route="async")
    async with grpc.aio.insecure_channel(target, interceptors=interceptors) as channel:
        ask = channel.unary_stream(METHOD, encode, json.loads)
        async for message in ask({"text": "And what is a stage?", "max_tokens": 20}):
            print(message.get("text", "\n"), end="", flush=True)


# Client, server and engine are one process here; in truth each calls `init` for itself.
with (
    endpoint() as (engine_url, model),
    capture(service="grpc-stream") as rows,
    serving(engine_url, model) as target,
):
    sync(target)
    asyncio.run(under_asyncio(target))

for row in rows:
    if row.client == "grpc":
        stages = ", ".join(f"{s} {ns / 1e6:.0f}" for s, ns in row.stages if ns)
        rest = f", unattributed {row.stages.unattributed / 1e6:.0f}"
        rest = rest if row.stages.unattributed else ""
        print(f"{row.outcome} {row.e2e_s * 1000:.0f} ms = {stages}{rest}")

assert all(row.stages.total == row.e2e_ns for row in rows)
assert llmtrace.internal_errors() == {}
