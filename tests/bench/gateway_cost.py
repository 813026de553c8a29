"""What does the gateway middleware add to a request? CPU with it and without, in turns.

ASGI messages are handed over by plain calls, without a server, so that what is left is the
application's own work and the middleware's. Spans go where a program's go: to a worker's queue.

    python -m tests.bench.gateway_cost
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

import llmtrace
from llmtrace import gateway
from llmtrace.testing import capture

REQUESTS = 300
CHUNKS = 400
WORD = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
TRACEPARENT = (b"traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
LLMTRACE = (b"x-llmtrace-accept", b"timing-comments")

App = Callable[[Any, Any, Any], Awaitable[None]]


class Queue:
    """Takes spans as an exporter does, and drops them."""

    every_row = False
    spans = True

    def write(self, _: object) -> None:
        """Take one."""


def application(chunks: int) -> App:
    """Make an application that streams, after a recorded upstream call."""

    async def handle(_: Request) -> Response:
        async def events() -> AsyncIterator[bytes]:
            for _ in llmtrace.wrap(iter(["a"])):
                pass
            for _ in range(chunks):
                yield WORD
            yield b"data: [DONE]\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    return Starlette(routes=[Route("/v1/chat/completions", handle, methods=["POST"])])


async def ask(app: App, headers: list[tuple[bytes, bytes]], times: int) -> float:
    """Send requests one after another; return CPU microseconds a request."""
    forever = asyncio.Event()

    async def sent(_: Any) -> None:
        pass

    begun = time.process_time_ns()
    for _ in range(times):
        left = [{"type": "http.request", "body": b"{}", "more_body": False}]

        async def received(left: list[Any] = left) -> Any:
            if not left:
                await forever.wait()
            return left.pop()

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
            "path": "/v1/chat/completions", "query_string": b"", "headers": [*headers],
        }  # fmt: skip
        await app(scope, received, sent)
    return (time.process_time_ns() - begun) / times / 1000


def added(headers: list[tuple[bytes, bytes]], chunks: int, pairs: int, times: int) -> list[float]:
    """Measure with and without in turns; return bare and added microseconds, as medians."""
    bare = application(chunks)
    measured = gateway.Middleware(bare, name="edge")
    taken: list[tuple[float, float]] = []
    with capture(sinks=[Queue()]) as rows:
        for _ in range(pairs):
            taken.append(
                (
                    asyncio.run(ask(bare, headers, times)),
                    asyncio.run(ask(measured, headers, times)),
                )
            )
            rows.clear()
    return [
        statistics.median(one for one, _ in taken),
        statistics.median(other - one for one, other in taken),
    ]


def main() -> None:
    """Print what a request and a chunk cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    pairs = parser.parse_args().pairs
    print(f"Python {platform.python_version()}, CPU µs, medians of {pairs} pairs\n")
    print("| caller | a request, bare | added | a chunk, bare | added |")
    print("|---|---|---|---|---|")
    for name, headers in (
        ("with a trace", [TRACEPARENT]),
        ("llmtrace", [TRACEPARENT, LLMTRACE]),
    ):
        short = added(headers, 1, pairs, REQUESTS)
        long = added(headers, CHUNKS, pairs, max(10, REQUESTS // 20))
        a_chunk = [(b - a) / (CHUNKS - 1) for a, b in zip(short, long, strict=True)]
        print(
            f"| {name} | {short[0]:.0f} | {short[1]:.0f} | {a_chunk[0]:.2f} | {a_chunk[1]:.2f} |"
        )


if __name__ == "__main__":
    main()
