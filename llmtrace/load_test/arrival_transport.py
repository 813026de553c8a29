"""Send requests over HTTP/1.1, and time their responses by when the kernel received each piece.

A client that is late to read still measures the server: its clock stands where what it has read
arrived. And it is late less often: httpx's own transport takes several times as long for a piece.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from typing import Any, Final

from llmtrace.core.arrival import ArrivalClock

# Of which the OpenAI SDK has brought one.
http: Final[Any] = import_module("httpx2" if find_spec("httpx2") else "httpx")

Headers = list[tuple[bytes, bytes]]

_TIMESTAMP_NS: Final = 35  # SO_TIMESTAMPNS of Linux, which `socket` does not name
_TIMESPEC: Final = struct.Struct("=qq")
_ROOM: Final = 64  # for what the kernel reports beside the data
_OK: Final = 200

arrived: ContextVar[int] = ContextVar("llmtrace_bench_arrived", default=0)  # 0: now


class _Clock(ArrivalClock):
    """Monotonic nanoseconds: in a response, those at which what was read had arrived."""

    def __call__(self) -> int:
        return arrived.get() or time.perf_counter_ns()


clock: Final = _Clock()


class _Socket(socket.socket):
    """A socket that knows when the data that was read last had arrived."""

    arrived_ns = 0

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        data, reported, _, _ = self.recvmsg(size, _ROOM, flags)
        self._note(reported)
        return data

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0, /) -> int:  # for TLS
        size, reported, _, _ = self.recvmsg_into([buffer], _ROOM, flags)
        self._note(reported)
        return size

    def _note(self, reported: Any) -> None:
        now, ago = time.perf_counter_ns(), 0
        for _, kind, data in reported:
            if kind == _TIMESTAMP_NS and len(data) >= _TIMESPEC.size:
                seconds, ns = _TIMESPEC.unpack_from(data)
                ago = time.time_ns() - seconds * 1_000_000_000 - ns
        self.arrived_ns = now - max(0, ago)


class _Connection(asyncio.StreamReader):
    """What a server sends, and when each piece of it arrived."""

    transport: Any

    def __init__(self, sock: _Socket, timeout_s: float) -> None:
        super().__init__()
        self._sock, self._timeout_s = sock, timeout_s
        self._fed = self._taken = 0  # bytes
        self._marks: deque[tuple[int, int]] = deque()  # bytes so far, and when the last arrived

    def feed_data(self, data: Any) -> None:
        self._fed += len(data)
        self._marks.append((self._fed, self._sock.arrived_ns or time.perf_counter_ns()))
        super().feed_data(data)

    def get_extra_info(self, name: str) -> Any:
        """Return the socket, as httpcore's network stream does."""
        return self._sock if name == "socket" else None

    async def take(self, reading: Awaitable[bytes]) -> bytes:
        """Return what is read, with the clock at the arrival of its last byte."""
        arrived.set(0)  # whatever ends the wait without data ends it now
        stalled = asyncio.get_running_loop().call_later(self._timeout_s, self._stalled)
        try:
            data = await reading
        except asyncio.IncompleteReadError:
            raise http.RemoteProtocolError("the server closed before its response ended") from None
        except OSError as error:
            raise http.ReadError(str(error)) from error
        finally:
            stalled.cancel()
        self._taken += len(data)
        while self._marks and self._marks[0][0] < self._taken:
            self._marks.popleft()
        if self._marks:
            arrived.set(self._marks[0][1])
        return data

    def _stalled(self) -> None:
        self.set_exception(http.ReadTimeout(f"nothing came for {self._timeout_s:.0f} s"))


class _Body(http.AsyncByteStream):  # type: ignore[misc]
    """The body of a response, whose connection is idle again once all of it was read."""

    def __init__(self, connection: _Connection, headers: Headers, idle: list[_Connection]) -> None:
        self._connection, self._idle = connection, idle
        self._headers = {name.lower(): value.lower() for name, value in headers}
        self._over = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        connection, headers = self._connection, self._headers
        if b"chunked" in headers.get(b"transfer-encoding", b""):
            while size := int((await connection.take(connection.readuntil())).split(b";")[0], 16):
                yield (await connection.take(connection.readexactly(size + 2)))[:-2]
            while (await connection.take(connection.readuntil())).strip():
                pass  # a trailer
        elif length := headers.get(b"content-length"):
            yield await connection.take(connection.readexactly(int(length)))
        else:
            while data := await connection.take(connection.read(1 << 16)):
                yield data
        self._over = headers.get(b"connection") != b"close"

    async def aclose(self) -> None:
        if self._over:
            self._idle.append(self._connection)
        else:
            self._connection.transport.abort()


class ArrivalTransport(http.AsyncBaseTransport):  # type: ignore[misc]
    """A transport of httpx's asynchronous client: no proxies, no retries, no limit."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, str, int | None], list[_Connection]] = {}
        self._tls: Any = None

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request; return its response once the head is there."""
        trace, url = request.extensions.get("trace", _untraced), request.url
        idle = self._idle.setdefault((url.scheme, url.host, url.port), [])
        while idle and (idle[-1].at_eof() or idle[-1].exception() is not None):
            idle.pop()
        timeout_s = request.extensions["timeout"]["read"]
        connection = idle.pop() if idle else await self._connect(url, trace, timeout_s)
        lines = [b"%s: %s\r\n" % header for header in request.headers.raw]
        head = f"{request.method} {url.raw_path.decode()} HTTP/1.1\r\n".encode()
        try:
            await trace("http11.send_request_headers.started", {})
            connection.transport.write(b"".join((head, *lines, b"\r\n", request.content)))
            await trace("http11.send_request_body.complete", {})
            status = 0
            while status < _OK:  # an earlier one only announces it
                head, *lines = (
                    await connection.take(connection.readuntil(b"\r\n\r\n"))
                ).splitlines()
                status = int(head[:12].split(b" ")[1])
        except BaseException as error:
            connection.transport.abort()
            if isinstance(error, IndexError | ValueError):
                raise http.RemoteProtocolError(f"no HTTP response: {head[:80]!r}") from None
            raise
        parts = (line.partition(b":") for line in lines if line)
        headers = [(name, value.strip()) for name, _, value in parts]
        return http.Response(
            status, headers=headers, stream=_Body(connection, headers, idle),
            extensions={"network_stream": connection},
        )  # fmt: skip

    async def _connect(self, url: Any, trace: Any, timeout_s: float) -> _Connection:
        loop, secure = asyncio.get_running_loop(), url.scheme == "https"
        await trace("connection.connect_tcp.started", {})
        try:
            async with asyncio.timeout(timeout_s):
                sock = await _connected(loop, url.host, url.port or (443 if secure else 80))
                await trace("connection.connect_tcp.complete", {})
                tls: dict[str, Any] = {}
                if secure:
                    await trace("connection.start_tls.started", {})
                    self._tls = self._tls or http.create_ssl_context()
                    tls = {"ssl": self._tls, "server_hostname": url.host}
                connection = _Connection(sock, timeout_s)
                connection.transport, _ = await loop.create_connection(
                    lambda: asyncio.StreamReaderProtocol(connection), sock=sock, **tls
                )
                if secure:
                    await trace("connection.start_tls.complete", {})
        except TimeoutError:
            raise http.ConnectTimeout(f"no connection within {timeout_s:.0f} s") from None
        except OSError as error:
            raise http.ConnectError(str(error)) from error
        return connection

    async def aclose(self) -> None:
        """Close what is idle; what is not closes with its response."""
        for connection in chain.from_iterable(self._idle.values()):
            connection.transport.abort()


async def _untraced(*_: Any) -> None:
    """Note nothing: the request is not recorded."""


async def _connected(loop: asyncio.AbstractEventLoop, host: str, port: int) -> _Socket:
    failure = OSError(f"{host} has no address")
    for address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = _Socket(*address[:3])
        sock.settimeout(0)
        if sys.platform == "linux":
            with suppress(OSError):  # without it, when the loop has read it is when it arrived
                sock.setsockopt(socket.SOL_SOCKET, _TIMESTAMP_NS, 1)
        try:
            await loop.sock_connect(sock, address[4])
        except OSError as error:
            sock.close()
            failure = error
        else:
            return sock
    raise failure
