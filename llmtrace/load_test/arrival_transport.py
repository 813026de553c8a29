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
from collections.abc import AsyncIterator
from contextlib import suppress
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

# Of which the OpenAI SDK has brought one.
http: Final[Any] = import_module("httpx2" if find_spec("httpx2") else "httpx")

_TIMESTAMP_NS: Final = 35  # SO_TIMESTAMPNS of Linux, which `socket` does not name
_TIMESPEC: Final = struct.Struct("=qq")
_ROOM: Final = 64  # for what the kernel reports beside the data
_CONNECT_S: Final = 10.0
_NS: Final = 1_000_000_000
_OK: Final = 200
_NO_END: Final = 1 << 62

_arrived: ContextVar[int] = ContextVar("llmtrace_bench_arrived", default=0)


def clock() -> int:
    """Return monotonic nanoseconds: in a response, those at which what was read had arrived."""
    return _arrived.get() or time.perf_counter_ns()


def restart_clock() -> None:
    """Let the clock run again, for the next request."""
    _arrived.set(0)


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
                ago = time.time_ns() - seconds * _NS - ns
        self.arrived_ns = now - max(0, ago)


class _Connection(asyncio.Protocol):
    def __init__(self, sock: _Socket, timeout_s: float) -> None:
        self.sock = sock
        self.lost = False
        self.left = b""  # of what was read, what follows the head of a response
        self._timeout_s = timeout_s
        self._pieces: deque[tuple[bytes, int]] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._pieces.append((data, self.sock.arrived_ns or time.perf_counter_ns()))
        self._wake()

    def connection_lost(self, _: Exception | None) -> None:
        self.lost = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def get_extra_info(self, name: str) -> Any:
        """Return the socket, as httpcore's network stream does."""
        return self.sock if name == "socket" else None

    async def read(self) -> bytes:
        """Return what came next, with the clock at its arrival; nothing at the end."""
        if not self._pieces and not self.lost:
            _arrived.set(0)  # whatever ends the wait without data ends it now
            loop = asyncio.get_running_loop()
            self._waiting = loop.create_future()
            timer = loop.call_later(self._timeout_s, self._wake)
            try:
                await self._waiting
            finally:
                timer.cancel()
        if self._pieces:
            data, at = self._pieces.popleft()
            _arrived.set(at)
            return data
        if not self.lost:
            raise http.ReadTimeout(f"nothing came for {self._timeout_s:.0f} s")
        return b""

    async def head(self) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Return the status and the headers of a response."""
        data, status = b"", 0
        while status < _OK:  # an earlier one only announces it
            while (end := data.find(b"\r\n\r\n")) < 0:
                if not (piece := await self.read()):
                    raise http.RemoteProtocolError("the server closed without a response")
                data += piece
            first, *lines = data[:end].split(b"\r\n")
            data = data[end + 4 :]
            try:
                status = int(first.split(b" ", 2)[1])
            except (IndexError, ValueError):
                raise http.RemoteProtocolError(f"no HTTP response: {first[:80]!r}") from None
        self.left = data
        headers = (line.partition(b":") for line in lines)
        return status, [(name, value.strip()) for name, _, value in headers]


class _Framing:
    """Takes its framing off the body of a response, however its bytes are cut."""

    def __init__(self, headers: list[tuple[bytes, bytes]]) -> None:
        known = {name.lower(): value.lower() for name, value in headers}
        self._chunked = b"chunked" in known.get(b"transfer-encoding", b"")
        self._in_trailer = False
        self._raw = b""
        self._left = 0 if self._chunked else int(known.get(b"content-length", _NO_END))
        self.to_the_end = self._left == _NO_END  # of the connection
        self.over = not self._chunked and self._left == 0

    def __call__(self, data: bytes) -> bytes:
        """Return the content in the next bytes."""
        if not self._chunked:
            self._left -= len(data)
            self.over = self._left <= 0
            return data
        raw, at, content = self._raw + data, 0, []
        while not self.over:
            if self._left:  # of a chunk, and of the line end after it
                part = raw[at : at + self._left]
                content.append(part[: max(0, self._left - 2)])
                at, self._left = at + len(part), self._left - len(part)
                if self._left:
                    break
            if (end := raw.find(b"\r\n", at)) < 0:
                break
            line, at = raw[at:end], end + 2
            if self._in_trailer:
                self.over = not line
            elif size := int(line.partition(b";")[0], 16):
                self._left = size + 2
            else:
                self._in_trailer = True
        self._raw = raw[at:]
        return b"".join(content)


class _Body(http.AsyncByteStream):  # type: ignore[misc]
    """The body of one response, whose connection is used again if all of it was read."""

    def __init__(
        self, connection: _Connection, framing: _Framing, idle: list[_Connection]
    ) -> None:
        self._connection, self._framing, self._idle = connection, framing, idle

    async def __aiter__(self) -> AsyncIterator[bytes]:
        connection, framing = self._connection, self._framing
        piece, connection.left = connection.left, b""
        while True:
            if data := framing(piece):
                yield data
            if framing.over:
                return
            if not (piece := await connection.read()):
                if framing.to_the_end:
                    return
                raise http.RemoteProtocolError("the server closed before the end of its response")

    async def aclose(self) -> None:
        if self._framing.over:
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
        while idle and idle[-1].lost:
            idle.pop()
        timeout_s = request.extensions["timeout"]["read"]
        connection = idle.pop() if idle else await self._connect(url, trace, timeout_s)
        lines = [b"%s: %s\r\n" % header for header in request.headers.raw]
        head = b"%s %s HTTP/1.1\r\n%s\r\n" % (
            request.method.encode(), url.raw_path, b"".join(lines)
        )  # fmt: skip
        await trace("http11.send_request_headers.started", {})
        connection.transport.write(head + request.content)
        await trace("http11.send_request_body.complete", {})
        try:
            status, headers = await connection.head()
        except BaseException:
            connection.transport.abort()
            raise
        return http.Response(
            status, headers=headers, stream=_Body(connection, _Framing(headers), idle),
            extensions={"network_stream": connection},
        )  # fmt: skip

    async def _connect(self, url: Any, trace: Any, timeout_s: float) -> _Connection:
        loop = asyncio.get_running_loop()
        secure = url.scheme == "https"
        await trace("connection.connect_tcp.started", {})
        try:
            async with asyncio.timeout(_CONNECT_S):
                sock = await _connected(loop, url.host, url.port or (443 if secure else 80))
            await trace("connection.connect_tcp.complete", {})
            tls: dict[str, Any] = {}
            if secure:
                await trace("connection.start_tls.started", {})
                self._tls = self._tls or http.create_ssl_context()
                tls = {"ssl": self._tls, "server_hostname": url.host}
            _, connection = await loop.create_connection(
                lambda: _Connection(sock, timeout_s), sock=sock, **tls
            )
            if secure:
                await trace("connection.start_tls.complete", {})
        except TimeoutError:
            raise http.ConnectTimeout(f"no connection within {_CONNECT_S:.0f} s") from None
        except OSError as error:
            raise http.ConnectError(str(error)) from error
        return connection

    async def aclose(self) -> None:
        """Close what is idle; what is not closes with its response."""
        for connection in sum(self._idle.values(), []):
            connection.transport.abort()


async def _untraced(*_: Any) -> None:
    """Note nothing: the request is not recorded."""


async def _connected(loop: asyncio.AbstractEventLoop, host: str, port: int) -> _Socket:
    failure = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        sock = _Socket(family, kind, protocol)
        sock.setblocking(False)
        if sys.platform == "linux":
            with suppress(OSError):  # without it, when the loop has read it is when it arrived
                sock.setsockopt(socket.SOL_SOCKET, _TIMESTAMP_NS, 1)
        try:
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failure = error
        else:
            return sock
    raise failure
