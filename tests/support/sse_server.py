"""What does a client see when its server behaves exactly like this?

A small threaded HTTP/1.1 server on loopback. Each request is answered by a script: a function that
is given the request and an `Answer` to write to, with delays, cuts and errors wherever it likes.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO


@dataclass(frozen=True, slots=True)
class Request:
    """What a client sent: header names in lower case, the body parsed where it is JSON."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


class Cut(Exception):  # noqa: N818 - what the script does, not what went wrong
    """Ends a script whose connection is gone."""


class Answer:
    """The answer to one request, as it is written.

    Args:
        sock: the client's connection.
        stop: set when the server stops, so that no script outlives it.

    Attributes:
        sent_at: when each piece of the body went out, by `time.perf_counter`.
    """

    def __init__(self, sock: socket.socket, stop: threading.Event) -> None:
        self._sock = sock
        self._stop = stop
        self._open = False
        self.sent_at: list[float] = []

    def wait(self, seconds: float) -> None:
        """Do nothing for so long."""
        if self._stop.wait(seconds):
            raise Cut

    def head(self, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Send the status line and headers of an answer whose body follows in pieces."""
        fields = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
        self._send(_head(status, fields | dict(headers or {})))
        self._open = True

    def data(self, payload: bytes) -> None:
        """Send a piece of the body."""
        if not self._open:
            self.head()
        self.sent_at.append(time.perf_counter())
        self._send(b"%x\r\n%s\r\n" % (len(payload), payload))

    def event(self, data: object, name: str | None = None) -> None:
        """Send one server-sent event; what is not a string becomes JSON."""
        text = data if isinstance(data, str) else json.dumps(data)
        prefix = "" if name is None else f"event: {name}\n"
        self.data(f"{prefix}data: {text}\n\n".encode())

    def whole(
        self, body: object, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a whole JSON answer at once."""
        payload = json.dumps(body).encode()
        fields = {"content-type": "application/json", "content-length": str(len(payload))}
        self._send(_head(status, fields | dict(headers or {})) + payload)

    def end(self) -> None:
        """End a body sent in pieces. A script that returns does it, too."""
        if self._open:
            self._open = False
            self._send(b"0\r\n\r\n")

    def drop(self) -> None:
        """Close the connection in the middle of things."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        raise Cut

    def reset(self) -> None:
        """Abort the connection, as a crashed peer does: the client sees a reset."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()
        raise Cut

    def _send(self, payload: bytes) -> None:
        try:
            self._sock.sendall(payload)
        except OSError as error:  # the client went away: no response can be sent
            raise Cut from error


Script = Callable[[Request, Answer], None]


@dataclass(slots=True)
class Server:
    """A running server: its address, what it was asked, and what it answers next."""

    port: int
    scheme: str = "http"
    requests: list[Request] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    connections: int = 0
    _scripts: list[Script] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def root(self) -> str:
        """The address without a path, as Anthropic's client wants it."""
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The address with `/v1`, as OpenAI's client wants it."""
        return f"{self.root}/v1"

    def play(self, *scripts: Script) -> None:
        """Answer the next requests by these scripts in turn, and all later ones by the last."""
        with self._lock:
            self._scripts = list(scripts)
            self.requests = []
            self.answers = []

    def _next(self, request: Request, answer: Answer) -> Script:
        with self._lock:
            self.requests.append(request)
            self.answers.append(answer)
            return self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]


@contextmanager
def serve(*scripts: Script, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """Serve scripts on a free port of loopback until the block is left."""
    stop = threading.Event()
    open_connections: set[socket.socket] = set()
    threads: list[threading.Thread] = []
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    server = Server(listener.getsockname()[1], "http" if tls is None else "https")
    server.play(*scripts)

    def connection(plain: socket.socket) -> None:
        try:
            sock = plain if tls is None else tls.wrap_socket(plain, server_side=True)
        except OSError:
            plain.close()
            return
        open_connections.add(sock)
        # A client may drop the connection at any point, and a script that is cut has dropped it.
        with suppress(OSError, Cut), sock, sock.makefile("rb") as incoming:
            while (request := _read(incoming)) is not None:
                answer = Answer(sock, stop)
                server._next(request, answer)(request, answer)
                answer.end()
        open_connections.discard(sock)

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server.connections += 1
            threads.append(threading.Thread(target=connection, args=(sock,), daemon=True))
            threads[-1].start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield server
    finally:
        stop.set()
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join(5)
        for sock in tuple(open_connections):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(5)


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} whatever", *(f"{name}: {it}" for name, it in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def _read(incoming: BinaryIO) -> Request | None:
    """Read one request, or return `None` at the end of the connection."""
    line = incoming.readline().split()
    if len(line) < 2:
        return None
    headers = {}
    while (field_line := incoming.readline().strip()) != b"":
        name, _, value = field_line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    payload = incoming.read(int(headers.get("content-length", 0)))
    try:
        body = json.loads(payload)
    except ValueError:
        body = payload
    return Request(line[0].decode(), line[1].decode(), headers, body)
