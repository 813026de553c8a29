"""What does a server send in the benchmarks, and how does a client get it without a network?

Needs the OpenAI SDK and its HTTP library alone: it also runs beside SDKs that are not llmtrace.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2

MESSAGES: Any = [{"role": "user", "content": "Hello"}]


def _data(choices: list[Any], **more: Any) -> bytes:
    chunk = {
        "id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": choices, **more,
    }  # fmt: skip
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def events(tokens: int, queue_ms: float = 1.5, prefill_ms: float = 20.25) -> list[bytes]:
    """Make the events of an answer of so many chunks, as vLLM sends them.

    Args:
        tokens: one a chunk.
        queue_ms: what the engine says of its queue.
        prefill_ms: and of its prefill.
    """

    def choice(delta: dict[str, str], finish: str | None = None) -> list[Any]:
        return [{"index": 0, "delta": delta, "finish_reason": finish}]

    usage = {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens}
    metrics = {
        "queue_time_ms": queue_ms,
        "time_to_first_token_ms": prefill_ms,
        "generation_time_ms": 99.0,
    }
    return [
        _data(choice({"role": "assistant", "content": ""})),
        *[_data(choice({"content": "word "}))] * tokens,
        _data(choice({}, "stop")),
        _data([], usage=usage, metrics=metrics),
        b"data: [DONE]\n\n",
    ]


class Replay(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """Hands out an answer's events from memory: what is left is the client's own work."""

    def __init__(self, parts: list[bytes]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[bytes]:
        yield from self._parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part


def replaying(tokens: int) -> httpx2.MockTransport:
    """Make a transport that answers every request with so many chunks, from memory."""
    parts = events(tokens)
    headers = {"content-type": "text/event-stream"}
    return httpx2.MockTransport(
        lambda _request: httpx2.Response(200, headers=headers, stream=Replay(parts))
    )
