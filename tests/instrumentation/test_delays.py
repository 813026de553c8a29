"""Every injected delay is in its own stage, within 5 % or 2 ms, and nowhere else."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import llmtrace
from llmtrace.core.row import Row
from llmtrace.testing import capture
from tests.support.machine_noise import allowed_s
from tests.support.sse_server import Answer, Request, Server, serve
from tests.support.taking_time import aspend, spend

from . import answers
from .reading import client, method, near, read, recorded, seconds, settled

pytest.importorskip("openai")

DELAY_S = 0.15


def network(row: Row, part: str) -> float | None:
    """Return a part of the network stage in seconds."""
    ns: int | None = getattr(row.timeline.network, part)
    return None if ns is None else ns / 1e9


def delayed(measure: Callable[[], Row], part: str) -> Row:
    """Check that the delay is all in one part of the network stage."""

    def check(row: Row) -> None:
        near(network(row, part), DELAY_S)
        known = row.timeline.network.known
        assert known is not None
        near(seconds(row, "network"), known / 1e9)
        assert known / 1e9 < DELAY_S * 1.3 + allowed_s()
        assert row.e2e_s - known / 1e9 < DELAY_S / 3 + allowed_s()  # and nowhere else

    row = settled(measure, check)
    assert row.outcome == "success"
    assert row.timeline.network.rtt is not None
    return row


# --- the way there -------------------------------------------------------------------------------


@pytest.fixture
def slow_dns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every name resolve slowly, to loopback."""
    plain = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host in {"slow.test", b"slow.test"}:
            spend(DELAY_S)
            host = "127.0.0.1"
        return plain(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.mark.usefixtures("slow_dns")
def test_dns(mode: str, server: Server) -> None:
    """Name resolution is distinguished from connecting."""
    options = {"base_url": f"http://slow.test:{server.port}/v1"}
    row = delayed(lambda: recorded(lambda: read(mode, server, options=options)), "dns")
    connect = network(row, "connect")
    assert connect is not None
    assert connect < DELAY_S / 3


def test_connect(mode: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow TCP handshake is `connect`."""
    if mode == "sync":
        plain = socket.create_connection

        def create_connection(*args: Any, **kwargs: Any) -> Any:
            spend(DELAY_S)
            return plain(*args, **kwargs)

        monkeypatch.setattr(socket, "create_connection", create_connection)
    else:
        loop_class = asyncio.SelectorEventLoop
        aplain = loop_class.sock_connect

        async def sock_connect(self: Any, *args: Any) -> None:
            await aspend(DELAY_S)
            await aplain(self, *args)

        monkeypatch.setattr(loop_class, "sock_connect", sock_connect)
    delayed(lambda: recorded(lambda: read(mode, server)), "connect")


class _SlowHandshake(ssl.SSLContext):
    """Responds to a TLS handshake after a while."""

    def wrap_socket(self, sock: socket.socket, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        spend(DELAY_S)
        return super().wrap_socket(sock, *args, **kwargs)


@pytest.fixture
def tls_server(certificate: Path) -> Iterator[Server]:
    """Serve over TLS, with a slow handshake."""
    context = _SlowHandshake(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with serve(answers.chat(), tls=context) as server:
        yield server


def test_tls(mode: str, tls_server: Server, certificate: Path) -> None:
    """A slow TLS handshake is `tls`."""
    openai = pytest.importorskip("openai")
    trusted = ssl.create_default_context(cafile=str(certificate))
    made = {"sync": "DefaultHttpxClient", "async": "DefaultAsyncHttpxClient"}[mode]

    def ask() -> None:
        http_client = getattr(openai, made)(verify=trusted)
        read(mode, tls_server, options={"http_client": http_client})

    delayed(lambda: recorded(ask), "tls")


def test_waiting_for_a_connection(mode: str, server: Server) -> None:
    """Waiting for the pool's only connection is the client's own wait, in the network stage."""
    openai = pytest.importorskip("openai")
    library = openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0]
    limits = pytest.importorskip(library).Limits(max_connections=1)
    made = {"sync": "DefaultHttpxClient", "async": "DefaultAsyncHttpxClient"}[mode]
    server.play(answers.chat(("x ",) * 4, first_s=0.05, gap_s=0.05))

    async def busy(made: Any) -> None:
        create, call_options = method(made)
        first = await create(**call_options, stream=True)
        started = asyncio.create_task(create(**call_options, stream=True))
        async for _chunk in first:
            pass
        async for _chunk in await started:
            pass

    async def main() -> None:
        http_client = getattr(openai, made)(limits=limits)
        async with client("async", server, http_client=http_client) as asking:
            await busy(asking)

    def sync() -> None:
        http_client = getattr(openai, made)(limits=limits)
        with client("sync", server, http_client=http_client) as asking:
            create, call_options = method(asking)
            with ThreadPoolExecutor(1) as pool:
                first = create(**call_options, stream=True)
                started = pool.submit(lambda: list(create(**call_options, stream=True)))
                list(first)
                started.result()

    def measure() -> tuple[Row, Row]:
        with capture() as rows:
            if mode == "async":
                asyncio.run(main())
            else:
                sync()
        first, second = rows
        return first, second

    def check(both: tuple[Row, Row]) -> None:
        first, second = both
        wait, own = network(second, "client_wait"), network(first, "client_wait")
        assert wait is not None
        assert own is not None
        near(wait, 0.2 + own)
        assert own < 0.05 + allowed_s()
        assert second.stages.network == second.timeline.network.known

    settled(measure, check)


def test_semaphore_of_the_application(server: Server) -> None:
    """Waiting inside the decorated function before the call is no network time.

    It is `client`, a named part of what is unattributed.
    """

    @llmtrace.trace
    async def ask(made: Any, turn: asyncio.Semaphore) -> None:
        async with turn:
            create, call_options = method(made)
            async for _chunk in await create(**call_options, stream=True):
                pass

    async def main() -> None:
        turn = asyncio.Semaphore(1)
        async with client("async", server) as made, turn:
            task = asyncio.create_task(ask(made, turn))
            await aspend(DELAY_S)
            turn.release()
            await task
            await turn.acquire()

    def check(row: Row) -> None:
        assert row.stages.client is not None
        assert row.stages.network is not None
        wait = row.stages.client / 1e9
        assert wait >= DELAY_S
        near(wait, DELAY_S + 0.003)
        assert row.stages.network / 1e9 < DELAY_S / 2 + allowed_s()
        assert row.stages.unattributed >= row.stages.client
        assert row.stages.total == row.e2e_ns

    settled(lambda: recorded(lambda: asyncio.run(main())), check)


# --- the gateway ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({"server-timing": f"gateway;dur={DELAY_S * 1e3}"}, None),
        ({"server-timing": f'db;desc="hit", gw;dur={DELAY_S * 1e3};desc="x, y"'}, None),
        ({"x-litellm-overhead-duration-ms": f"{DELAY_S * 1e3}"}, "litellm"),
    ],
    ids=["server-timing", "among-others", "litellm"],
)
def test_gateway_that_tells(
    mode: str, server: Server, headers: dict[str, str], named: str | None
) -> None:
    """A gateway that reports its own time gets it, and the engine keeps its own."""
    server.play(answers.chat(head_s=DELAY_S, first_s=0.05, headers=headers))
    row = settled(
        lambda: recorded(lambda: read(mode, server)),
        lambda row: near(row.ttft_s, DELAY_S + 0.05),
    )
    near(seconds(row, "gateway"), DELAY_S)
    assert row.stages.sources["gateway"] == "server_timing"
    assert (row.stages.queue, row.stages.prefill) == (1_500_000, 20_250_000)
    assert row.gateway == named
    assert row.stages.inconsistent == ()


def test_engine_that_tells_by_header(mode: str, server: Server) -> None:
    """Queue and prefill may come by `Server-Timing`, where the response does not hold them."""
    timing = {"server-timing": "queue;dur=30, prefill;dur=60.5"}
    server.play(answers.chat(first_s=DELAY_S, metrics=None, headers=timing))
    row = recorded(lambda: read(mode, server))
    assert (row.stages.queue, row.stages.prefill) == (30_000_000, 60_500_000)
    assert row.stages.sources["queue"] == "server_timing"


def test_delivery(mode: str, server: Server) -> None:
    """What is left of the wait once all else is known is `first_chunk`."""
    server.play(answers.chat(first_s=DELAY_S))

    def check(row: Row) -> None:
        known = seconds(row, "network")
        assert known is not None
        near(seconds(row, "first_chunk"), DELAY_S - 0.02175)
        assert row.stages.unattributed == (row.stages.client or 0)

    settled(lambda: recorded(lambda: read(mode, server)), check)


def test_first_byte_and_first_event(mode: str, server: Server) -> None:
    """A keep-alive comment is a byte, and no event."""

    def script(_request: Request, answer: Answer) -> None:
        answer.data(b": keep-alive\n\n")
        answer.wait(DELAY_S)
        answer.event(answers.delta("text"))
        answer.event(answers.delta(finish="stop"))
        answer.event("[DONE]")

    server.play(script)

    def check(row: Row) -> None:
        assert row.first_byte_ns is not None
        assert row.first_event_ns is not None
        near((row.first_event_ns - row.first_byte_ns) / 1e9, DELAY_S)

    settled(lambda: recorded(lambda: read(mode, server)), check)


# --- the application's own marks -----------------------------------------------------------------


def test_marked_time(server: Server) -> None:
    """Time marked as a stage is that stage's, before the response and after it."""
    server.play(answers.chat(first_s=0.05))

    @llmtrace.trace
    def ask(made: Any) -> None:
        with llmtrace.stage("gateway"):
            spend(0.1)
        create, call_options = method(made)
        for _chunk in create(**call_options, stream=True):
            pass
        with llmtrace.render():
            spend(0.05)

    def act() -> None:
        with client("sync", server) as made:
            ask(made)

    def check(row: Row) -> None:
        near(seconds(row, "gateway"), 0.1)
        near(seconds(row, "render"), 0.05)

    settled(lambda: recorded(act), check)
