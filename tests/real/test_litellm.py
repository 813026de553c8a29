"""Behind a real LiteLLM, before a real vLLM: is its overhead `gateway`, and what survives?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest

import llmtrace
from llmtrace.core.row import Row, with_figures
from llmtrace.core.stages import Reported
from llmtrace.engines.spans import read_engine_span
from llmtrace.testing import capture

from . import proxies
from .conftest import do_without

MS = 1_000_000
ASKED: Any = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Say something about time."}],
    "max_tokens": 16,
    "extra_body": {"ignore_eos": True},
}


@pytest.fixture(scope="module")
def litellm(vllm: Any) -> Iterator[str]:
    """Run the proxy for the tests of this module; yield its URL."""
    if proxies.litellm_program() is None:
        do_without("LiteLLM is not installed: run `make litellm`")
    with proxies.litellm(vllm.url) as url:
        # The first request loads half of the proxy.
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=60) as client:
            client.chat.completions.create(**ASKED)
        yield url


def ask(url: str, *, stream: bool) -> None:
    """Ask by the sync client."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(**ASKED, stream=stream)
        if stream:
            for _ in answer:
                pass


def ask_async(url: str, *, stream: bool) -> None:
    """Ask by the async client."""

    async def run() -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0
        ) as client:
            answer = await client.chat.completions.create(**ASKED, stream=stream)
            if stream:
                async for _ in answer:
                    pass

    asyncio.run(run())


def recorded(url: str, way: Any, *, stream: bool) -> Row:
    """Return the row of one request, whose stages add up."""
    with capture() as rows:
        way(url, stream=stream)
    assert llmtrace.internal_errors() == {}
    [row] = rows
    assert row.stages.total == row.e2e_ns
    assert (row.outcome, row.http_status) == ("success", 200)
    return row


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("way", [ask, ask_async], ids=["sync", "async"])
def test_its_overhead_is_gateway(litellm: str, way: Any, stream: bool) -> None:
    """Its header is `gateway`, as it is; what else it tells of times is kept beside it."""
    row = recorded(litellm, way, stream=stream)

    overhead_ms = float(row.response_headers["x-litellm-overhead-duration-ms"])
    assert overhead_ms > 0
    assert row.gateway == "litellm"
    assert row.timeline.gateway == Reported(round(overhead_ms * MS), "server_timing")
    assert row.stages.sources["gateway"] == "server_timing"
    assert {"x-litellm-response-duration-ms", "x-litellm-attempted-retries"} <= set(
        row.response_headers
    )
    assert "x-litellm-key-spend" not in row.response_headers


@pytest.mark.parametrize("way", [ask, ask_async], ids=["sync", "async"])
def test_a_streams_figures_are_joined_by_the_answers_id(
    litellm: str, engine_spans: Any, way: Any
) -> None:
    """A stream loses the figures and the trace; the id in the answer leads to the span."""
    row = recorded(litellm, way, stream=True)

    assert (row.stages.queue, row.stages.prefill, row.stages.first_chunk) == (None, None, None)
    span = engine_spans[0].answering(row.response_id)
    assert row.response_id == f"chatcmpl-{row.request_id}"  # it forwards the id it was sent
    joined = with_figures(row, read_engine_span(span))
    assert joined.stages.total == joined.e2e_ns
    assert joined.stages.sources["queue"] == joined.stages.sources["prefill"] == "engine_span"
    assert joined.stages.first_chunk is not None
    assert joined.stages.gateway == row.stages.gateway
    assert joined.stages.inconsistent == ()
    with pytest.raises(AssertionError, match="no engine span"):
        engine_spans[0].of(row.trace_id, timeout_s=0.1)


def test_a_whole_answer_keeps_the_engines_figures(litellm: str) -> None:
    """An answer in one piece passes vLLM's figures on."""
    row = recorded(litellm, ask, stream=False)

    for stage in ("queue", "prefill", "decode"):
        assert row.stages.sources[stage] == "engine_inband"
    assert row.stages.first_chunk is not None


def test_headers_it_holds_back_bound_nothing(litellm: str) -> None:
    """Its headers come with the first chunk: they say nothing of the engine's wait."""
    with capture(ask_usage=False) as rows:
        ask(litellm, stream=True)

    [row] = rows
    assert row.stages.prefill is None
    assert row.stages.unattributed > 0
