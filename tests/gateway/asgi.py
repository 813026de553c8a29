"""An ASGI server and its client in one, without a network: what goes in, what comes out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from llmtrace import gateway
from llmtrace.core.row import Row
from llmtrace.core.span import Span
from llmtrace.instrumentation.headers.server_timing import Entry, entries
from llmtrace.testing import FakeClock
from tests.support.taking_time import forever

App = Callable[[Any, Any, Any], Awaitable[None]]
LLMTRACE = {"x-llmtrace-accept": "timing-comments"}
SSE = [(b"content-type", b"text/event-stream; charset=utf-8")]
ROLE = b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n'
WORD = b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


class Spans:
    """A sink that keeps spans and rows apart."""

    every_row = False
    spans = True

    def __init__(self) -> None:
        self.finished: list[Span] = []
        self.rows: list[Row] = []

    def write(self, item: Row | Span) -> None:
        """Take one."""
        if isinstance(item, Span):
            self.finished.append(item)
        else:
            self.rows.append(item)

    @property
    def one(self) -> Span:
        """The only span there is."""
        [span] = self.finished
        return span


@dataclass
class Answer:
    """What came out."""

    messages: list[Any] = field(default_factory=list)
    error: BaseException | None = None

    @property
    def status(self) -> int:
        """The response's status."""
        return int(self.messages[0]["status"])

    def header(self, name: str) -> list[str]:
        """Return all values of a header."""
        return [v.decode() for k, v in self.messages[0]["headers"] if k == name.encode()]

    @property
    def bodies(self) -> list[bytes]:
        """The pieces of the body."""
        return [m.get("body", b"") for m in self.messages if m["type"] == "http.response.body"]

    @property
    def body(self) -> bytes:
        """All of it."""
        return b"".join(self.bodies)

    @property
    def timing(self) -> list[Entry]:
        """The timing entries of `Server-Timing`."""
        value = ", ".join(self.header("server-timing"))
        return [entry for entry in entries(value) if entry.name != "traceparent"]

    @property
    def comments(self) -> list[list[Entry]]:
        """The timing entries of each comment."""
        lines = self.body.split(b"\n")
        found = [line for line in lines if line.startswith(b":\tllmtrace ")]
        return [list(entries(line.removeprefix(b":\tllmtrace ").decode())) for line in found]


def ms(timing: Iterable[Entry], name: str = "gateway") -> list[float | None]:
    """Return the durations of a name, in milliseconds."""
    return [None if e.ns is None else e.ns / 1e6 for e in timing if e.name == name]


def ask(
    app: App,
    headers: Mapping[str, str] | None = None,
    *,
    body: Iterable[bytes] = (b"{}",),
    path: str = "/v1/chat/completions",
    method: str = "POST",
    receive: Callable[[], Awaitable[Any]] | None = None,
    send: Callable[[Any], Awaitable[None]] | None = None,
) -> Answer:
    """Send a request through an application; return what came out, errors included."""
    answer = Answer()
    pieces = [*body]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
        "path": path, "raw_path": path.encode(), "query_string": b"", "scheme": "http",
        "root_path": "", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {},
        "headers": [(k.encode(), v.encode("latin-1")) for k, v in (headers or {}).items()],
    }  # fmt: skip

    async def received() -> Any:
        if pieces:
            piece = pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(pieces)}
        await forever()  # until the response is done
        return {"type": "http.disconnect"}

    async def sent(message: Any) -> None:
        answer.messages.append(message)

    async def run() -> None:
        try:
            await app(scope, receive or received, send or sent)
        except BaseException as error:
            answer.error = error

    asyncio.run(run())
    return answer


async def read_all(receive: Any) -> bytes:
    """Read a request's body."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


def streams(
    clock: FakeClock, *steps: float | bytes | Callable[[], Any], headers: Any = SSE
) -> App:
    """Make an application that responds with a stream.

    Args:
        clock: moved on by the steps that are seconds.
        *steps: seconds of the application's own work, or of whatever is around it; bytes to send;
            functions to call. What comes before the first bytes comes before the headers.
        headers: of the answer.
    """

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await read_all(receive)
        begun = False
        for step in steps:
            if isinstance(step, bytes):
                if not begun:
                    await send(start(headers))
                    begun = True
                await send({"type": "http.response.body", "body": step, "more_body": True})
            elif callable(step):
                step()
            else:
                clock.advance(step)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


def start(headers: Any = SSE, status: int = 200) -> dict[str, Any]:
    """Return the message a response begins with."""
    return {"type": "http.response.start", "status": status, "headers": [*headers]}


def through(app: App, **settings: Any) -> gateway.Middleware:
    """Wrap an application in the middleware."""
    return gateway.Middleware(app, **{"name": "edge", **settings})
