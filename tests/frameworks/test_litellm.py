"""A stream of LiteLLM is one row, whichever underlying client is instrumented."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import llmtrace
from llmtrace.core.row import Row
from llmtrace.testing import capture
from tests.instrumentation import answers
from tests.instrumentation.answers import delta, events
from tests.instrumentation.reading import eventually, raised_by
from tests.support.sse_server import Server

litellm = pytest.importorskip("litellm")

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say nothing to the terminal of errors that are meant."""
    monkeypatch.setattr(litellm, "suppress_debug_info", True)


def call_options(server: Server, **more: Any) -> dict[str, Any]:
    """Return what to call LiteLLM with."""
    return {
        "model": "openai/tiny", "messages": HI, "api_base": server.url, "api_key": "none",
        "max_retries": 0, "stream_options": {"include_usage": True}, "stream": True, **more,
    }  # fmt: skip


def read(mode: str, server: Server, *, wrap: bool = False, **more: Any) -> list[Any]:
    """Read a stream, sync or async, and return its chunks."""
    own: Callable[[Any], Any] = (
        (lambda stream: llmtrace.wrap(stream, route="wrapped")) if wrap else lambda stream: stream
    )
    if mode == "sync":
        return list(own(litellm.completion(**call_options(server, **more))))

    async def main() -> list[Any]:
        return [
            chunk async for chunk in own(await litellm.acompletion(**call_options(server, **more)))
        ]

    return asyncio.run(main())


def recorded(act: Callable[[], object], instrument: tuple[str, ...]) -> Row:
    """Do something that makes one row, and return it."""
    with capture(instrument=instrument) as rows:
        act()
        eventually(lambda: rows)
    [row] = rows
    assert row.stages.total == row.e2e_ns
    return row


def is_whole(row: Row, words: int = 5) -> None:
    """Check that a row knows all that a short chat reports."""
    assert (row.outcome, row.finish_reason, row.chunks) == ("success", "stop", words)
    assert (row.prompt_tokens, row.output_tokens) == (10, 5)


def test_wrapped(mode: str, instrumented: tuple[str, ...], server: Server) -> None:
    """A wrapped stream is one row: the client's, if that is recorded."""
    server.play(answers.chat(first_s=0.02))
    row = recorded(lambda: read(mode, server, wrap=True), instrumented)
    is_whole(row)
    assert row.route == "wrapped"
    assert row.ttft_s is not None
    assert (row.client is None) == (instrumented == ())


def test_decorated(mode: str, instrumented: tuple[str, ...], server: Server) -> None:
    """So is the stream of a decorated function."""

    @llmtrace.trace(route="decorated")
    def ask() -> Any:
        return litellm.completion(**call_options(server))

    @llmtrace.trace(route="decorated")
    async def aask() -> Any:
        return await litellm.acompletion(**call_options(server))

    async def main() -> None:
        async for _chunk in await aask():
            pass

    row = recorded(lambda: asyncio.run(main()) if mode == "async" else list(ask()), instrumented)
    is_whole(row)
    assert (row.route, row.ttft_s is not None) == ("decorated", True)
    if instrumented:
        # LiteLLM's async requests go over aiohttp, which is not instrumented here.
        assert (row.timeline.network.connect is None) == (mode == "async")
        assert row.timeline.queue is not None  # LiteLLM drops what the engine reports, we read it


def test_a_decorated_generator(mode: str, instrumented: tuple[str, ...], server: Server) -> None:
    """So is a decorated generator of its chunks."""

    @llmtrace.trace
    def words() -> Any:
        yield from litellm.completion(**call_options(server))

    @llmtrace.trace
    async def awords() -> Any:
        async for chunk in await litellm.acompletion(**call_options(server)):
            yield chunk

    async def main() -> None:
        async for _chunk in awords():
            pass

    row = recorded(lambda: asyncio.run(main()) if mode == "async" else list(words()), instrumented)
    is_whole(row)


def test_by_itself(mode: str, server: Server) -> None:
    """Without any code in the application, its calls are rows: those of the client."""
    is_whole(recorded(lambda: read(mode, server), ("openai", "httpx", "httpx2")))


def test_the_chunks_are_its_own(mode: str, server: Server) -> None:
    """Wrapped or not, instrumented or not, what is read is the same."""
    with capture(instrument=()):
        plain = [chunk.choices[0].delta.content for chunk in read(mode, server)]
    for instrument in ((), ("openai", "httpx", "httpx2")):
        with capture(instrument=instrument):
            seen = read(mode, server, wrap=True)
        assert [chunk.choices[0].delta.content for chunk in seen] == plain


def test_whole_answers(mode: str, instrumented: tuple[str, ...], server: Server) -> None:
    """A response that is no stream reports the same of itself."""
    more = {"stream": False, "stream_options": None}

    @llmtrace.trace
    def ask() -> Any:
        return litellm.completion(**call_options(server, **more))

    @llmtrace.trace
    async def aask() -> Any:
        return await litellm.acompletion(**call_options(server, **more))

    row = recorded(
        lambda: asyncio.run(aask()) if mode == "async" else ask(), instrumented
    )  # fmt: skip
    assert (row.outcome, row.finish_reason, row.output_tokens) == ("success", "stop", 5)
    assert not row.stream


def test_anthropic(mode: str, server: Server) -> None:
    """A provider that LiteLLM calls by HTTP itself is one row, too, and wrapped one, too."""
    server.play(answers.messages)
    more = {
        "model": "anthropic/tiny", "api_base": f"{server.root}/v1/messages", "max_tokens": 5,
        "stream_options": None,
    }  # fmt: skip
    for wrap in (False, True):
        # LiteLLM neither reads it to the very end, nor closes it, nor releases it.
        row = recorded(partial(read, mode, server, wrap=wrap, **more), ("httpx", "httpx2"))
        assert (row.outcome, row.finish_reason, row.output_tokens) == ("success", "end_turn", 5)
        assert (row.provider, row.operation) == ("anthropic", "chat")
        assert row.first_reasoning_ns is not None


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        (events(delta("one "), {"error": {"message": "no", "code": "out_of_words"}}), "error"),
        (answers.error(429), "error"),
        (answers.chat(finish=None), "truncated"),
    ],
    ids=["error event", "refused", "truncated"],
)
def test_failures(
    mode: str, instrumented: tuple[str, ...], server: Server, script: Any, outcome: str
) -> None:
    """A stream that fails makes its one row, whatever LiteLLM makes of it."""
    server.play(script)

    @llmtrace.trace
    def ask() -> Any:
        return litellm.completion(**call_options(server))

    @llmtrace.trace
    async def aask() -> Any:
        return await litellm.acompletion(**call_options(server))

    async def main() -> None:
        async for _chunk in await aask():
            pass

    def act() -> None:
        def run() -> None:
            if mode == "async":
                asyncio.run(main())
            else:
                list(ask())

        if outcome == "error":
            raised_by(run)
        else:
            run()

    row = recorded(act, instrumented)
    if outcome == "truncated" and not instrumented:
        outcome = "success"  # LiteLLM makes up a finish reason where there was none
    assert row.outcome == outcome
