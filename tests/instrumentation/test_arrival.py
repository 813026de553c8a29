"""A starved client and a late consumer are no slow server: to 5 ms, over real sockets."""

from __future__ import annotations

import asyncio
import signal
import ssl
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from llmtrace.core.row import Row
from tests.support.sse_server import Answer, Request, Script, Server, serve

from . import answers, raw
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
# Until the content is sent; when the client is blocked, and for how long; between contents.
SENT_S, BLOCKED_S, FOR_S, APART_S = 0.12, 0.05, 0.3, 0.5
EXACT_S = 0.005
# Between reading two clocks in a row.
_SLACK_S = 0.0005


@dataclass
class Sent:
    """When pieces went out, by `time.perf_counter`: just before and just after."""

    spans: list[tuple[float, float]]

    def script(self, endpoint: str, waits_s: tuple[float, ...], *, head_s: float = 0.0) -> Script:
        """Respond with one content after each wait."""

        def script(request: Request, answer: Answer) -> None:
            self.spans.clear()
            answer.wait(head_s)
            if not request.body.get("stream"):
                self.send(lambda: answers.chat()(request, answer))
                return
            answer.head()
            for wait_s in waits_s:
                answer.wait(wait_s)
                self.send(lambda: _content(answer, endpoint))
            answer.wait(APART_S)
            _end(answer, endpoint)

        return script

    def send(self, act: Callable[[], object]) -> None:
        """Note when something is sent."""
        before = time.perf_counter()
        act()
        self.spans.append((before, time.perf_counter()))


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


def _pause(seconds: float) -> None:
    """Do something else, as an application does; the kernel's clock cannot be injected."""
    time.sleep(seconds)


@contextmanager
def blocked(after_s: float, for_s: float):
    """Block this thread for a while, wherever it is: what a late scheduler does."""
    before = signal.signal(signal.SIGALRM, lambda *_: _pause(for_s))
    if after_s:
        signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


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
        _pause(late_s)
        return b"".join(response.iter_bytes())

    async def aread_raw(response: Any) -> bytes:
        asyncio.get_running_loop().call_later(block[0], _pause, block[1])
        await asyncio.sleep(late_s)
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
                    _pause(late_s)
                    list(stream)
    else:

        async def main() -> None:
            async with client("async", server, library) as made:
                create, options = method(made, endpoint)
                asyncio.get_running_loop().call_later(block[0], _pause, block[1])
                stream = await create(**{**options, "stream": True, **more})
                if more.get("stream", True):
                    await asyncio.sleep(late_s)
                    async for _ in stream:
                        pass

        runner(main())


def at(row: Row, seconds: float | None) -> float:
    """Return when in `time.perf_counter` something happened, of which a row has the seconds."""
    assert seconds is not None
    between = time.time_ns() - time.perf_counter_ns()
    return (row.start - between) / 1e9 + seconds


def expect_bound(found: float, span: tuple[float, float]) -> None:
    """Check that a bound is not before the truth, and at most 5 ms after it."""
    before, after = span
    assert before - _SLACK_S <= found <= after + EXACT_S + _SLACK_S


def arrived_by_s(row: Row) -> float:
    """Return the bound of the first content in seconds."""
    assert row.arrived_by_ns is not None
    return row.arrived_by_ns / 1e9


def lag_s(row: Row) -> float:
    """Return the lag in seconds."""
    assert row.client_lag_ns is not None
    return row.client_lag_ns / 1e9


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
    sent = Sent([])
    server.play(sent.script("messages" if library == "anthropic" else "chat", (SENT_S,)))

    def check(row: Row) -> None:
        expect_bound(at(row, arrived_by_s(row)), sent.spans[0])
        assert row.ttft_s is not None
        assert row.ttft_s > arrived_by_s(row) + (FOR_S - SENT_S) / 2
        # All that is late, and nothing else: the waits after it were looked at too.
        assert abs(lag_s(row) - (row.ttft_s - arrived_by_s(row))) < EXACT_S

    measured(library, mode, server, check, block=(BLOCKED_S, FOR_S))


@pytest.mark.parametrize(("library", "mode"), CALLS)
def test_a_late_consumer_is_not_a_slow_server(library: str, mode: str, server: Server) -> None:
    """The consumer came late to a hosted model that reports nothing: its content has a bound."""
    sent = Sent([])
    server.play(sent.script("messages" if library == "anthropic" else "chat", (SENT_S,)))

    def check(row: Row) -> None:
        expect_bound(at(row, arrived_by_s(row)), sent.spans[0])
        assert row.ttft_s is not None
        assert row.ttft_s > FOR_S
        assert lag_s(row) < EXACT_S  # it is the consumer's time, in render

    measured(library, mode, server, check, late_s=FOR_S)


@pytest.mark.parametrize(("library", "mode"), CALLS)
def test_a_later_chunk_that_was_noticed_late(library: str, mode: str, server: Server) -> None:
    """A gap in the middle of a stream is split between the server and a client that was busy."""
    sent = Sent([])
    endpoint = "messages" if library == "anthropic" else "chat"
    server.play(sent.script(endpoint, (0.0, SENT_S)))

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
    sent = Sent([])
    endpoint = "messages" if library == "anthropic" else "chat"
    server.play(sent.script(endpoint, (SENT_S, 0.05, 0.05)))

    def check(row: Row) -> None:
        expect_bound(at(row, arrived_by_s(row)), sent.spans[2])
        assert at(row, arrived_by_s(row)) > sent.spans[0][1]

    measured(library, mode, server, check, block=(BLOCKED_S, FOR_S))


@pytest.mark.parametrize(("library", "mode"), CALLS)
def test_a_client_on_time_has_no_lag(library: str, mode: str, server: Server) -> None:
    """A slow server stays one: 0 is known, and no bound is given that is not earlier."""
    sent = Sent([])
    endpoint = "messages" if library == "anthropic" else "chat"
    server.play(sent.script(endpoint, (0.1, 0.1, 0.1)))

    def check(row: Row) -> None:
        assert lag_s(row) < EXACT_S
        assert row.arrived_by_ns is None
        assert row.max_gap_s is not None
        assert row.max_gap_s > 0.09

    measured(library, mode, server, check)


@pytest.mark.parametrize("mode", ["sync", "async", "uvloop"])
def test_a_unary_response_that_was_noticed_late(mode: str, server: Server) -> None:
    """A whole response that lay here is the client's lag as well."""
    sent = Sent([])
    server.play(sent.script("chat", (), head_s=SENT_S))

    def check(row: Row) -> None:
        expect_bound(at(row, row.e2e_s - lag_s(row)), sent.spans[0])
        assert lag_s(row) > (FOR_S - SENT_S) / 2

    measured("openai", mode, server, check, block=(BLOCKED_S, FOR_S), stream=False)


def test_over_tls(certificate: Path) -> None:
    """A record is read as a whole, so that its last byte is the content's: the same bound."""
    httpx = pytest.importorskip("httpx")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.with_suffix(".crt"), certificate)
    trusted = ssl.create_default_context(cafile=str(certificate.with_suffix(".crt")))
    sent = Sent([])

    def late() -> None:
        with (
            httpx.Client(verify=trusted) as made,
            made.stream("POST", raw.url(server), json=raw.BODY) as response,
        ):
            _pause(FOR_S)
            response.read()

    def check(row: Row) -> None:
        expect_bound(at(row, arrived_by_s(row)), sent.spans[0])

    with serve(sent.script("chat", (SENT_S,)), tls=context) as server:
        settled(lambda: recorded(late, instrument=["httpx"]), check)
