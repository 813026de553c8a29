"""Servers that behave, and that do not, on loopback."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.taking_time import aspend

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answer(body: str | bytes, status: str = "200 OK", headers: str = "") -> bytes:
    """Write a whole HTTP answer that keeps the connection alive."""
    raw = body.encode() if isinstance(body, str) else body
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(raw)}\r\n{headers}\r\n"
    return head.encode() + raw


def always(raw: bytes) -> Handler:
    """Answer every request with the same bytes, on one connection after another."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (await reader.readuntil(b"\r\n\r\n")) and not writer.is_closing():
            writer.write(raw)
            await writer.drain()

    return handle


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take the request and never answer."""
    del writer
    await reader.read()


async def dripping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one byte at a time, without end."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"#")
        await writer.drain()
        await aspend(0.05)


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with lines that never end, as fast as they are taken."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b'a{b="c"} 1\n' * 1000)
        await writer.drain()


async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Promise more than comes."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\na 1\n")
    await writer.drain()
    writer.close()


@asynccontextmanager
async def listening(handle: Handler) -> AsyncIterator[str]:
    """Serve on loopback; yield `http://host:port`."""
    tasks: set[asyncio.Task[None]] = set()

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handle(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(guarded, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def serving(answers: dict[str, tuple[int, str]]) -> Iterator[str]:
    """Serve texts by their path, with or without the query; yield `http://host:port`."""

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path if self.path in answers else self.path.partition("?")[0]
            status, body = answers.get(path, (404, "not found"))
            raw = body.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
