"""Requests over one WebSocket, to a Starlette endpoint that calls an engine: each is a row."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import openai
from engine import endpoint, serving
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect

import llmtrace
from llmtrace import gateway, websocket
from llmtrace.propagate import trace_headers
from llmtrace.testing import capture

KEY = os.environ.get("OPENAI_API_KEY", "none")

# --- the server ----------------------------------------------------------------------------------


def application(engine_url: str, model: str) -> Starlette:
    """Make a chat server that calls an engine."""

    async def chat(ws: WebSocket) -> None:
        await ws.accept()
        async with openai.AsyncOpenAI(base_url=engine_url, api_key=KEY) as engine:
            async for question in ws.iter_json():
                # The question brings its trace context along: a handshake serves many.
                with gateway.serving(ws, question, name="chat-server") as timing:
                    await asyncio.sleep(0.05)  # a guardrail
                    stream = await engine.chat.completions.create(
                        model=model,
                        messages=[{"role": "user", "content": question["text"]}],
                        max_tokens=20,
                        stream=True,
                    )
                    async for chunk in stream:
                        if chunk.choices and chunk.choices[0].delta.content:
                            await ws.send_json({"text": chunk.choices[0].delta.content})
                    await ws.send_json({"end": "stop", "server_timing": timing()})

    return Starlette(routes=[WebSocketRoute("/chat", chat)])


# --- the client ----------------------------------------------------------------------------------


def classify(message: str) -> Any:
    """Say what a message of this server's carries; the one with a finish reason is the last."""
    event = json.loads(message)
    if "end" in event:
        return {"finish_reason": event["end"], "server_timing": event["server_timing"]}
    return "text"


@llmtrace.trace(route="chat")
async def ask(ws: Any, text: str) -> None:
    await ws.send(json.dumps({"text": text, **trace_headers()}))
    async for message in ws:
        event = json.loads(message)
        if "end" in event:
            break
        print(event["text"], end="", flush=True)
    print()


async def main(url: str) -> None:
    async with websocket.wrap(connect(url), classify=classify) as ws:
        for question in ("What is a token?", "And what is a stage?"):
            await ask(ws, question)


# Client, server and engine are one process here; in truth each calls `init` for itself.
with (
    endpoint() as (engine_url, model),
    capture(service="websocket-chat") as rows,
    serving(application(engine_url, model)) as address,
):
    asyncio.run(main(f"ws://{address}/chat"))

for row in rows:
    if row.client == "websockets":
        stages = ", ".join(f"{s} {ns / 1e6:.0f}" for s, ns in row.stages if ns)
        print(f"{row.outcome} {row.e2e_s * 1000:.0f} ms = {stages}; {row.chunks} messages")
        behind = [one.trace_id for one in rows if one.client == "openai"]
        assert row.trace_id in behind  # the engine's request is in the same trace

assert llmtrace.internal_errors() == {}
