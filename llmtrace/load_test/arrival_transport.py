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
from collections.abc import AsyncIterator, Awaitable, Callable
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
_NS: Final = 1_000_000_000
_OK: Final = 200

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


class _Connection(asyncio.StreamReader):
    """What a server sends, and when each piece of it arrived."""

    def __init__(self, sock: _Socket) -> None:
        super().__init__()
        self._sock = sock
        self._fed = self._taken = 0  # bytes
        self._marks: deque[tuple[int, int]] = deque()  # bytes so far, and when the last arrived
        self.idle_since = 0.0  # of the loop's clock
        self.transport: Any = None

    def feed_data(self, data: bytes) -> None:
        self._fed += len(data)
        self._marks.append((self._fed, self._sock.arrived_ns or time.perf_counter_ns()))
        super().feed_data(data)

    def get_extra_info(self, name: str) -> Any:
        """Return the socket, as httpcore's network stream does."""
        return self._sock if name == "socket" else None

    async def take(self, reading: Awaitable[bytes], timeout_s: float) -> bytes:
        """Return what is read, with the clock at the arrival of its last byte."""
        _arrived.set(0)  # whatever ends the wait without data ends it now
        stalled = asyncio.get_running_loop().call_later(timeout_s, self._stalled, timeout_s)
        try:
            data = await reading
        except asyncio.IncompleteReadError:
            msg = "the server closed the connection before the end of its response"
            raise http.RemoteProtocolError(msg) from None
        except OSError as error:
            raise http.ReadError(str(error)) from error
        finally:
            stalled.cancel()
        self._taken += len(data)
        while self._marks and self._marks[0][0] < self._taken:
            self._marks.popleft()
        if self._marks:
            _arrived.set(self._marks[0][1])
        return data

    def _stalled(self, timeout_s: float) -> None:
        self.set_exception(http.ReadTimeout(f"nothing came for {timeout_s:.0f} s"))


class _Body(http.AsyncByteStream):  # type: ignore[misc]
    """The body of a response; `done` gets whether its connection can be used again."""

    def __init__(
        self,
        take: Callable[[Awaitable[bytes]], Awaitable[bytes]],
        connection: _Connection,
        headers: list[tuple[bytes, bytes]],
        done: Callable[[bool], None],
    ) -> None:
        self._take, self._connection, self._done = take, connection, done
        self._headers = {name.lower(): value.lower() for name, value in headers}
        self._over = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        take, connection, headers = self._take, self._connection, self._headers
        if b"chunked" in headers.get(b"transfer-encoding", b""):
            while size := int((await take(connection.readuntil())).partition(b";")[0], 16):
                yield (await take(connection.readexactly(size + 2)))[:-2]
            while (await take(connection.readuntil())).strip():
                pass  # a trailer
        elif length := headers.get(b"content-length"):
            yield await take(connection.readexactly(int(length)))
        else:
            while data := await take(connection.read(1 << 16)):
                yield data
        self._over = True

    async def aclose(self) -> None:
        self._done(self._over and self._headers.get(b"connection") != b"close")


class ArrivalTransport(http.AsyncBaseTransport):  # type: ignore[misc]
    """A transport of httpx's asynchronous client: no proxies, no retries, no limit."""

    def __init__(self) -> None:
        self._idle: dict[tuple[str, str, int | None], list[_Connection]] = {}
        self._tls: Any = None

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request; return its response once the head is there."""
        trace, url = request.extensions.get("trace", _untraced), request.url
        timeout_s = request.extensions["timeout"]["read"]
        idle = self._idle.setdefault((url.scheme, url.host, url.port), [])
        while idle and idle[-1].at_eof():
            idle.pop()
        connection = idle.pop() if idle else await self._connect(url, trace, timeout_s)

        def take(reading: Awaitable[bytes]) -> Awaitable[bytes]:
            return connection.take(reading, timeout_s)

        def done(reusable: bool) -> None:
            if reusable:
                idle.append(connection)
            else:
                connection.transport.abort()

        lines = [b"%s: %s\r\n" % header for header in request.headers.raw]
        head = f"{request.method} {url.raw_path.decode()} HTTP/1.1\r\n".encode()
        await trace("http11.send_request_headers.started", {})
        connection.transport.write(b"".join((head, *lines, b"\r\n", request.content)))
        await trace("http11.send_request_body.complete", {})
        try:
            status = 0
            while status < _OK:  # an earlier one only announces it
                first, *lines = (await take(connection.readuntil(b"\r\n\r\n"))).splitlines()
                status = int(first.split(b" ", 2)[1])
        except (IndexError, ValueError):
            done(reusable=False)
            raise http.RemoteProtocolError(f"no HTTP response: {first[:80]!r}") from None
        except BaseException:
            done(reusable=False)
            raise
        parts = (line.partition(b":") for line in lines if line)
        headers = [(name, value.strip()) for name, _, value in parts]
        return http.Response(
            status, headers=headers, stream=_Body(take, connection, headers, done),
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
                connection = _Connection(sock)
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
        for connection in sum(self._idle.values(), []):
            connection.transport.abort()


async def _untraced(*_: Any) -> None:
    """Note nothing: the request is not recorded."""


async def _connected(loop: asyncio.AbstractEventLoop, host: str, port: int) -> _Socket:
    failure = OSError(f"{host} has no address")
    for address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = _Socket(*address[:3])
        sock.setblocking(False)
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
