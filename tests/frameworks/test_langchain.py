"""A stream of LangChain is one row, whichever underlying client is instrumented."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import llmtrace
from llmtrace.core.row import Row
from llmtrace.testing import capture
from tests.instrumentation import answers
from tests.instrumentation.raw import no_tls
from tests.instrumentation.reading import eventually
from tests.support.sse_server import Server

langchain_openai = pytest.importorskip("langchain_openai")
httpx = pytest.importorskip("httpx")


def model(server: Server, **more: Any) -> Any:
    """Return a chat model that calls the server."""
    # Clients of its own: LangChain keeps its async ones longer than the loop they belong to.
    return langchain_openai.ChatOpenAI(
        model="tiny", base_url=server.url, api_key="none", max_retries=0, stream_usage=True,
        http_client=httpx.Client(verify=no_tls()),
        http_async_client=httpx.AsyncClient(verify=no_tls()), **more,
    )  # fmt: skip


def recorded(act: Callable[[], object], instrument: tuple[str, ...]) -> Row:
    """Do something that makes one row, and return it."""
    with capture(instrument=instrument) as rows:
        act()
        eventually(lambda: rows)
    [row] = rows
    assert row.stages.total == row.e2e_ns
    return row


def is_whole(row: Row) -> None:
    """Check that a row knows all that a short chat reports."""
    assert (row.outcome, row.finish_reason, row.chunks) == ("success", "stop", 5)
    assert (row.model, row.prompt_tokens, row.output_tokens) == ("tiny", 10, 5)
    assert row.ttft_s is not None


async def read(stream: Any) -> list[Any]:
    """Read an async stream to its end."""
    return [chunk async for chunk in stream]


def test_wrapped(mode: str, instrumented: tuple[str, ...], server: Server) -> None:
    """A wrapped stream is one row, that its client's call joins."""
    server.play(answers.chat(first_s=0.02))

    async def main() -> None:
        await read(llmtrace.wrap(model(server).astream("hi"), route="wrapped"))

    def act() -> None:
        if mode == "async":
            asyncio.run(main())
        else:
            list(llmtrace.wrap(model(server).stream("hi"), route="wrapped"))

    row = recorded(act, instrumented)
    is_whole(row)
    assert row.route == "wrapped"
    assert (row.timeline.network.connect is not None) == (instrumented != ())


def test_decorated(mode: str, instrumented: tuple[str, ...], server: Server) -> None:
    """So is a decorated generator of words, as one writes it."""

    @llmtrace.trace(route="decorated")
    def words() -> Any:
        yield from model(server).stream("hi")

    @llmtrace.trace(route="decorated")
    async def awords() -> Any:
        async for chunk in model(server).astream("hi"):
            yield chunk

    row = recorded(
        lambda: asyncio.run(read(awords())) if mode == "async" else list(words()), instrumented
    )
    is_whole(row)
    assert row.route == "decorated"


def test_words_alone(mode: str, instrumented: tuple[str, ...], server: Server) -> None:
    """A stream of bare words gives their times; the client's row gives the rest."""

    @llmtrace.trace
    def words() -> Any:
        yield from (chunk.text for chunk in model(server).stream("hi"))

    @llmtrace.trace
    async def awords() -> Any:
        async for chunk in model(server).astream("hi"):
            yield chunk.text

    row = recorded(
        lambda: asyncio.run(read(awords())) if mode == "async" else list(words()), instrumented
    )
    assert (row.outcome, row.chunks) == ("success", 5)
    assert row.finish_reason == ("stop" if instrumented else None)


def test_by_itself(mode: str, server: Server) -> None:
    """Without any code in the application, its calls are rows: those of the client."""

    async def main() -> None:
        await read(model(server).astream("hi"))

    row = recorded(
        lambda: asyncio.run(main()) if mode == "async" else list(model(server).stream("hi")),
        ("openai", "httpx", "httpx2"),
    )
    is_whole(row)
    assert row.client == "openai"
    assert row.timeline.queue is not None


def test_whole_answers(mode: str, instrumented: tuple[str, ...], server: Server) -> None:
    """A response that is no stream is a row as well."""

    @llmtrace.trace
    def ask() -> Any:
        return model(server).invoke("hi")

    @llmtrace.trace
    async def aask() -> Any:
        return await model(server).ainvoke("hi")

    row = recorded(lambda: asyncio.run(aask()) if mode == "async" else ask(), instrumented)
    assert (row.outcome, row.finish_reason, row.output_tokens) == ("success", "stop", 5)
    assert (row.model, row.stream) == ("tiny", False)


def test_a_chain(instrumented: tuple[str, ...], server: Server) -> None:
    """A chain of prompt and model streams as its model does."""
    prompts = pytest.importorskip("langchain_core.prompts")
    chain = prompts.ChatPromptTemplate.from_template("{question}") | model(server)
    row = recorded(
        lambda: list(llmtrace.wrap(chain.stream({"question": "hi"}), route="chain")), instrumented
    )
    is_whole(row)
    assert row.route == "chain"
