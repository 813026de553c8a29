"""Does the load test's transport read HTTP however it is cut, and time it by its arrival?"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import sys
import time
from contextlib import suppress

import pytest

from llmtrace.load_test.arrival_transport import ArrivalTransport, arrived, clock, http
from tests.support.certificates import needs_openssl, self_signed
from tests.support.waiting import auntil

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


async def closed(writer):
    """Close a connection, and wait until it is, however the other side ends it."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def exchange(*answers, tls=None):
    """Send a request for each answer, given in pieces; return the bodies, and the connections."""
    connections = []
    scheme = "http" if tls is None else "https"

    async def run():
        ended = asyncio.Event()

        async def serve(reader, writer):
            connections.append(writer)
            for pieces in answers:
                await reader.readuntil(b"\r\n\r\n")
                for piece in pieces:
                    writer.write(piece)
                    await asyncio.sleep(0)
            await closed(writer)
            ended.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
        url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        found = []
        async with server, http.AsyncClient(transport=ArrivalTransport(), timeout=5.0) as client:
            try:
                for _ in answers:
                    response = await client.get(url)
                    found.append(response.content)
            finally:
                await ended.wait()
        return found

    return asyncio.run(run()), len(connections)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_body_in_chunks_is_read_however_it_is_cut(size):
    """With what may stand beside a chunk's size, and with a trailer."""
    sent = CHUNKED + b"5\r\nhello\r\n6;x=1\r\n world\r\n0\r\nx-end: 1\r\n\r\n"
    pieces = [sent[at : at + size] for at in range(0, len(sent), size)]

    bodies, connections = exchange(pieces, pieces)

    assert bodies == [b"hello world"] * 2
    assert connections == 1


def test_a_body_has_its_length_or_ends_with_its_connection():
    """And an announcement before the response is none."""
    early = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
    sized = [early, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n", b"hi"]
    last = [b"HTTP/1.1 200 OK\r\n\r\n", b"to the ", b"end"]

    assert exchange(sized, last) == ([b"hi", b"to the end"], 1)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ([CHUNKED, b"5\r\nhel"], "closed before"),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", b"hi"], "closed before"),
        ([], "closed before"),
        ([b"220 mail.example\r\n\r\n"], "no HTTP response"),
    ],
)
def test_a_response_that_breaks_off_is_an_error(answer, problem):
    """As httpx's own transport has it."""
    with pytest.raises(http.RemoteProtocolError, match=problem):
        exchange(answer)


def test_an_idle_connection_that_was_reset_is_not_used_again():
    """As by a proxy that forgets it: the next request opens another one."""
    linger = struct.pack("ii", 1, 0)  # so that closing sends a reset

    async def run():
        opened = []

        async def serve(reader, writer):
            opened.append(writer)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi")
            await writer.drain()
            await answered.wait()
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
            answered.clear()

        answered = asyncio.Event()
        transport = ArrivalTransport()
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with server, http.AsyncClient(transport=transport, timeout=5.0) as client:
            for _ in range(2):
                assert (await client.get(url)).content == b"hi"
                answered.set()
                [[connection]] = transport._idle.values()
                await auntil(lambda connection=connection: connection.exception() is not None)
        return len(opened)

    assert asyncio.run(run()) == 2


def test_a_server_that_is_not_there_is_an_error():
    """With the address that was tried."""

    async def run():
        async with http.AsyncClient(transport=ArrivalTransport(), timeout=5.0) as client:
            await client.get("http://127.0.0.1:9/")

    with pytest.raises(http.ConnectError, match=r"127\.0\.0\.1"):
        asyncio.run(run())


@pytest.fixture
def tls(tmp_path, monkeypatch):
    """Return a server's side of TLS, whose certificate signs itself and is trusted."""
    certificate, key = self_signed(tmp_path)
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(certificate, key)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    return made


@needs_openssl
def test_tls_is_spoken_over_one_connection(tls):
    """As plain HTTP is, however its records cut the response."""
    sent = [CHUNKED, b"5\r\nhello\r\n", b"0\r\n\r\n"]
    assert exchange(sent, sent, tls=tls) == ([b"hello"] * 2, 1)


@needs_openssl
def test_a_server_whose_certificate_is_not_trusted_is_an_error(tls, monkeypatch):
    """It is sent nothing."""
    monkeypatch.delenv("SSL_CERT_FILE")
    sent = []

    async def run():
        async def serve(reader, writer):
            sent.append(await reader.read())

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with server, http.AsyncClient(transport=ArrivalTransport(), timeout=5.0) as client:
            await client.get(url)

    with pytest.raises(http.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(run())
    assert sent == []


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels do not tell")
@pytest.mark.parametrize("secure", [False, pytest.param(True, marks=needs_openssl)])
def test_the_clock_stands_where_the_data_arrived(secure, request):
    """A client that was busy meanwhile is not charged to the server."""
    seen = {}
    context = request.getfixturevalue("tls") if secure else None
    scheme = "https" if secure else "http"

    async def run():
        asked, sent, ended, over = (asyncio.Event() for _ in range(4))

        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n")
            await asked.wait()
            writer.write(b"late")
            sent.set()
            await ended.wait()
            await closed(writer)
            over.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with server, http.AsyncClient(transport=ArrivalTransport(), timeout=5.0) as client:
            response = await client.send(client.build_request("GET", url), stream=True)
            asked.set()
            await sent.wait()
            seen["written"] = time.perf_counter_ns()
            seen["head"] = clock()
            while time.perf_counter_ns() < seen["written"] + 100_000_000:
                pass
            await response.aread()
            seen["body"] = clock()
            ended.set()
            await over.wait()
        arrived.set(0)

    for _ in range(5):  # a kernel begins to note arrivals a moment after it was first asked to
        asyncio.run(run())
        if seen["body"] <= seen["written"]:
            break
    assert seen["head"] <= seen["body"] <= seen["written"]
