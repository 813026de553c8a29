"""What does llmtrace add to the OpenAI client? CPU a chunk and a request, memory a stream.

Requests hot and cold: one after the other, and with the caches evicted in between. Bare and traced
take turns in one process and one run, all threads counted, exporters on (OTLP
traces and metrics to a receiver in another process, Prometheus).

    make bench
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import gc
import json
import multiprocessing
import os
import platform
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any

import httpx2
import openai
import prometheus_client

import llmtrace
from tests.bench.cold import evict
from tests.bench.replay import MESSAGES, events, replaying

LONG = 2_000  # chunks
BLOCK = 20  # of them a part of a turn
REQUESTS = 32  # a turn; metrics are counted for so many at once
TURNS = 13  # in a row: what they leave to be sent goes at once, about as under load
EXPORTERS = ("otlp", "otlp-metrics", "prometheus")
_NEVER_S = 3600.0
_PATIENCE_S = 10.0
_MINUTE_US = 60e6

# CPU microseconds of the parts of one turn, which add up to what one request or chunk took.
Turn = list[float]
# Does something, and returns several turns of it.
Turns = Callable[[], list[Turn]]


class _Answer(BaseHTTPRequestHandler):
    """Answers chat requests with one token, and takes whatever else it is sent."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms for an acknowledgement
    body = b"".join(events(1))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chat = self.path.endswith("/chat/completions")
        body = self.body if chat else b""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if chat else "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


def serve(port: Connection) -> None:
    """Serve in this process, and tell the port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
    port.send(server.server_address[1])
    server.serve_forever()


@dataclass(frozen=True)
class Cost:
    """CPU microseconds of one request or chunk, bare and traced, turn by turn.

    Of each part of a turn the least counts: whatever else the machine does only ever adds, and a
    whole turn is seldom left alone.
    """

    bare: list[Turn]
    traced: list[Turn]
    sending: list[float]  # all spans, at the end of each pair
    metrics: list[float]  # the same of the metrics, which go once a minute

    @property
    def base(self) -> float:
        """What the bare one takes."""
        return least(self.bare)

    @property
    def added(self) -> float:
        """What the traced one takes more, without what is sent."""
        return least(self.traced) - self.base

    @property
    def a_request(self) -> float:
        """What a traced request takes more, with its share of what is sent."""
        spans = min(self.sending) / (REQUESTS * TURNS)
        a_minute = _MINUTE_US / (self.base + self.added + spans)
        return self.added + spans + min(self.metrics) / a_minute


def least(turns: Iterable[Turn]) -> float:
    """Add up the least of each part over all turns."""
    return sum(min(part) for part in zip(*turns, strict=True))


def measure(
    turns: Turns, pairs: int, instrument: str = "openai", names: Sequence[str] = EXPORTERS
) -> Cost:
    """Take turns bare and traced, with the exporters of these names on."""
    cost = Cost([], [], [], [])
    for pair in range(pairs + 1):
        gc.collect()
        bare = turns()
        sinks = exporters(names)
        llmtrace.init("bench", exporters=list(sinks.values()), instrument=[instrument])
        turns()
        llmtrace.flush()
        gc.collect()
        traced = turns()
        spans, metrics = (
            _cpu(partial(sinks[name].flush, _PATIENCE_S)) if name in sinks else 0.0
            for name in EXPORTERS[:2]
        )
        llmtrace.shutdown()
        if pair:  # the first warms everything up
            cost.bare.extend(bare)
            cost.traced.extend(traced)
            cost.sending.append(spans)
            cost.metrics.append(metrics)
    return cost


def _cpu(work: Callable[[], object]) -> float:
    began = time.process_time_ns()
    work()
    return (time.process_time_ns() - began) / 1e3


def requests(ask: Callable[[], object], between: Callable[[], None] | None = None) -> Turns:
    """Ask again and again. What garbage a turn leaves is collected at its end, and counted.

    Args:
        ask: makes a request.
        between: called before each, and not counted.
    """

    def one() -> float:
        if between is not None:
            between()
        return _cpu(ask)

    def turn() -> Turn:
        gc.disable()
        parts = [one() for _ in range(REQUESTS)]
        parts.append(_cpu(partial(gc.collect, 0)))
        gc.enable()
        return [part / REQUESTS for part in parts]

    return lambda: [turn() for _ in range(TURNS)]


class Blocks:
    """Takes the time of each block of chunks of one stream, but the first."""

    def __init__(self) -> None:
        self._took: list[float] = []
        self._began = self._number = 0

    def chunk(self) -> None:
        """Note that one was read."""
        self._number += 1
        if self._number % BLOCK == 0:
            now = time.process_time_ns()
            if self._began:
                self._took.append((now - self._began) / BLOCK / 1e3)
            self._began = now

    def turns(self) -> list[Turn]:
        """Return the one turn that the stream was, of one chunk."""
        return [[took / len(self._took) for took in self._took]]


def exporters(names: Sequence[str] = EXPORTERS) -> dict[str, Any]:
    """Make those of these names. None sends before it is flushed: what that takes is counted."""
    from llmtrace import exporters as export
    from llmtrace.exporters.otlp.sink import otlp_sink

    settings = export.ExportSettings(
        service="bench", registry=prometheus_client.CollectorRegistry()
    )
    return {
        name: otlp_sink(interval_s=_NEVER_S) if name == "otlp" else export.build(name, settings)
        for name in names
    }


def clients(transport: Any | None, url: str) -> dict[str, Turns]:
    """Make one way of asking, sync and async, over a transport or over loopback.

    Each returns what its chunks took.
    """
    sync_http = httpx2.Client(transport=transport)
    async_http = httpx2.AsyncClient(transport=transport)
    sync = openai.OpenAI(base_url=url, api_key="none", http_client=sync_http)
    asynchronous = openai.AsyncOpenAI(base_url=url, api_key="none", http_client=async_http)
    loop = asyncio.new_event_loop()
    # The client leaves a generator to be closed by the loop, after every answer.
    atexit.register(lambda: loop.run_until_complete(loop.shutdown_asyncgens()))
    options: Any = {"include_usage": True}

    def ask() -> list[Turn]:
        blocks = Blocks()
        for _ in sync.chat.completions.create(
            model="m", messages=MESSAGES, stream=True, stream_options=options
        ):
            blocks.chunk()
        return blocks.turns()

    async def ask_async() -> list[Turn]:
        blocks = Blocks()
        stream = await asynchronous.chat.completions.create(
            model="m", messages=MESSAGES, stream=True, stream_options=options
        )
        async for _ in stream:
            blocks.chunk()
        return blocks.turns()

    return {"sync": ask, "async": lambda: loop.run_until_complete(ask_async())}


def heap_growth(tokens: int) -> dict[str, int]:
    """Return by how many bytes one open traced stream grows between its 100th and last chunk."""
    grown = {}
    for name, traced in (("bare", False), ("traced", True)):
        client = openai.OpenAI(
            base_url="http://replay/v1",
            api_key="none",
            http_client=httpx2.Client(transport=replaying(tokens)),
        )
        if traced:
            llmtrace.init("bench", exporters=[], instrument=["openai"])
        stream = client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        tracemalloc.start()
        start = 0
        for number, _chunk in enumerate(stream):
            if number == 100:
                gc.collect()
                start = tracemalloc.get_traced_memory()[0]
            if number == tokens:
                gc.collect()
                grown[name] = tracemalloc.get_traced_memory()[0] - start
        tracemalloc.stop()
        llmtrace.shutdown()
    return grown


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20, help="turns of bare and traced")
    parser.add_argument("--cold-pairs", type=int, default=4, help="the same of cold requests")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--exporters", nargs="*", choices=EXPORTERS, default=EXPORTERS, metavar="NAME",
        help="those that are on, or none; default: otlp otlp-metrics prometheus",
    )  # fmt: skip
    arguments = parser.parse_args()
    names = tuple(arguments.exporters)

    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(theirs,), daemon=True
    )
    server.start()
    endpoint = f"http://127.0.0.1:{ours.recv()}"
    os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/protobuf"
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = endpoint
    rows = {}
    try:
        long = clients(replaying(LONG), "http://replay/v1")
        wire = clients(None, f"{endpoint}/v1")
        for name in ("sync", "async"):
            chunk = measure(long[name], arguments.pairs, names=names)
            request = measure(requests(wire[name]), arguments.pairs, names=names)
            cold = measure(requests(wire[name], evict), arguments.cold_pairs, names=names)
            rows[name] = {
                "chunk_bare_us": chunk.base,
                "chunk_added_us": chunk.added,
                "request_bare_us": request.base,
                "request_added_us": request.a_request,
                "cold_bare_us": cold.base,
                "cold_added_us": cold.a_request,
            }
            if not arguments.json:
                print(f"{name}: measured", file=sys.stderr)
    finally:
        server.terminate()
    heap = heap_growth(3_000)
    if arguments.json:
        print(json.dumps({**rows, "heap_growth_bytes": heap}))
        return 0
    print(f"Python {platform.python_version()}, openai {openai.__version__}, "
          f"{arguments.pairs} pairs, exporters {' '.join(names) or 'off'}; "
          "CPU of the whole process, the least")  # fmt: skip
    print(f"{'':6} {'a chunk, bare':>14} {'added':>9} {'ratio':>7}   "
          f"{'a request, bare':>16} {'added':>9} {'ratio':>7}   "
          f"{'cold, bare':>13} {'added':>9} {'ratio':>7}")  # fmt: skip
    for name, row in rows.items():
        bare, request_, cold_ = (row[f"{kind}_bare_us"] for kind in ("chunk", "request", "cold"))
        print(
            f"{name:6} {bare:11.2f} us {row['chunk_added_us']:6.2f} us "
            f"{1 + row['chunk_added_us'] / bare:7.3f}   {request_:13.0f} us "
            f"{row['request_added_us']:6.0f} us {1 + row['request_added_us'] / request_:7.3f}   "
            f"{cold_:10.0f} us {row['cold_added_us']:6.0f} us "
            f"{1 + row['cold_added_us'] / cold_:7.3f}"
        )
    print(f"heap of an open stream, chunk 100 to 3,000: bare {heap['bare']:+,} bytes, "
          f"traced {heap['traced']:+,} bytes")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
