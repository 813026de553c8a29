"""Does a real vLLM's answer tell the same without an SDK as with one, and what it refuses?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import httpx
import openai
import pytest

from llmtrace.core.row import Row
from llmtrace.engines import local_vllm
from llmtrace.testing import capture

LIBRARIES = ("httpx", "aiohttp")
Ask = Callable[[local_vllm.Server, dict[str, Any]], list[bytes]]


def over_httpx(server: local_vllm.Server, body: dict[str, Any]) -> list[bytes]:
    """Stream a chat completion by line, over httpx."""
    address = f"{server.url}/v1/chat/completions"
    with (
        httpx.Client(timeout=60) as client,
        client.stream("POST", address, json=body) as response,
    ):
        if response.is_error:
            response.read()
            return []
        return [line.encode() for line in response.iter_lines()]


def over_aiohttp(server: local_vllm.Server, body: dict[str, Any]) -> list[bytes]:
    """Do the same over aiohttp."""

    async def main() -> list[bytes]:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{server.url}/v1/chat/completions", json=body) as response,
        ):
            if not response.ok:
                await response.read()
                return []
            return [line async for line in response.content]

    return asyncio.run(main())


def body(server: local_vllm.Server, text: str, tokens: int) -> dict[str, Any]:
    """Return what to ask."""
    return {
        "model": server.model, "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip


def recorded(act: Callable[[], object]) -> Row:
    """Return the row of what is done."""
    with capture(instrument=(*LIBRARIES, "openai")) as rows:
        act()
    [row] = rows
    assert row.stages.total == row.e2e_ns
    return row


@pytest.mark.parametrize("ask", [over_httpx, over_aiohttp])
def test_the_engines_own_figures(vllm: local_vllm.Server, ask: Ask) -> None:
    """Queue and prefill are what the engine says, in the very answer that was read."""
    read: list[bytes] = []
    row = recorded(lambda: read.extend(ask(vllm, body(vllm, "Hello", 20))))
    datas = [line.removeprefix(b"data: ") for line in read if line.startswith(b"data: {")]
    last = json.loads(datas[-1])
    assert (row.outcome, row.finish_reason, row.output_tokens) == ("success", "length", 20)
    assert (row.provider, row.response_id) == ("vllm", last["id"])
    assert row.stages.queue == round(last["metrics"]["queue_time_ms"] * 1e6)
    assert row.stages.prefill == round(last["metrics"]["time_to_first_token_ms"] * 1e6)
    assert row.request_id in str(row.response_id)
    # What the function did before it handed the request over is its own time, and known.
    assert (row.stages.unattributed, row.stages.inconsistent) == (row.stages.client or 0, ())
    # A chunk is not a token, and the first one has a role and no content.
    contents = [json.loads(data)["choices"] for data in datas]
    assert row.chunks == sum(bool(c and c[0]["delta"].get("content")) for c in contents)


@pytest.mark.parametrize("ask", [over_httpx, over_aiohttp])
def test_a_prompt_that_does_not_fit(vllm: local_vllm.Server, ask: Ask) -> None:
    """A server that has no code for it is understood all the same."""
    row = recorded(lambda: ask(vllm, body(vllm, "Hello " * 10_000, 1)))
    assert (row.outcome, row.http_status) == ("error", 400)
    assert row.error_type == "context_length_exceeded"
    assert [one.status for one in row.attempt_log] == [400]


def test_a_prompt_that_does_not_fit_by_the_sdk(vllm: local_vllm.Server) -> None:
    """So it is through the SDK."""
    asked = body(vllm, "Hello " * 10_000, 1)
    del asked["ignore_eos"]

    def act() -> None:
        with (
            openai.OpenAI(base_url=f"{vllm.url}/v1", api_key="none") as client,
            pytest.raises(openai.BadRequestError),
        ):
            client.chat.completions.create(**asked)

    row = recorded(act)
    assert (row.outcome, row.error_type) == ("error", "context_length_exceeded")
