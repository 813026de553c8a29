"""Serve chat completions at known times, fast enough for any load generator; note when.

One process, one core, no HTTP library: a request costs it some hundred microseconds. Run as
`python -m tests.bench.paced_server [--port N] [--cpu N] [--first S] [--gap S]`; it prints its
port. `GET /stats` returns what came since the last one, with the times of it on the wire.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from tests.bench.replay import events

FIRST_S: Final = 0.04  # from the request to the first event, unless another is given
GAP_S: Final = 0.005
_TIMESTAMP_NS: Final = 35  # SO_TIMESTAMPNS of Linux, which `socket` does not name
TOKENS: Final = 16
MODEL: Final = "paced"

_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _stream() -> list[bytes]:
    """Return what is written at once, then after each gap: the role goes with the first token."""
    role, *rest = events(TOKENS)
    tokens, ends = rest[:TOKENS], rest[TOKENS:]
    return [
        _HEAD + _chunk(role) + _chunk(tokens[0]),
        *map(_chunk, tokens[1:-1]),
        _chunk(tokens[-1]) + b"".join(map(_chunk, ends)) + b"0\r\n\r\n",
    ]


def _whole(body: Any) -> bytes:
    data = json.dumps(body).encode()
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


class _Socket(socket.socket):
    """A socket that knows when the kernel had received what was read last."""

    arrived = 0.0

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        data, reported, _, _ = self.recvmsg(size, 64, flags)
        self.arrived = time.monotonic()
        for _, kind, stamp in reported:
            if kind == _TIMESTAMP_NS:
                seconds, ns = struct.unpack_from("=qq", stamp)
                self.arrived -= (time.time_ns() - seconds * 1_000_000_000 - ns) / 1e9
        return data


class _Seen:
    """When requests arrived since this was last read, and what serving them took of the CPU.

    `wire` has, by a request's `x-request-id`, when the kernel had received it and when each token
    was written, in seconds of the monotonic clock, which all processes of a machine share.
    """

    def __init__(self) -> None:
        self.arrivals: list[float] = []
        self.wire: dict[str, list[float]] = {}
        self.since = (time.monotonic(), time.process_time())

    def read(self) -> dict[str, Any]:
        """Return it and begin anew."""
        wall, cpu = (now - then for now, then in zip(
            (time.monotonic(), time.process_time()), self.since, strict=True))  # fmt: skip
        found = {"arrivals": self.arrivals, "wire": self.wire, "cpu": cpu / max(wall, 1e-9)}
        self.__init__()  # type: ignore[misc]
        return found


class _Connection(asyncio.Protocol):
    parts: Final = _stream()
    answer: Final = _whole({
        "id": "1", "object": "chat.completion", "created": 1, "model": MODEL,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "word"},
                     "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
    })  # fmt: skip
    models: Final = _whole({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    def __init__(self, sock: _Socket, seen: _Seen, first_s: float, gap_s: float) -> None:
        self._sock, self._seen, self._first_s, self._gap_s = sock, seen, first_s, gap_s
        self._got = b""
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._got += data
        while b"\r\n\r\n" in self._got:
            head, rest = self._got.split(b"\r\n\r\n", 1)
            low = head.lower()
            at = low.find(b"content-length:")
            length = int(low[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(rest) < length:
                return
            body, self._got = rest[:length], rest[length:]
            named = low.find(b"x-request-id:")
            name = head[named + 13 :].split(b"\r\n", 1)[0].strip() if named >= 0 else b""
            self._answer(head.split(b" ", 2)[1], body, name.decode())

    def _answer(self, path: bytes, body: bytes, name: str) -> None:
        if path == b"/stats":
            self._transport.write(_whole(self._seen.read()))
        elif path.endswith(b"/chat/completions"):
            now = self._loop.time()
            self._seen.arrivals.append(now)
            if b'"stream":true' in body.replace(b" ", b""):
                wire = self._seen.wire.setdefault(name, [self._sock.arrived])
                due = now + self._first_s
                self._loop.call_at(due, self._write, due, 0, wire)
            else:
                self._transport.write(self.answer)
        else:  # of /v1/models, and of whatever asks whether the server is there
            self._transport.write(self.models)

    def _write(self, due: float, place: int, wire: list[float]) -> None:
        if self._transport.is_closing():
            return
        wire.append(self._loop.time())
        self._transport.write(self.parts[place])
        if place + 1 < len(self.parts):
            due += self._gap_s  # by the plan: what was late does not make the next one late
            self._loop.call_at(due, self._write, due, place + 1, wire)


async def _serve(port: int, first_s: float, gap_s: float) -> None:
    seen = _Seen()
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", port), backlog=4096) as listener:
        listener.settimeout(0)
        if sys.platform == "linux":
            listener.setsockopt(socket.SOL_SOCKET, _TIMESTAMP_NS, 1)
        print(listener.getsockname()[1], flush=True)
        while True:
            plain, _ = await loop.sock_accept(listener)
            sock = _Socket(fileno=plain.detach())
            sock.settimeout(0)
            await loop.connect_accepted_socket(
                partial(_Connection, sock, seen, first_s, gap_s), sock
            )


@contextmanager
def paced(*options: object) -> Iterator[str]:
    """Serve from a process of its own; yield the address without a path."""
    program = [sys.executable, "-m", "tests.bench.paced_server", *map(str, options)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


def stats(url: str) -> Any:
    """Return what came since this was last called, as `/stats` has it."""
    with urllib.request.urlopen(f"{url}/stats", timeout=10) as page:
        return json.load(page)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--cpu", type=int)
    parser.add_argument("--first", type=float, default=FIRST_S)
    parser.add_argument("--gap", type=float, default=GAP_S)
    given = parser.parse_args()
    if given.cpu is not None:
        os.sched_setaffinity(0, {given.cpu})
    asyncio.run(_serve(given.port, given.first, given.gap))
