"""A starved client and a late consumer are no slow server: to 5 ms, over real sockets."""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmtrace.core.row import Row
from tests.support.sse_server import Answer, Request, Script, Server, serve
from tests.support.taking_time import aspend, spend

from . import answers, raw
from .arrivals import (
    APART_S,
    BLOCKED_S,
    FOR_S,
    SENT_S,
    Sent,
    arrived_by_s,
    at,
    blocked,
    exact_s,
    expect_bound,
    expect_on_time,
    lag_s,
)
from .reading import client, method, recorded, settled

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO is read on Linux only")

CALLS = [
    pytest.param("openai", "sync", id="openai-sync"),
    pytest.param("openai", "async", id="openai-async"),
    pytest.param("openai", "uvloop", id="openai-uvloop"),
    pytest.param("anthropic", "sync", id="anthropic-sync"),
    pytest.param("anthropic", "async", id="anthropic-async"),
    pytest.param("httpx", "sync", id="httpx-sync"),
    pytest.param("httpx", "async", id="httpx-async"),
    pytest.param("aiohttp", "async", id="aiohttp"),
]


def script(
    sent: Sent, endpoint: str, waits_s: tuple[float, ...], *, head_s: float = 0.0
) -> Script:
    """Respond with one content after each wait."""

    def play(request: Request, answer: Answer) -> None:
        sent.spans.clear()
        answer.wait(head_s)
        if not request.body.get("stream"):
            sent.send(lambda: answers.chat()(request, answer))
            return
        answer.head()
        for wait_s in waits_s:
            answer.wait(wait_s)
            sent.send(lambda: _content(answer, endpoint))
        answer.wait(APART_S)
        _end(answer, endpoint)

    return play


def _content(answer: Answer, endpoint: str) -> None:
    if endpoint == "messages":
        delta = {"type": "text_delta", "text": "hi "}
        answer.event({"type": "content_block_delta", "index": 0, "delta": delta},
                     "content_block_delta")  # fmt: skip
    else:
        answer.event(answers.delta("hi "))


def _end(answer: Answer, endpoint: str) -> None:
    if endpoint == "messages":
        answer.event({"type": "message_stop"}, "message_stop")
    else:
        answer.event(answers.delta(finish="stop"))
        answer.event("[DONE]")


def call(
    library: str, mode: str, server: Server, *, late_s: float = 0, block: Any = (0, 0), **more: Any
) -> None:
    """Call the server and read all of the response.

    Args:
        library: an SDK or an HTTP library.
        mode: `sync`, `async` or `uvloop`.
        server: to call.
        late_s: how late the consumer is.
        block: after how long the thread, or the loop, is blocked, and for how long.
        **more: of an SDK's call.
    """
    runner = pytest.importorskip("uvloop").run if mode == "uvloop" else asyncio.run
    endpoint = "messages" if library == "anthropic" else "chat"

    def read_raw(response: Any) -> bytes:
        spend(late_s)
        return b"".join(response.iter_bytes())

    async def aread_raw(response: Any) -> bytes:
        asyncio.get_running_loop().call_later(block[0], spend, block[1])
        await aspend(late_s)
        if library == "aiohttp":
            return b"".join([piece async for piece in response.content])
        return b"".join([piece async for piece in response.aiter_bytes()])

    if library in raw.WAYS:
        with blocked(*block if mode == "sync" else (0, 0)):
            raw.ask(library, mode, raw.url(server), read_raw if mode == "sync" else aread_raw)
    elif mode == "sync":
        with client("sync", server, library) as made:
            create, options = method(made, endpoint)
            with blocked(*block):
                stream = create(**{**options, "stream": True, **more})
                if more.get("stream", True):
                    spend(late_s)
                    list(stream)
    else:

        async def main() -> None:
            async with client("async", server, library) as made:
                create, options = method(made, endpoint)
                asyncio.get_running_loop().call_later(block[0], spend, block[1])
                stream = await create(**{**options, "stream": True, **more})
                if more.get("stream", True):
                    await aspend(late_s)
                    async for _ in stream:
                        pass

        runner(main())


def measured(
    library: str, mode: str, server: Server, check: Callable[[Row], None], **options: Any
) -> Row:
    """Record a call until a check passes: a busy machine blocks it in other places, too."""
    settings = {"instrument": [library]}
    return settled(
        lambda: recorded(lambda: call(library, mode, server, **options), **settings), check
    )


@pytest.mark.parametrize(("library", "mode"), CALLS)
def test_a_starved_client_is_not_a_slow_server(library: str, mode: str, server: Server) -> None:
    """The loop, or the thread, was blocked while the first content came in."""
    sent = Sent()
    server.play(script(sent, "messages" if library == "anthropic" else "chat", (SENT_S,)))

    def check(row: Row) -> None:
        expect_bound(at(row, arrived_by_s(row)), sent.spans[0])
        assert row.ttft_s is not None
        assert row.ttft_s > arrived_by_s(row) + (FOR_S - SENT_S) / 2
        # All that is late, and nothing else: the waits after it were looked at too.
        assert abs(lag_s(row) - (row.ttft_s - arrived_by_s(row))) < exact_s()

    measured(library, mode, server, check, block=(BLOCKED_S, FOR_S))


@pytest.mark.parametrize(("library", "mode"), CALLS)
def test_a_late_consumer_is_not_a_slow_server(library: str, mode: str, server: Server) -> None:
    """The consumer came late to a hosted model that reports nothing: its content has a bound."""
    sent = Sent()
    server.play(script(sent, "messages" if library == "anthropic" else "chat", (SENT_S,)))

    def check(row: Row) -> None:
        expect_bound(at(row, arrived_by_s(row)), sent.spans[0])
        assert row.ttft_s is not None
        assert row.ttft_s > FOR_S
        assert lag_s(row) < exact_s()  # it is the consumer's time, in render

    measured(library, mode, server, check, late_s=FOR_S)


@pytest.mark.parametrize(("library", "mode"), CALLS)
def test_a_later_chunk_that_was_noticed_late(library: str, mode: str, server: Server) -> None:
    """A gap in the middle of a stream is split between the server and a client that was busy."""
    sent = Sent()
    endpoint = "messages" if library == "anthropic" else "chat"
    server.play(script(sent, endpoint, (0.0, SENT_S)))

    def check(row: Row) -> None:
        assert row.last_content_ns is not None
        assert row.chunks == 2
        expect_bound(at(row, row.last_content_ns / 1e9 - lag_s(row)), sent.spans[1])
        assert row.max_gap_s is not None
        assert row.max_gap_s > lag_s(row) > (FOR_S - SENT_S) / 2

    measured(library, mode, server, check, block=(BLOCKED_S, FOR_S))


@pytest.mark.parametrize(("library", "mode"), CALLS)
def test_of_several_arrivals_the_bound_is_the_last(
    library: str, mode: str, server: Server
) -> None:
    """Content that came again and again while the client was blocked: never before the truth."""
    sent = Sent()
    endpoint = "messages" if library == "anthropic" else "chat"
    server.play(script(sent, endpoint, (SENT_S, 0.05, 0.05)))

    def check(row: Row) -> None:
        expect_bound(at(row, arrived_by_s(row)), sent.spans[2])
        assert at(row, arrived_by_s(row)) > sent.spans[0][1]

    measured(library, mode, server, check, block=(BLOCKED_S, FOR_S))


@pytest.mark.parametrize(("library", "mode"), CALLS)
def test_a_client_on_time_has_no_lag(library: str, mode: str, server: Server) -> None:
    """A slow server stays one: 0 is known, and no bound is given that is not earlier."""
    sent = Sent()
    endpoint = "messages" if library == "anthropic" else "chat"
    server.play(script(sent, endpoint, (0.1, 0.1, 0.1)))

    def check(row: Row) -> None:
        expect_on_time(row)
        assert row.max_gap_s is not None
        assert row.max_gap_s > 0.09

    measured(library, mode, server, check)


@pytest.mark.parametrize("mode", ["sync", "async", "uvloop"])
def test_a_unary_response_that_was_noticed_late(mode: str, server: Server) -> None:
    """A whole response that lay here is the client's lag as well."""
    sent = Sent()
    server.play(script(sent, "chat", (), head_s=SENT_S))

    def check(row: Row) -> None:
        expect_bound(at(row, row.e2e_s - lag_s(row)), sent.spans[0])
        assert lag_s(row) > (FOR_S - SENT_S) / 2

    measured("openai", mode, server, check, block=(BLOCKED_S, FOR_S), stream=False)


def test_over_tls(certificate: Path) -> None:
    """A record is read as a whole, so that its last byte is the content's: the same bound."""
    httpx = pytest.importorskip("httpx")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    trusted = ssl.create_default_context(cafile=str(certificate))
    sent = Sent()

    def late() -> None:
        with (
            httpx.Client(verify=trusted) as made,
            made.stream("POST", raw.url(server), json=raw.BODY) as response,
        ):
            spend(FOR_S)
            response.read()

    def check(row: Row) -> None:
        expect_bound(at(row, arrived_by_s(row)), sent.spans[0])

    with serve(script(sent, "chat", (SENT_S,)), tls=context) as server:
        settled(lambda: recorded(late, instrument=["httpx"]), check)
