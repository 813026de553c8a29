"""Where does the time of failed attempts go, and what does the row know of them?"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

import llmtrace
from llmtrace.rows import Row
from llmtrace.testing import capture
from tests.sse_server import Answer, Request, Server

from . import answers
from .reading import client, method, near, read, recorded, seconds, settled


def slow(status: int, wait_s: float = 0.1, retry_after: str = "0.2") -> Any:
    """Answer with an error after a while, and ask to come back later."""

    def script(request: Request, answer: Answer) -> None:
        answer.wait(wait_s)
        answers.error(status, headers={"retry-after": retry_after})(request, answer)

    return script


@pytest.mark.parametrize("status", [429, 503])
def test_refused_then_served(mode: str, server: Server, status: int) -> None:
    """An attempt the server refused, and the wait it asked for, are the gateway's."""

    def measure() -> Row:
        server.play(slow(status), answers.chat(first_s=0.05))
        return recorded(lambda: read(mode, server, options={"max_retries": 2}))

    def check(row: Row) -> None:
        near(row.retry_s, 0.3)
        assert seconds(row, "gateway") == row.retry_s
        assert row.ttft_s is not None
        assert row.ttft_s >= row.retry_s + 0.05

    row = settled(measure, check)
    assert (row.outcome, row.attempts, row.http_status) == ("success", 2, 200)
    assert row.stages.queue == 1_500_000


def test_messages_refused_then_served(mode: str, server: Server) -> None:
    """The same holds for Anthropic's client."""
    server.play(slow(529, 0.05, "0.05"), answers.messages)
    row = recorded(lambda: read(mode, server, "messages", options={"max_retries": 1}))
    assert (row.outcome, row.attempts, row.http_status) == ("success", 2, 200)
    assert row.retry_s >= 0.1


def test_reset_then_served(mode: str, server: Server) -> None:
    """An attempt that got no answer, and the backoff after it, are the network's."""

    def cut(_request: Request, answer: Answer) -> None:
        answer.wait(0.1)
        answer.reset()

    server.play(cut, answers.chat())
    row = recorded(lambda: read(mode, server, options={"max_retries": 1}))
    assert (row.outcome, row.attempts) == ("success", 2)
    assert row.stages.gateway is None
    assert row.retry_s >= 0.1  # and a backoff of the SDK's own choice
    near(seconds(row, "network"), row.retry_s + (row.timeline.network.known or 0) / 1e9)


def test_refused_for_good(mode: str, server: Server) -> None:
    """When the last retry fails the row says so; all that time is the gateway's."""
    openai = pytest.importorskip("openai")
    server.play(slow(503, 0.05, "0.05"))

    def act() -> None:
        with pytest.raises(openai.InternalServerError):
            read(mode, server, options={"max_retries": 2})

    row = recorded(act)
    assert (row.outcome, row.attempts, row.http_status) == ("error", 3, 503)
    assert row.error_type == "openai.InternalServerError"
    gateway = seconds(row, "gateway")
    assert gateway is not None
    assert gateway > row.e2e_s * 0.8
    assert row.retry_s == gateway


def test_connection_refused(mode: str, server: Server) -> None:
    """A server that is not there costs network time only."""
    openai = pytest.importorskip("openai")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # not listening
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1"

        def act() -> None:
            with pytest.raises(openai.APIConnectionError):
                read(mode, server, options={"base_url": url, "max_retries": 1})

        row = recorded(act)
    assert (row.outcome, row.attempts, row.http_status) == ("error", 2, None)
    assert row.error_type == "openai.APIConnectionError"
    network = seconds(row, "network")
    assert network is not None
    assert network > row.e2e_s * 0.9
    assert row.stages.gateway is None


def test_read_timeout_before_the_head(mode: str, server: Server) -> None:
    """A server that never answers is a timeout; nothing is known of whose it was."""
    openai = pytest.importorskip("openai")
    server.play(answers.chat(head_s=30))

    def act() -> None:
        with pytest.raises(openai.APITimeoutError):
            read(mode, server, options={"timeout": 0.2})

    row = settled(lambda: recorded(act), lambda row: near(row.e2e_s, 0.2))
    assert (row.outcome, row.http_status, row.ttft_s) == ("timeout", None, None)
    assert row.stages.unattributed > 150_000_000


def test_retry_after_a_timeout(mode: str, server: Server) -> None:
    """A time-out that is retried is an attempt without an answer."""
    server.play(answers.chat(head_s=30), answers.chat())
    row = recorded(lambda: read(mode, server, options={"timeout": 0.2, "max_retries": 1}))
    assert (row.outcome, row.attempts) == ("success", 2)
    assert row.timeline.retry_network > 200_000_000


# --- retries of the application's own ------------------------------------------------------------


def asks_twice(mode: str, server: Server, first: str, second: str) -> Any:
    """Return a decorated function that tries one model, and then another."""

    @llmtrace.trace(route="twice")
    def ask(made: Any) -> Any:
        create, asked = method(made)
        try:
            return create(**{**asked, "model": first}, stream=True)
        except Exception:
            return create(**{**asked, "model": second}, stream=True)

    @llmtrace.trace(route="twice")
    async def aask(made: Any) -> Any:
        create, asked = method(made)
        try:
            return await create(**{**asked, "model": first}, stream=True)
        except Exception:
            return await create(**{**asked, "model": second}, stream=True)

    async def main() -> None:
        async with client("async", server) as made:
            async for _chunk in await aask(made):
                pass

    def act() -> None:
        if mode == "async":
            asyncio.run(main())
            return
        with client("sync", server) as made:
            for _chunk in ask(made):
                pass

    return act


def test_a_function_that_tries_again(mode: str, server: Server) -> None:
    """A decorated function that asks again after a failure made one request in two attempts."""
    server.play(slow(500), answers.chat())
    row = recorded(asks_twice(mode, server, "big", "small"))
    assert (row.outcome, row.error_type, row.route) == ("success", None, "twice")
    assert (row.model, row.attempts, row.chunks) == ("small", 2, 5)
    assert row.retry_s >= 0.1


def test_a_function_that_gives_up(mode: str, server: Server) -> None:
    """A decorated function that hides a failure still leaves a row of it."""
    server.play(slow(500))

    @llmtrace.trace
    def ask() -> str:
        try:
            read(mode, server)
        except Exception:
            return "sorry"
        return "fine"

    with capture() as rows:
        assert ask() == "sorry"
    failed = rows[-1]
    assert (failed.outcome, failed.http_status) == ("error", 500)


def test_two_calls_at_once(server: Server) -> None:
    """Of two calls at once in a decorated function one is its own, the other a row beside it."""

    @llmtrace.trace(route="both")
    async def ask(made: Any) -> None:
        create, asked = method(made)
        await asyncio.gather(*(create(**asked) for _ in range(2)))

    async def main() -> None:
        async with client("async", server) as made:
            await ask(made)

    with capture() as rows:
        asyncio.run(main())
    child, parent = rows
    assert (child.route, parent.route) == (None, "both")
    assert (child.parent_span_id, child.trace_id) == (parent.span_id, parent.trace_id)
    assert (child.output_tokens, parent.output_tokens) == (5, 5)
