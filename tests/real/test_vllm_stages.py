"""On a real vLLM, through the real SDKs: do the stages add up and agree with the engine?"""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import openai
import pytest

import llmtrace
from llmtrace.core.row import Row, with_figures
from llmtrace.core.stages import Reported
from llmtrace.engines.spans import read_engine_span
from llmtrace.testing import capture
from tests.real.best_of import settles
from tests.support.machine_noise import allowed_s

MODEL = "tiny"
_US = 1_000
_MS = 1_000_000
MESSAGES: Any = [{"role": "user", "content": "Say something about time. " * 8}]


@pytest.fixture(scope="module")
def openai_client(vllm: Any) -> Iterator[openai.OpenAI]:
    """Ask the shared vLLM by OpenAI's SDK."""
    with openai.OpenAI(base_url=f"{vllm.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def anthropic_client(vllm: Any) -> Iterator[anthropic.Anthropic]:
    """Ask the shared vLLM by Anthropic's SDK."""
    with anthropic.Anthropic(base_url=vllm.url, api_key="none", max_retries=0) as client:
        yield client


def ask_openai(client: openai.OpenAI, n: int = 16, **more: Any) -> Any:
    """Stream a chat of exactly so many tokens."""
    return client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=n, stream=True,
        extra_body={"ignore_eos": True}, **more,
    )  # fmt: skip


def exactly(row: Row) -> Row:
    """Check that a row's stages add up to its wait, and hand it on."""
    assert row.stages.total == row.e2e_ns
    return row


# Every way of calling: name, API, asks (given sync and async clients of both SDKs).
def openai_chat_stream(o: Any, _a: Any) -> None:
    """A decorated generator over a chat stream."""

    @llmtrace.trace(route="real")
    def answer() -> Iterator[str]:
        for chunk in ask_openai(o):
            if chunk.choices and chunk.choices[0].delta.content:
                yield chunk.choices[0].delta.content

    list(answer())


def openai_chat_whole(o: Any, _a: Any) -> None:
    """A chat in one piece."""
    o.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=16)


def openai_completions_stream(o: Any, _a: Any) -> None:
    """The older completions, streamed."""
    for _ in o.completions.create(model=MODEL, prompt="Hello", max_tokens=16, stream=True):
        pass


def openai_responses_stream(o: Any, _a: Any) -> None:
    """The Responses API, streamed."""
    for _ in o.responses.create(model=MODEL, input="Hello", max_output_tokens=16, stream=True):
        pass


def openai_responses_whole(o: Any, _a: Any) -> None:
    """The Responses API in one piece."""
    o.responses.create(model=MODEL, input="Hello", max_output_tokens=16)


def anthropic_messages_stream(_o: Any, a: Any) -> None:
    """A decorated function returning Anthropic's stream."""

    @llmtrace.trace(route="real")
    def answer() -> Any:
        return a.messages.create(model=MODEL, messages=MESSAGES, max_tokens=16, stream=True)

    for _ in answer():
        pass


def anthropic_messages_helper(_o: Any, a: Any) -> None:
    """Anthropic's stream helper."""
    with a.messages.stream(model=MODEL, messages=MESSAGES, max_tokens=16) as stream:
        stream.get_final_message()


def anthropic_messages_whole(_o: Any, a: Any) -> None:
    """Anthropic's messages in one piece."""
    a.messages.create(model=MODEL, messages=MESSAGES, max_tokens=16)


async def openai_chat_stream_async(o: Any, _a: Any) -> None:
    """A decorated async generator over a chat stream."""

    @llmtrace.trace(route="real")
    async def answer() -> Any:
        async for chunk in await ask_openai(o):
            yield chunk

    async for _ in answer():
        pass


async def openai_chat_whole_async(o: Any, _a: Any) -> None:
    """A chat in one piece, async."""
    await o.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=16)


async def openai_responses_stream_async(o: Any, _a: Any) -> None:
    """The Responses API, streamed, async."""
    stream = await o.responses.create(
        model=MODEL, input="Hello", max_output_tokens=16, stream=True
    )
    async for _ in stream:
        pass


async def anthropic_messages_stream_async(_o: Any, a: Any) -> None:
    """A decorated coroutine returning Anthropic's stream."""

    @llmtrace.trace(route="real")
    async def answer() -> Any:
        return await a.messages.create(model=MODEL, messages=MESSAGES, max_tokens=16, stream=True)

    async for _ in await answer():
        pass


async def anthropic_messages_whole_async(_o: Any, a: Any) -> None:
    """Anthropic's messages in one piece, async."""
    await a.messages.create(model=MODEL, messages=MESSAGES, max_tokens=16)


SYNC: list[Callable[[Any, Any], None]] = [
    openai_chat_stream, openai_chat_whole, openai_completions_stream, openai_responses_stream,
    openai_responses_whole, anthropic_messages_stream, anthropic_messages_helper,
    anthropic_messages_whole,
]  # fmt: skip
ASYNC: list[Callable[[Any, Any], Any]] = [
    openai_chat_stream_async, openai_chat_whole_async, openai_responses_stream_async,
    anthropic_messages_stream_async, anthropic_messages_whole_async,
]  # fmt: skip


def record(vllm: Any, ways: list[Callable[[Any, Any], Any]], times: int = 1) -> list[Row]:
    """Make each kind of call with real clients; return a row for each."""

    async def run_async(way: Callable[[Any, Any], Any]) -> None:
        async with (
            openai.AsyncOpenAI(base_url=f"{vllm.url}/v1", api_key="none") as o,
            anthropic.AsyncAnthropic(base_url=vllm.url, api_key="none") as a,
        ):
            for _ in range(times):
                await way(o, a)

    with capture() as rows:
        for way in ways:
            if asyncio.iscoroutinefunction(way):
                asyncio.run(run_async(way))
            else:
                with (
                    openai.OpenAI(base_url=f"{vllm.url}/v1", api_key="none") as o,
                    anthropic.Anthropic(base_url=vllm.url, api_key="none") as a,
                ):
                    for _ in range(times):
                        way(o, a)
    assert llmtrace.internal_errors() == {}
    return rows


@pytest.mark.parametrize("way", SYNC + ASYNC, ids=lambda way: way.__name__)
def test_every_way_of_calling_adds_up_and_agrees_with_the_engines_own_span(
    vllm: Any, engine_spans: Any, way: Callable[[Any, Any], Any]
) -> None:
    """Σ stages = e2e to the nanosecond; queue and prefill are the engine's, to the microsecond."""
    rows = record(vllm, [way], times=3)

    assert len(rows) == 3
    for row in rows:
        assert (row.outcome, row.http_status) == ("success", 200)
        exactly(row)
        span = engine_spans[0].of(row.trace_id)
        joined = exactly(with_figures(row, read_engine_span(span)))
        assert joined.stages.inconsistent == ()
        for stage, key in (("queue", "time_in_queue"), ("prefill", "time_in_model_prefill")):
            engine_ns = span[f"gen_ai.latency.{key}"] * 1e9
            assert abs(getattr(joined.stages, stage) - engine_ns) <= _US
            if row.client == "openai":  # vLLM tells in band everywhere but on /v1/messages
                assert row.stages.sources[stage] == "engine_inband"
                assert getattr(row.stages, stage) == getattr(joined.stages, stage)
            else:
                assert row.stages.queue is None
                assert joined.stages.sources[stage] == "engine_span"
        assert joined.stages.first_chunk is not None
        assert span["gen_ai.usage.prompt_tokens"] == row.prompt_tokens
        assert span["gen_ai.usage.completion_tokens"] == row.output_tokens


def test_inband_figures_are_read_as_the_server_sent_them(openai_client: openai.OpenAI) -> None:
    """What the caller sees in the usage chunk it asked for is what the row says."""
    with capture() as rows:
        *_, last = ask_openai(openai_client, stream_options={"include_usage": True})

    metrics = last.model_extra["metrics"]
    row = exactly(rows[0])
    assert row.timeline.queue == Reported(round(metrics["queue_time_ms"] * _MS), "engine_inband")
    assert row.timeline.prefill == Reported(
        round(metrics["time_to_first_token_ms"] * _MS), "engine_inband"
    )


def test_sums_over_rows_are_the_sums_of_the_engines_histograms(
    vllm: Any, openai_client: openai.OpenAI
) -> None:
    """VLLM's own counters, scraped before and after, agree with what the rows add up to."""

    def scraped(name: str) -> float:
        page = urllib.request.urlopen(f"{vllm.url}/metrics", timeout=10).read().decode()
        return sum(
            float(v) for v in re.findall(rf"^vllm:{name}\{{[^}}]*\}} (\S+)$", page, re.MULTILINE)
        )

    names = ("request_queue_time_seconds_sum", "request_prefill_time_seconds_sum")
    before = [scraped(name) for name in names]
    with capture() as rows:
        for _ in range(10):
            list(ask_openai(openai_client))
    queue, prefill = (scraped(name) - b for name, b in zip(names, before, strict=True))

    assert sum(row.stages.queue for row in rows) / 1e9 == pytest.approx(queue, abs=1e-6)
    assert sum(row.stages.prefill for row in rows) / 1e9 == pytest.approx(prefill, abs=1e-6)


def assert_not_moved(before: list[Row], after: list[Row]) -> None:
    """Check that the server's stages are no longer after than before.

    Best of several: on two shared cores, a client that is not scheduled waits longer for reasons
    of its own.
    """
    for stage in ("queue", "prefill", "first_chunk"):
        best_before = min(getattr(row.stages, stage) for row in before)
        best_after = min(getattr(row.stages, stage) for row in after)
        assert best_after <= best_before * 1.05 + 5 * _MS, stage


def test_a_slow_consumer_is_render_and_nothing_else(openai_client: openai.OpenAI) -> None:
    """30 ms a chunk raise render by that much and leave the engine's share alone."""
    tokens = 20
    eager: list[Row] = []
    slow: list[Row] = []
    slept: list[float] = []

    def more() -> None:
        with capture() as rows:
            for _ in range(7):
                list(ask_openai(openai_client, tokens))
        eager.extend(exactly(row) for row in rows)
        with capture() as rows:
            for _ in range(7):
                began = 0.0
                for _chunk in ask_openai(openai_client, tokens):
                    started = time.perf_counter()
                    time.sleep(0.030)
                    began += time.perf_counter() - started
                slept.append(began)
        slow.extend(exactly(row) for row in rows)

    def check() -> None:
        over = [row.stages.render / 1e9 / held for row, held in zip(slow, slept, strict=True)]
        assert 0.95 <= min(over) <= 1.05  # who is not scheduled between two chunks takes longer
        assert_not_moved(eager, slow)
        # What is left of decode is waiting, and no longer than the engine decoded.
        noise_ns = allowed_s() * 1e9
        for row in slow[-7:]:
            engine_ns = row.timeline.engine_decode.ns
            assert row.stages.decode <= engine_ns * 1.05 + 5 * _MS + noise_ns

    settles(more, check)


def test_a_late_reader_moves_only_render(openai_client: openai.OpenAI) -> None:
    """A reader that starts late, by far more than the first content takes, is no slow server."""

    def run(late_s: float) -> tuple[list[Row], list[float]]:
        slept: list[float] = []
        with capture() as rows:
            for _ in range(7):
                stream = ask_openai(openai_client)
                began = time.perf_counter()
                time.sleep(late_s)
                slept.append(time.perf_counter() - began)
                list(stream)
        return [exactly(row) for row in rows], slept

    eager: list[Row] = []
    late: list[Row] = []
    slept: list[float] = []

    def more() -> None:
        eager[:], _ = run(0.0)
        late[:], slept[:] = run(5 * max(row.ttft_s or 0.0 for row in eager) + 0.2)

    def check() -> None:
        for row, s in zip(late, slept, strict=True):
            assert row.answered_ns is not None
            # The first content came while the reader slept: from then on it was the reader's time.
            on_the_way = max((row.ttft_arrival_s or 0.0) - row.answered_ns / 1e9, 0.0)
            held = s - on_the_way
            assert held > s / 2
            assert row.ttft_s >= s
            assert row.stages.render >= 0.95 * held * 1e9
            assert row.ttft_arrival_s <= row.ttft_s - 0.95 * held
        assert_not_moved(eager, late)

    settles(more, check)


def test_queueing_in_the_engine_shows_as_queue(vllm_two_seats: Any) -> None:
    """With two seats and eight clients, the wait is in queue, and the engine says the same."""

    async def run() -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{vllm_two_seats.url}/v1", api_key="none", max_retries=0
        ) as client:

            async def one() -> None:
                async for _ in await ask_openai(client, 64):
                    pass

            await asyncio.gather(*(one() for _ in range(8)))

    with capture() as rows:
        asyncio.run(run())

    assert len(rows) == 8
    for row in rows:
        exactly(row)
    waited = sorted(row.stages.queue / 1e9 for row in rows)
    assert waited[-1] > 0.05 > waited[0]
    for row in rows:
        assert row.stages.sources["queue"] == "engine_inband"
        assert row.stages.queue == row.timeline.queue.ns  # it fits its window, uncut
