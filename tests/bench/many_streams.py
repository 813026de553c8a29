"""What does llmtrace cost a process that holds thousands of streams open? Memory, the loop's lag.

Each round is a process of its own, bare and traced in turns: it opens the streams with the OpenAI
client, lets chunks come and streams begin and end for a while, cancels half of what is open and
lets the other half end, and looks for what is left. Exporters are on (OTLP to a receiver in
another process, Prometheus).

    make bench-streams
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import prometheus_client

import llmtrace
from llmtrace import exporters
from llmtrace.core.recording import Recording
from tests.bench.client_cost import serve
from tests.bench.replay import MESSAGES, events

TICK_S = 0.005
GROUP = 50  # streams opened at a time


class Paced(httpx2.AsyncByteStream):
    """An answer that goes on, a chunk every so often, until it is closed.

    The gaps vary by half. Were they all the same, streams that one pause made late together would
    stay together, and come in bursts ever after.
    """

    def __init__(self, gap_s: float) -> None:
        self._gap_s = gap_s
        self._parts = events(1)
        self._over = asyncio.Event()

    def end(self) -> None:
        """Send what is left, and no more."""
        self._over.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        role, token, *rest = self._parts
        yield role
        while not self._over.is_set():
            yield token
            try:
                async with asyncio.timeout(self._gap_s * (0.5 + random.random())):
                    await self._over.wait()
            except TimeoutError:
                pass
        for part in rest:
            yield part


class Streams:
    """The streams that are open, and those who read them."""

    def __init__(self, gap_s: float) -> None:
        self._gap_s = gap_s
        self._made: deque[Paced] = deque()
        self._answers: deque[Paced] = deque()
        self.readers: deque[asyncio.Task[None]] = deque()
        self.chunks = 0
        transport = httpx2.MockTransport(self._answer)
        self.http = httpx2.AsyncClient(transport=transport)
        self._client = openai.AsyncOpenAI(
            base_url="http://replay/v1", api_key="none", http_client=self.http
        )

    async def _answer(self, _request: httpx2.Request) -> httpx2.Response:
        body = Paced(self._gap_s)
        self._made.append(body)
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, stream=body)

    async def open(self, number: int) -> None:
        """Open so many more."""
        for _ in range(number):
            options: Any = {"include_usage": True}
            stream = await self._client.chat.completions.create(
                model="m", messages=MESSAGES, stream=True, stream_options=options
            )
            self._answers.append(self._made.popleft())
            self.readers.append(asyncio.create_task(self._read(stream)))

    async def _read(self, stream: Any) -> None:
        async for _ in stream:
            self.chunks += 1

    async def end(self, number: int) -> None:
        """End the oldest so many."""
        ending = [self.readers.popleft() for _ in range(number)]
        for _ in range(number):
            self._answers.popleft().end()
        await asyncio.gather(*ending)

    async def cancel(self, number: int) -> None:
        """Cancel the oldest so many."""
        ending = [self.readers.popleft() for _ in range(number)]
        for reader in ending:
            self._answers.popleft()
            reader.cancel()
        await asyncio.gather(*ending, return_exceptions=True)


class Collector:
    """What Python's garbage collector takes: its passes stop everything, however many."""

    def __init__(self) -> None:
        self.passes: list[float] = []
        self.total = self._began = 0.0

    def __call__(self, phase: str, _: Any) -> None:
        """Note where a pass begins and ends."""
        if phase == "start":
            self._began = time.monotonic()
        else:
            self.passes.append(time.monotonic() - self._began)
            self.total += self.passes[-1]


async def ticks(seconds: float, collector: Collector) -> list[float]:
    """Return by how many seconds the loop was late, tick by tick.

    Less what this process waited for a core meanwhile, which is other programs' doing, and less
    the passes of the collector, which are counted by themselves.
    """
    loop = asyncio.get_running_loop()
    found, until = [], loop.time() + seconds
    while (now := loop.time()) < until:
        idle = coreless() + collector.total
        await asyncio.sleep(TICK_S)
        late = loop.time() - now - TICK_S - (coreless() + collector.total - idle)
        found.append(max(0.0, late))
    return found


def coreless() -> float:
    """Return for how many seconds threads of this process were ready to run, and had no core."""
    threads = Path("/proc/self/task").iterdir()
    return sum(int((one / "schedstat").read_bytes().split()[1]) for one in threads) / 1e9


def resident() -> int:
    """Return the process's memory, in bytes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Counting:
    """A sink that counts rows by how they ended."""

    every_row = True

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()

    def write(self, row: llmtrace.Row) -> None:
        """Count one."""
        self.outcomes[row.outcome] += 1


def traced() -> Counting:
    """Switch llmtrace on, with its exporters."""
    counting = Counting()
    registry = prometheus_client.CollectorRegistry()
    settings = exporters.ExportSettings(service="bench", registry=registry)
    llmtrace.init(
        "bench",
        exporters=["otlp", exporters.build("prometheus", settings), counting],
        instrument=["openai"],
    )
    return counting


async def one_round(options: argparse.Namespace) -> dict[str, Any]:
    """Go through it once; return what was seen."""
    streams = Streams(options.gap_s)
    await streams.open(GROUP)  # what is made once, is made here
    await streams.end(GROUP)
    gc.collect()
    before = resident()
    for _ in range(options.streams // GROUP):
        await streams.open(GROUP)
        await asyncio.sleep(0)
    await asyncio.sleep(options.gap_s)
    gc.collect()
    full = resident()
    await asyncio.sleep(2 * options.gap_s)  # what that pause held up has gone its own way again

    collector = Collector()
    gc.callbacks.append(collector)
    ticking = asyncio.create_task(ticks(options.seconds, collector))
    began, since, cpu = streams.chunks, time.monotonic(), time.process_time()
    for _ in range(int(options.seconds * options.turnover)):
        await asyncio.sleep(1 / options.turnover)
        await streams.open(1)
        await streams.end(1)
    late = await ticking
    gc.callbacks.remove(collector)
    seconds = time.monotonic() - since
    cpu = (time.process_time() - cpu) / seconds
    chunks = (streams.chunks - began) / seconds

    half = len(streams.readers) // 2
    await streams.cancel(half)
    await streams.end(len(streams.readers))
    await streams.http.aclose()
    await asyncio.sleep(1.1)  # a cancelled row waits for its outcome
    llmtrace.flush()
    del streams
    gc.collect()
    cuts = statistics.quantiles(late, n=100)
    return {
        "memory_a_stream": (full - before) / options.streams,
        "lag_mean_ms": statistics.fmean(late) * 1e3,
        "lag_p50_ms": cuts[49] * 1e3,
        "lag_p90_ms": cuts[89] * 1e3,
        "lag_p99_ms": cuts[98] * 1e3,
        "collecting": collector.total / seconds,
        "longest_pass_ms": max(collector.passes, default=0.0) * 1e3,
        "cpu": cpu,
        "chunks_a_second": chunks,
        "left_bytes": resident() - before,
        "left_recordings": sum(issubclass(type(one), Recording) for one in gc.get_objects()),
        "left_tasks": len(asyncio.all_tasks()) - 1,
    }


def child(options: argparse.Namespace) -> None:
    """Run one round in this process, and print it as JSON."""
    counting = traced() if options.round == "traced" else None
    seen = asyncio.run(one_round(options))
    if counting is not None:
        seen["rows"] = dict(counting.outcomes)
        seen["internal_errors"] = llmtrace.internal_errors()
        llmtrace.shutdown()
    print(json.dumps(seen))


def run(options: argparse.Namespace, mode: str, endpoint: str) -> dict[str, Any]:
    """Run one round in a process of its own."""
    flags = [
        f"--{name.replace('_', '-')}={getattr(options, name)}"
        for name in ("streams", "seconds", "gap_s", "turnover")
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
    }
    done = subprocess.run(
        [sys.executable, __file__, f"--round={mode}", *flags],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    seen: dict[str, Any] = json.loads(done.stdout)
    print(f"{mode}: {seen}", file=sys.stderr)
    return seen


def main() -> int:
    """Measure in pairs, and print a table; fail if anything is left, or a row is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30, help="of chunks coming")
    parser.add_argument("--gap-s", type=float, default=5, help="between two chunks of a stream")
    parser.add_argument("--turnover", type=float, default=2, help="streams begun a second")
    parser.add_argument("--round", choices=["bare", "traced"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.round:
        child(options)
        return 0
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(theirs,), daemon=True
    )
    server.start()
    endpoint = f"http://127.0.0.1:{ours.recv()}"
    try:
        pairs = [
            (run(options, "bare", endpoint), run(options, "traced", endpoint))
            for _ in range(options.pairs)
        ]
    finally:
        server.terminate()
    return report(options, pairs)


def report(options: argparse.Namespace, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> int:
    """Print what was seen; return whether something is wrong."""

    def middle(index: int, key: str) -> float:
        return statistics.median(pair[index][key] for pair in pairs)

    print(f"Python {platform.python_version()}, openai {openai.__version__}; "
          f"{options.streams:,} streams open, {options.pairs} pairs")  # fmt: skip
    print(f"{'':22} {'bare':>10} {'traced':>10} {'added':>10}")
    for label, key, scale in (
        ("kB a stream", "memory_a_stream", 1e-3),
        ("lag, mean, ms", "lag_mean_ms", 1),
        ("lag, median, ms", "lag_p50_ms", 1),
        ("lag, p90, ms", "lag_p90_ms", 1),
        ("lag, p99, ms", "lag_p99_ms", 1),
        ("collecting, % of time", "collecting", 100),
        ("longest pass, ms", "longest_pass_ms", 1),
        ("CPU, of one core", "cpu", 1),
        ("chunks a second", "chunks_a_second", 1),
    ):
        added = statistics.median(pair[1][key] - pair[0][key] for pair in pairs)
        bare, with_it = middle(0, key), middle(1, key)
        print(f"{label:22} {bare * scale:10.2f} {with_it * scale:10.2f} {added * scale:10.2f}")
    begun = GROUP + options.streams // GROUP * GROUP + int(options.seconds * options.turnover)
    wrong = 0
    for _, seen in pairs:
        left = (seen["left_recordings"], seen["left_tasks"])
        rows = sum(seen["rows"].values())
        print(f"rows {seen['rows']} of {begun:,} requests; left over: {left[0]} recordings, "
              f"{left[1]} tasks; internal errors {seen['internal_errors']}")  # fmt: skip
        wrong |= left != (0, 0) or rows != begun or bool(seen["internal_errors"])
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
