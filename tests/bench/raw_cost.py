"""What does llmtrace add to a stream that is read over plain httpx? CPU a chunk, CPU a request.

Measured like the OpenAI client's in `client_cost.py`: bare and traced in turns, in one process and
one run, from memory, so that what is left is the client's own work. The least counts.

    python -m tests.bench.raw_cost
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import platform
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx

from tests.bench.client_cost import LONG, Blocks, Turn, Turns, measure, requests, serve
from tests.bench.replay import MESSAGES, events

URL = "http://replay/v1/chat/completions"
BODY: Any = {
    "model": "m", "messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True},
}  # fmt: skip


class _Replay(httpx.SyncByteStream, httpx.AsyncByteStream):
    """Hands out an answer's events from memory."""

    def __init__(self, parts: list[bytes]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[bytes]:
        yield from self._parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part


def clients(tokens: int) -> dict[str, Turns]:
    """Make one way of reading by line, sync and async. Each returns what its chunks took."""
    parts = events(tokens)
    headers = {"content-type": "text/event-stream"}
    transport = httpx.MockTransport(
        lambda _request: httpx.Response(200, headers=headers, stream=_Replay(parts))
    )
    sync = httpx.Client(transport=transport)
    asynchronous = httpx.AsyncClient(transport=transport)
    loop = asyncio.new_event_loop()

    def ask() -> list[Turn]:
        blocks = Blocks()
        with sync.stream("POST", URL, json=BODY) as response:
            for line in response.iter_lines():
                if line:  # an empty one ends the event
                    blocks.chunk()
        return blocks.turns()

    async def ask_async() -> list[Turn]:
        blocks = Blocks()
        async with asynchronous.stream("POST", URL, json=BODY) as response:
            async for line in response.aiter_lines():
                if line:
                    blocks.chunk()
        return blocks.turns()

    return {"sync": ask, "async": lambda: loop.run_until_complete(ask_async())}


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20, help="turns of bare and traced")
    pairs = parser.parse_args().pairs
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    receiver = context.Process(target=serve, args=(theirs,), daemon=True)
    receiver.start()
    os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/protobuf"
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{ours.recv()}"
    try:
        _print(pairs)
    finally:
        receiver.terminate()
    return 0


def _print(pairs: int) -> None:
    short, long = clients(1), clients(LONG)
    print(f"Python {platform.python_version()}, httpx {httpx.__version__}, {pairs} pairs; "
          "CPU of the whole process, the least")  # fmt: skip
    for name in ("sync", "async"):
        one = measure(requests(short[name]), pairs, "httpx")
        many = measure(long[name], pairs, "httpx")
        print(f"{name:6} a chunk: {many.base:.2f} us bare, {many.added:+.2f} us; "
              f"a request: {one.base:.0f} us bare, {one.a_request:+.0f} us")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
