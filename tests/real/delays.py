"""How is a connection, a handshake, a request or an answer delayed by a known time, for real?

`DelayProxy` delays in userspace: the kernels at both ends see short round trips all the while, so
its delays are those of a slow gateway. `delayed_network` makes a true round trip.

What delays a *connect* on Linux, tried out:

- A proxy that accepts late does not: the kernel shakes hands as soon as the SYN arrives.
- A full accept queue does. The kernel drops the SYN and the client sends it again after 1 s, so
  the connect takes 1 s, 2 s with two drops, never anything between (`drop_syns`).
- Holding the SYN on a TUN device does, by any time (`delayed_network(connect_s=)`, needs root).
  Past 1 s the client sends a second SYN, which is held as well and changes nothing.
- A late TLS handshake delays just that (`tls_s`); it is not the connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

from . import netns_run

# One end has the first address; a connection to the second reaches the first, delayed.
SERVER_ADDRESS: Final = "10.77.0.1"
DELAYED_ADDRESS: Final = "10.77.0.2"

_SO_MEMINFO: Final = 55
_MEMINFO_DROPS: Final = 8
_TCPI_RTT: Final = 68
_TCPI_MIN_RTT: Final = 148
_EVENT: Final = re.compile(rb".*?\n\n(?:\r\n)?|.+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """What the kernel says about the round trip of a connection, in seconds."""

    smoothed_s: float
    least_s: float


def round_trips(connection: socket.socket) -> RoundTrips:
    """Read `tcpi_rtt` and `tcpi_min_rtt` of a TCP connection (Linux)."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    (smoothed_us,) = struct.unpack_from("=I", info, _TCPI_RTT)
    (least_us,) = struct.unpack_from("=I", info, _TCPI_MIN_RTT)
    return RoundTrips(smoothed_us / 1e6, least_us / 1e6)


@contextlib.contextmanager
def delayed_network(rtt_s: float, connect_s: float = 0.0, lost: float = 0.0) -> Iterator[str]:
    """Make a network whose round trip takes `rtt_s` and yield the address to connect to.

    Bind the server to `SERVER_ADDRESS`. Works only in a program run by netns_run.py, so that no
    packet for these addresses can ever leave the machine.

    Args:
        rtt_s: Seconds there and back, half of it each way, for every packet.
        connect_s: Seconds more for the first packet of a connection (its SYN).
        lost: The share of packets that do not arrive.
    """
    if os.environ.get(netns_run.NAMESPACE_VARIABLE) != netns_run.namespace():
        raise RuntimeError("delayed_network: run this program with tests/real/netns_run.py")
    values = map(str, (rtt_s / 2, connect_s, lost))
    emulator = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("emulator.py"), *values],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with emulator:
        assert emulator.stdin is not None
        assert emulator.stdout is not None
        try:
            if emulator.stdout.readline() != b"ready\n":
                raise RuntimeError("the network emulator did not start; see its message above")
            yield DELAYED_ADDRESS
        finally:
            emulator.stdin.close()  # it ends at end of file


def self_signed(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """Make a certificate for 127.0.0.1 with the openssl command; return the server's context.

    The second value is the file a client has to trust.
    """
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    files = ("-keyout", key, "-out", certificate)
    subprocess.run(
        ["openssl", "req", "-x509", *kind, *subject, *files], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate


class DelayProxy:
    """A TCP proxy on loopback in a thread of its own; `url` is where clients go.

    It listens while its `with` block runs. Requests and answers are separated by direction, so
    keep-alive works and pipelining does not.
    """

    def __init__(
        self,
        target: str,
        *,
        drop_syns: int = 0,
        tls_s: float = 0.0,
        request_s: float = 0.0,
        response_s: float = 0.0,
        chunk_s: float = 0.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Keep the delays; listen when entered.

        Args:
            target: The URL of the server behind, plain HTTP.
            drop_syns: How many SYNs of each connection to drop, at about 1 s each. Only for
                clients that connect one at a time.
            tls_s: Seconds from the accepted connection to the TLS handshake.
            request_s: Seconds the first bytes of each request are held.
            response_s: Seconds the first bytes of each answer, its headers, are held.
            chunk_s: Seconds each later piece of an answer is held. Events are held one by one,
                also when they arrive together.
            tls: Speak TLS to the clients.
        """
        address = urlsplit(target)
        self._target = (address.hostname, address.port)
        self._drop_syns = drop_syns
        self._tls_s = tls_s
        self._request_s = request_s
        self._response_s = response_s
        self._chunk_s = chunk_s
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="delay-proxy")
        self._tasks: set[asyncio.Task[None]] = set()
        # No backlog: a single waiting connection fills the queue, which is what drop_syns needs.
        backlog = 0 if drop_syns else 128
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=backlog)
        self._listener.settimeout(0)
        self._plug = self._block() if drop_syns else None
        self.port = int(self._listener.getsockname()[1])
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        """Start to accept connections."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._begin(), self._loop).result()
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the listener and every connection."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _begin(self) -> None:
        self._keep(asyncio.create_task(self._accept()))

    async def _end(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()
        if self._plug is not None:
            self._plug.close()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self) -> None:
        while True:
            if self._drop_syns:
                await self._wait_for_drops()
            client, _ = await self._loop.sock_accept(self._listener)
            if self._drop_syns:
                self._plug = self._block()
            self._keep(asyncio.create_task(self._serve(client)))

    def _block(self) -> socket.socket:
        """Fill the accept queue with a connection of our own."""
        return socket.create_connection(self._listener.getsockname())

    async def _wait_for_drops(self) -> None:
        before = _drops(self._listener)
        while _drops(self._listener) - before < self._drop_syns:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.005)
        ours, _ = await self._loop.sock_accept(self._listener)
        ours.close()
        assert self._plug is not None
        self._plug.close()

    async def _serve(self, client: socket.socket) -> None:
        # asyncio leaves this out for sockets it did not make; small pieces would wait for others.
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await _hold(self._tls_s)
        with contextlib.suppress(OSError):
            reader, writer = await _streams(client, self._tls)
            async with contextlib.AsyncExitStack() as opened:
                opened.callback(writer.close)
                server_reader, server_writer = await asyncio.open_connection(*self._target)
                opened.callback(server_writer.close)
                await self._relay(reader, writer, server_reader, server_writer)

    async def _relay(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server_writer: asyncio.StreamWriter,
    ) -> None:
        answering = True  # the next bytes from the client begin a request

        async def pass_requests() -> None:
            nonlocal answering
            while data := await reader.read(2**16):
                if answering:
                    answering = False
                    await _hold(self._request_s)
                server_writer.write(data)
                await server_writer.drain()
            server_writer.write_eof()

        requests = asyncio.create_task(pass_requests())
        try:
            while data := await server_reader.read(2**16):
                for piece in _EVENT.findall(data):
                    await _hold(self._chunk_s if answering else self._response_s)
                    answering = True
                    writer.write(piece)
                    await writer.drain()
        finally:
            requests.cancel()
            await asyncio.gather(requests, return_exceptions=True)


async def _hold(seconds: float) -> None:
    """Wait exactly: the event loop's own timer may be more than 1 ms late."""
    until = time.monotonic() + seconds
    await asyncio.sleep(max(0.0, seconds - 0.002))
    while time.monotonic() < until:  # noqa: ASYNC110 - nothing but time passes
        await asyncio.sleep(0)


async def _streams(
    client: socket.socket, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, protocol = await loop.connect_accepted_socket(
        lambda: asyncio.StreamReaderProtocol(reader), client, ssl=tls
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _drops(listener: socket.socket) -> int:
    """Return how many packets the kernel dropped at this listener, SYNs among them."""
    figures = listener.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 64)
    (dropped,) = struct.unpack_from("=I", figures, 4 * _MEMINFO_DROPS)
    return int(dropped)
