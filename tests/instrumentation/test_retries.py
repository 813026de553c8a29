"""The time of failed attempts is in the right stage, and the row lists the attempts."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

import llmtrace
from llmtrace.core.row import Row
from llmtrace.testing import capture
from tests.support.sse_server import Answer, Request, Server

from . import answers
from .reading import client, method, near, raised_by, read, recorded, seconds, settled


def slow(status: int, wait_s: float = 0.1, retry_after: str = "0.2") -> Any:
    """Respond with an error after a while, and request a later retry."""

    def script(request: Request, answer: Answer) -> None:
        answer.wait(wait_s)
        answers.error(status, headers={"retry-after": retry_after})(request, answer)

    return script


@pytest.mark.parametrize("status", [429, 503])
def test_refused_then_served(mode: str, server: Server, status: int) -> None:
    """A rejected attempt, and the wait it requested, are the gateway's."""

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
    refused, served = row.attempt_log
    assert (refused.status, refused.retry_after_ns) == (status, 200_000_000)
    assert refused.duration_ns >= 100_000_000
    assert refused.backoff_ns >= 200_000_000
    assert (served.status, served.error_type, served.backoff_ns) == (200, None, 0)
    assert served.end_ns == row.e2e_ns
    assert served.start_ns == refused.end_ns + refused.backoff_ns


def test_retry_after_in_milliseconds(mode: str, server: Server) -> None:
    """OpenAI's own header is read, too; a date is not, since it is by another clock."""
    soon = {"retry-after-ms": "30", "retry-after": "20"}
    date = {"retry-after": "Fri, 31 Dec 1999 23:59:59 GMT"}
    server.play(answers.error(429, headers=soon), answers.error(503, headers=date), answers.chat())
    row = recorded(lambda: read(mode, server, options={"max_retries": 2}))
    assert [one.retry_after_ns for one in row.attempt_log] == [30_000_000, None, None]
    assert row.stages.gateway == sum(
        one.duration_ns + one.backoff_ns for one in row.attempt_log[:2]
    )


def test_messages_refused_then_served(mode: str, server: Server) -> None:
    """The same holds for Anthropic's client."""
    server.play(slow(529, 0.05, "0.05"), answers.messages)
    row = recorded(lambda: read(mode, server, "messages", options={"max_retries": 1}))
    assert (row.outcome, row.attempts, row.http_status) == ("success", 2, 200)
    assert row.retry_s >= 0.1


def test_reset_then_served(mode: str, server: Server) -> None:
    """An attempt that got no response, and the backoff after it, are the network's."""

    def cut(_request: Request, answer: Answer) -> None:
        answer.wait(0.1)
        answer.reset()

    server.play(cut, answers.chat())
    row = recorded(lambda: read(mode, server, options={"max_retries": 1}))
    assert (row.outcome, row.attempts) == ("success", 2)
    assert row.stages.gateway is None
    broken, served = row.attempt_log
    assert (broken.status, served.status, served.error_type) == (None, 200, None)
    assert str(broken.error_type).endswith(("ReadError", "RemoteProtocolError"))
    assert row.timeline.retry_network == broken.duration_ns + broken.backoff_ns
    assert row.retry_s >= 0.1  # and a backoff of the SDK's own choice
    near(seconds(row, "network"), row.retry_s + (row.timeline.network.known or 0) / 1e9)


def test_refused_for_good(mode: str, server: Server) -> None:
    """When the last retry fails the row says so; all that time is the gateway's."""
    openai = pytest.importorskip("openai")
    server.play(slow(503, 0.05, "0.05"))

    def act() -> None:
        with pytest.raises(openai.InternalServerError):
            read(mode, server, options={"max_retries": 2})

    row = recorded(act, ask_usage=False)
    assert (row.outcome, row.attempts, row.http_status) == ("error", 3, 503)
    assert row.error_type == "openai.InternalServerError"
    gateway = seconds(row, "gateway")
    assert gateway is not None
    assert gateway > row.e2e_s * 0.8
    assert row.retry_s == gateway


def test_connection_refused(mode: str, server: Server) -> None:
    """A server that is not there costs network time only."""
    openai = pytest.importorskip("openai")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # not listening
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"

        def act() -> None:
            with pytest.raises(openai.APIConnectionError):
                read(mode, server, options={"base_url": url, "max_retries": 1})

        def check(row: Row) -> None:
            network = seconds(row, "network")
            assert network is not None
            assert network > row.e2e_s * 0.9

        row = settled(lambda: recorded(act), check)
    assert (row.outcome, row.attempts, row.http_status) == ("error", 2, None)
    assert row.error_type == "openai.APIConnectionError"
    assert row.stages.gateway is None
    assert [str(one.error_type).rpartition(".")[2] for one in row.attempt_log] == [
        "ConnectError"
    ] * 2
    spent = sum(one.duration_ns + one.backoff_ns for one in row.attempt_log)
    assert spent == row.timeline.retry_network


def test_read_timeout_before_the_head(mode: str, server: Server) -> None:
    """A server that never responds is a timeout; nothing is known of whose it was."""
    openai = pytest.importorskip("openai")
    server.play(answers.chat(head_s=30))

    def act() -> None:
        with pytest.raises(openai.APITimeoutError):
            read(mode, server, options={"timeout": 0.2})

    row = settled(lambda: recorded(act), lambda row: near(row.e2e_s, 0.2))
    assert (row.outcome, row.http_status, row.ttft_s) == ("timeout", None, None)
    assert row.stages.unattributed > 150_000_000


def test_retry_after_a_timeout(mode: str, server: Server) -> None:
    """A time-out that is retried is an attempt without a response."""
    server.play(answers.chat(head_s=30), answers.chat())
    row = recorded(lambda: read(mode, server, options={"timeout": 0.2, "max_retries": 1}))
    assert (row.outcome, row.attempts) == ("success", 2)
    assert row.timeline.retry_network > 200_000_000
    assert str(row.attempt_log[0].error_type).endswith("ReadTimeout")
    assert row.attempt_log[0].duration_ns >= 200_000_000


def test_given_up_in_the_backoff(server: Server) -> None:
    """Who gives up while waiting to retry has lost that time to the refusal."""
    server.play(slow(429, 0.01, "30"))

    async def asks() -> None:
        async with asyncio.timeout(1.0), client("async", server, max_retries=2) as made:
            create, call_options = method(made)
            await create(**call_options, stream=True)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asks()

    row = recorded(lambda: asyncio.run(main()))
    assert (row.outcome, row.attempts, row.http_status) == ("timeout", 1, 429)
    [one] = row.attempt_log
    assert (one.status, one.retry_after_ns) == (429, 30_000_000_000)
    assert one.backoff_ns > 200_000_000
    assert row.timeline.retry_gateway == one.duration_ns + one.backoff_ns


def test_the_attempts_of_a_stream_that_breaks(mode: str, server: Server) -> None:
    """A stream that breaks after its first content was answered: there is no second attempt."""

    def cut(_request: Request, answer: Answer) -> None:
        answer.event(answers.delta("one "))
        answer.reset()

    server.play(cut)
    row = recorded(lambda: raised_by(lambda: read(mode, server, options={"max_retries": 2})))
    assert (row.outcome, row.attempts, row.attempt_log, row.retry_s) == ("error", 1, (), 0)


# --- what the provider says ----------------------------------------------------------------------

_OVERFLOW = "This model's maximum context length is 256 tokens. However, you requested 300."


@pytest.mark.parametrize(
    ("endpoint", "body", "code"),
    [
        ("chat", {"error": {"message": "no", "code": "context_length_exceeded", "type": "x"}},
         "context_length_exceeded"),
        ("chat", {"error": {"message": _OVERFLOW, "type": "BadRequestError", "code": 400}},
         "context_length_exceeded"),
        ("responses", {"error": {"message": "no", "code": "invalid_prompt"}}, "invalid_prompt"),
        ("messages", {"type": "error", "error": {
            "type": "invalid_request_error", "message": "prompt is too long: 300 > 256"}},
         "context_length_exceeded"),
        ("messages", {"type": "error", "error": {"type": "overloaded_error", "message": "no"}},
         "overloaded_error"),
    ],
)  # fmt: skip
def test_the_providers_code(
    mode: str, server: Server, endpoint: str, body: Any, code: str
) -> None:
    """What a provider calls its error is what the row calls it, whichever SDK raised what."""

    def refuses(_request: Request, answer: Answer) -> None:
        answer.whole(body, status=400)

    server.play(refuses)
    row = recorded(lambda: raised_by(lambda: read(mode, server, endpoint)), ask_usage=False)
    assert (row.outcome, row.error_type, row.http_status) == ("error", code, 400)
    assert [one.status for one in row.attempt_log] == [400]


def test_the_providers_code_inside_a_stream(mode: str, server: Server) -> None:
    """The same under status 200."""
    said = {"error": {"message": "no", "code": "rate_limit_exceeded", "type": "requests"}}
    server.play(answers.events(answers.delta("one "), said))
    row = recorded(lambda: raised_by(lambda: read(mode, server)))
    assert (row.outcome, row.error_type) == ("error", "rate_limit_exceeded")
    assert (row.http_status, row.attempts, row.chunks) == (200, 1, 1)


# --- retries of the application's own ------------------------------------------------------------


def asks_twice(mode: str, server: Server, first: str, second: str) -> Any:
    """Return a decorated function that tries one model, and then another."""

    @llmtrace.trace(route="twice")
    def ask(made: Any) -> Any:
        create, call_options = method(made)
        try:
            return create(**{**call_options, "model": first}, stream=True)
        except Exception:
            return create(**{**call_options, "model": second}, stream=True)

    @llmtrace.trace(route="twice")
    async def aask(made: Any) -> Any:
        create, call_options = method(made)
        try:
            return await create(**{**call_options, "model": first}, stream=True)
        except Exception:
            return await create(**{**call_options, "model": second}, stream=True)

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
    row = recorded(asks_twice(mode, server, "big", "small"), ask_usage=False)
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
    """Two calls at once in a decorated function are two rows with its labels."""

    @llmtrace.trace(route="both")
    async def ask(made: Any) -> None:
        create, call_options = method(made)
        await asyncio.gather(*(create(**call_options) for _ in range(2)))

    async def main() -> None:
        async with client("async", server) as made:
            await ask(made)

    with capture() as rows:
        asyncio.run(main())
    one, other = rows
    assert (one.route, other.route) == ("both", "both")
    assert (one.parent_span_id, one.trace_id) == (other.parent_span_id, other.trace_id)
    assert (one.output_tokens, other.output_tokens) == (5, 5)
