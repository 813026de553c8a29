"""A client's own set-up (hooks that raise, redirects, proxies) is measured correctly."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

import llmtrace
from llmtrace.core.row import Row
from llmtrace.semconv.convert import to_attributes
from llmtrace.testing import capture
from tests.support.sse_server import Answer, Request, Server
from tests.support.taking_time import spend

from . import answers
from .raw import BODY, CLIENTS, no_tls, url
from .reading import settled

MODULES = ("openai", "httpx", "httpx2", "aiohttp")
DELAY_S = 0.1
SAID = {"retry-after": "7", "x-ratelimit-remaining-requests": "0"}
HTTPX = [(library, mode) for library in ("httpx", "httpx2") for mode in ("sync", "async")]


class Mine(Exception):  # noqa: N818 - not ours to name
    """What an application's own hook raises."""


def refused(_: Request, answer: Answer) -> None:
    """Turn a request away, after a while."""
    answer.wait(DELAY_S)
    answer.whole({"error": {"message": "slow down"}}, 429, SAID)


def moved(_: Request, answer: Answer) -> None:
    """Send a client on, after a while."""
    answer.wait(DELAY_S)
    answer.whole({}, 307, {"location": "/v1/chat/completions"})


def raised_by(act: Callable[[], object]) -> BaseException | None:
    """Do something, and return what it raised."""
    try:
        act()
    except Exception as error:
        return error
    return None


def httpx_client(library: str, mode: str, **options: Any) -> Any:
    """Make a client of httpx or httpx2."""
    module = pytest.importorskip(library)
    made = module.Client if mode == "sync" else module.AsyncClient
    return made(verify=no_tls(), **options)


def over_httpx(library: str, mode: str, address: str, **options: Any) -> None:
    """Send one request, and read the stream."""

    def ask() -> None:
        with (
            httpx_client(library, mode, **options) as made,
            made.stream("POST", address, json=BODY) as response,
        ):
            response.read()

    async def main() -> None:
        async with (
            httpx_client(library, mode, **options) as made,
            made.stream("POST", address, json=BODY) as response,
        ):
            await response.aread()

    ask() if mode == "sync" else asyncio.run(main())


def over_aiohttp(address: str, *, redirects: bool = True, **options: Any) -> None:
    """Send one request, and read the stream."""
    aiohttp = pytest.importorskip("aiohttp")

    async def main() -> None:
        async with (
            aiohttp.ClientSession(**options) as session,
            session.post(address, json=BODY, allow_redirects=redirects) as response,
        ):
            await response.read()

    asyncio.run(main())


def hook(mode: str, error: type[Exception] | None) -> Callable[[Any], Any]:
    """Make httpx's own recipe of a response hook; with an error of the application's, another."""

    def check(response: Any) -> None:
        if error is None:
            response.raise_for_status()
        elif response.status_code >= 400:
            failed = error(response.status_code)
            failed.response = response  # type: ignore[attr-defined]
            raise failed

    async def acheck(response: Any) -> None:
        check(response)

    return check if mode == "sync" else acheck


def one_refused(act: Callable[[], object]) -> Row:
    """Check that a request was recorded as refused by the server."""
    with capture(instrument=MODULES) as rows:
        assert raised_by(act) is not None
    [row] = rows
    assert (row.outcome, row.http_status, row.response_headers) == ("error", 429, SAID)
    [attempt] = row.attempt_log
    assert (attempt.status, attempt.error_type) == (429, None)
    assert attempt.retry_after_ns == 7_000_000_000
    assert row.stages.gateway >= DELAY_S * 1e9
    assert (row.stages.network or 0) < DELAY_S * 1e9 / 2
    return row


@pytest.mark.parametrize("error", [None, Mine], ids=["httpx's", "own"])
@pytest.mark.parametrize(("library", "mode"), HTTPX)
def test_a_hook_that_raises(library: str, mode: str, error: Any, server: Server) -> None:
    """The server rejected it, whichever library raises: that is not network time."""
    server.play(refused)
    hooks = {"response": [hook(mode, error)]}
    one_refused(lambda: over_httpx(library, mode, url(server), event_hooks=hooks))


async def by_itself(response: Any) -> None:
    """Raise as an application likes."""
    if response.status >= 400:
        raise Mine(response.status)


@pytest.mark.parametrize("check", [True, by_itself], ids=["aiohttp's", "own"])
def test_a_session_that_raises(check: Any, server: Server) -> None:
    """As aiohttp itself raises, or as a coroutine of the application's does."""
    server.play(refused)
    one_refused(lambda: over_aiohttp(url(server), raise_for_status=check))


@pytest.mark.parametrize("check", [True, by_itself], ids=["aiohttp's", "own"])
def test_a_session_that_raises_nothing(check: Any, server: Server) -> None:
    """A response that passes is recorded once, by its own headers' time."""
    server.play(answers.chat(head_s=DELAY_S))
    with capture(instrument=MODULES) as rows:
        over_aiohttp(url(server), raise_for_status=check)
    [row] = rows
    assert (row.outcome, row.http_status, row.attempts) == ("success", 200, 1)
    assert row.answered_ns >= DELAY_S * 1e9


def test_a_hook_that_raises_before_a_retry(server: Server) -> None:
    """A decorated function that retries spent that time with the gateway, and in backoff."""
    server.play(refused, answers.chat())

    @llmtrace.trace
    def ask() -> None:
        hooks = {"response": [hook("sync", None)]}
        with httpx_client("httpx", "sync", event_hooks=hooks) as made:
            for _ in range(2):
                try:
                    with made.stream("POST", url(server), json=BODY) as response:
                        response.read()
                        return
                except Exception:
                    spend(DELAY_S)

    with capture(instrument=MODULES) as rows:
        ask()
    [row] = rows
    assert (row.outcome, row.attempts) == ("success", 2)
    assert row.stages.gateway >= 2 * DELAY_S * 1e9


@pytest.mark.parametrize("client", CLIENTS)
def test_a_redirect_that_is_not_followed(client: str, server: Server) -> None:
    """It is no response, under any client."""
    library, mode = client.split("-")
    server.play(moved)
    with capture(instrument=MODULES) as rows:
        if library == "aiohttp":
            over_aiohttp(url(server), redirects=False)
        else:
            over_httpx(library, mode, url(server))
    [row] = rows
    assert (row.outcome, row.error_type, row.http_status) == ("error", "307", 307)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_redirect_that_is_followed(client: str, server: Server) -> None:
    """What the first server took is not the client's wait for a connection."""
    library, mode = client.split("-")

    def act() -> Row:
        server.play(moved, answers.chat())
        with capture(instrument=MODULES) as rows:
            if library == "aiohttp":
                over_aiohttp(url(server))
            else:
                over_httpx(library, mode, url(server), follow_redirects=True)
        [row] = rows
        return row

    def check(row: Row) -> None:
        network = row.timeline.network
        assert (row.outcome, row.http_status, row.attempts) == ("success", 200, 1)
        assert network.known < DELAY_S * 1e9 / 2
        assert network.connect is not None
        assert row.e2e_s > DELAY_S

    settled(act, check)


@pytest.fixture
def proxy() -> Iterator[str]:
    """Serve `CONNECT`, and take a while for each tunnel."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pipe(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(65536):
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)

    def tunnel(client: socket.socket) -> None:
        with closing(client), client.makefile("rb") as lines:
            host, _, port = lines.readline().split()[1].decode().partition(":")
            while lines.readline().strip():
                pass
            spend(DELAY_S)
            with socket.create_connection((host, int(port))) as server:
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                back = threading.Thread(target=pipe, args=(server, client), daemon=True)
                back.start()
                pipe(client, server)
                back.join()

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=tunnel, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.mark.parametrize(("library", "mode"), HTTPX)
def test_a_proxys_tunnel(
    library: str, mode: str, proxy: str, quick_tls_server: Server, trusted: Any
) -> None:
    """It is part of connecting; over an open connection nothing of it is left."""
    module = pytest.importorskip(library)

    def over(made: Any) -> None:
        for _ in range(2):
            with made.stream("POST", url(quick_tls_server), json=BODY) as response:
                response.read()

    async def aover() -> None:
        async with module.AsyncClient(verify=trusted, proxy=proxy) as made:
            for _ in range(2):
                async with made.stream("POST", url(quick_tls_server), json=BODY) as response:
                    await response.aread()

    def act() -> tuple[Row, ...]:
        with capture(instrument=MODULES) as rows:
            if mode == "async":
                asyncio.run(aover())
            else:
                with module.Client(verify=trusted, proxy=proxy) as made:
                    over(made)
        return tuple(rows)

    def check(rows: tuple[Row, ...]) -> None:
        first, second = (row.timeline.network for row in rows)
        assert DELAY_S * 1e9 <= first.connect < 1.5 * DELAY_S * 1e9
        assert first.tls < DELAY_S * 1e9 / 2
        assert first.rtt < DELAY_S * 1e9 / 2
        assert second.connect == second.tls == 0
        assert rows[0].stages.network >= DELAY_S * 1e9
        assert rows[0].stages.total == rows[0].e2e_ns

    settled(act, check)


def test_an_ipv6_server_is_named_as_in_a_url() -> None:
    """Its address is in brackets before the port, so that the two can be separated again."""
    httpx = pytest.importorskip("httpx")
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json={"choices": []}))
    with capture() as rows, httpx.Client(transport=transport) as client:
        client.post("http://[::1]:8000/v1/chat/completions", json={"model": "tiny"})

    [row] = rows
    assert row.server == "[::1]:8000"
    attributes = to_attributes(row)
    assert (attributes["server.address"], attributes["server.port"]) == ("::1", 8000)
