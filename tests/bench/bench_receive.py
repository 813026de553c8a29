"""How many spans a CPU-second does the collector receive over HTTP and store, on one core?

    python -m tests.bench.bench_receive [--duckdb FOLDER]

All of it counts: HTTP, checking, spool, store, join, every thread of the process, until the last
span is stored. Beside it, on the same core at the same time and with the same requests, the same
receiver and engine that make nothing of the spans but text in a table: what else the machine does
makes both dearer, and the median of the turns is a share of what the engine alone takes. Then the
obvious alternative, a receiver in Python that walks every span and inserts columns into DuckDB
(`pip install --target FOLDER duckdb`). Then so few requests that hardly anything is to be done;
then ten times as much as the store takes: memory, refusals and what was acknowledged are looked
at.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from llmtrace.core.row import Row
from llmtrace.core.stages import Network, Reported, Timeline
from llmtrace.exporters.otlp.encode import Resources, encode
from tests.bench.bench_store import requests_sent

# Of the spans a CPU-second that the engine alone takes.
BAR = 0.85
A_TRACE = 9  # spans
PROTOBUF = {"Content-Type": "application/x-protobuf"}
MS = 1_000_000


@dataclass
class Receiver:
    """One that listens: what it answered, and at the end what it took."""

    port: int
    answers: Counter[int] = field(default_factory=Counter)
    usage: dict[str, Any] = field(default_factory=dict)


def attribute(key: str, value: Any) -> KeyValue:
    """Make one."""
    kind = {str: "string_value", int: "int_value", float: "double_value"}[type(value)]
    return KeyValue(key=key, value=AnyValue(**{kind: value}))


def plain_requests(count: int, spans: int) -> Iterator[bytes]:
    """Write requests of spans as any instrumented application has them: 12 attributes each."""
    random_ = random.Random(1)
    about = Resource(
        attributes=[
            attribute("service.name", "shop"), attribute("service.version", "1.2.3"),
            attribute("host.name", "node-1"), attribute("telemetry.sdk.language", "python"),
            attribute("deployment.environment", "production"), attribute("process.pid", 4711),
        ]
    )  # fmt: skip
    names = [f"app.attribute.{n}" for n in range(9)]
    made = ExportTraceServiceRequest(
        resource_spans=[
            ResourceSpans(
                resource=about,
                scope_spans=[
                    ScopeSpans(
                        spans=[
                            Span(
                                name=f"step {n % A_TRACE}",
                                kind=1 + n % 3,
                                attributes=[
                                    attribute("http.request.method", "POST"),
                                    attribute("http.response.status_code", 200),
                                    attribute("app.seconds", 0.25 + n / 1000),
                                    *(attribute(name, f"value {n % 7}") for name in names),
                                ],
                            )
                            for n in range(spans)
                        ]
                    )
                ],
            )
        ]
    )
    all_spans = list(made.resource_spans[0].scope_spans[0].spans)
    for _ in range(count):
        now = time.time_ns()
        trace_id = root = b""
        for n, span in enumerate(all_spans):
            if n % A_TRACE == 0:
                trace_id, root = random_.randbytes(16), b""
            span.trace_id, span.span_id, span.parent_span_id = trace_id, random_.randbytes(8), root
            root = root or span.span_id
            span.start_time_unix_nano = now - 50 * MS * n
            span.end_time_unix_nano = now - 50 * MS * n + random_.randrange(500 * MS)
        yield made.SerializeToString()


def row_requests(count: int, spans: int) -> Iterator[bytes]:
    """Write requests of an application with llmtrace: each row is a span and its stages'."""
    random_ = random.Random(2)
    resources = Resources()
    for _ in range(count):
        rows = [
            Row(
                request_id=f"{random_.getrandbits(64):x}",
                response_id=f"chatcmpl-{random_.getrandbits(64):x}",
                trace_id=f"{random_.getrandbits(128) or 1:032x}",
                span_id=f"{random_.getrandbits(64) or 1:016x}",
                start=time.time_ns(),
                service="shop",
                model="tiny",
                route="/chat",
                prompt_tokens=900,
                output_tokens=200,
                chunks=200,
                timeline=Timeline(
                    e2e=5000 * MS + random_.randrange(1000 * MS), ttft=700 * MS, stream=True,
                    held_after=90 * MS, network=Network(connect=2 * MS, rtt=1 * MS),
                    gateway=Reported(20 * MS, "server_timing"),
                    queue=Reported(100 * MS, "engine_span"),
                    prefill=Reported(300 * MS, "engine_span"),
                ),
            )
            for _ in range(spans // A_TRACE)
        ]  # fmt: skip
        [(body, _)] = encode(rows, resources, 1 << 30)
        yield body


def spans_in(body: bytes) -> int:
    """Count."""
    read = ExportTraceServiceRequest.FromString(body)
    return sum(len(scope.spans) for one in read.resource_spans for scope in one.scope_spans)


@asynccontextmanager
async def receiver(how: list[str], path: str | None = None) -> AsyncIterator[Receiver]:
    """Start a receiver in a process of its own, which in the end says what all of it took."""
    with tempfile.TemporaryDirectory(prefix="llmtrace-receive-") as folder:
        environment = {**os.environ, **({"PYTHONPATH": f"{path}:."} if path else {})}
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.bench.receive_collect", folder, *how,
            stdout=asyncio.subprocess.PIPE, env=environment,
        )  # fmt: skip
        assert child.stdout is not None
        found = Receiver(int(await child.stdout.readline()))
        yield found
        child.terminate()
        found.usage |= json.loads(await child.stdout.readline())
        await child.wait()


async def send_all(
    bodies: list[bytes], to: Sequence[Receiver], senders: int, per_s: float = 0.0
) -> float:
    """Send each body to each receiver, one after the other; return the seconds it took."""
    waiting = iter(enumerate(bodies))
    began = time.monotonic()

    async def send(session: aiohttp.ClientSession) -> None:
        for number, body in waiting:
            if per_s:
                await asyncio.sleep(max(0.0, began + number / per_s - time.monotonic()))
            for one in to:
                url = f"http://127.0.0.1:{one.port}/v1/traces"
                async with session.post(url, data=body, headers=PROTOBUF) as answer:
                    await answer.read()
                    one.answers[answer.status] += 1

    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(300)
    ) as session:
        await asyncio.gather(*(send(session) for _ in range(senders)))
    return time.monotonic() - began


async def measured(
    bodies: list[bytes], senders: int, how: list[str], path: str | None, per_s: float = 0.0
) -> tuple[dict[str, Any], Counter[int], float]:
    """Send all bodies to a new receiver; return what it tells, the answers, and the seconds."""
    async with receiver(how, path) as one:
        took = await send_all(bodies, [one], senders, per_s)
    return one.usage, one.answers, took


async def side_by_side(bodies: list[bytes]) -> float:
    """Return the share that is stored a CPU-second of what the engine alone does, at one time."""
    spans = spans_in(bodies[0]) * len(bodies)
    async with receiver([]) as ours, receiver(["--into", "bare"]) as bare:
        await send_all(bodies, [ours, bare], 8)
    rates = [
        shown(name, spans, one.usage, one.answers)
        for name, one in (
            ("llmtrace, spans of any application", ours),
            ("the engine alone: spans in one table", bare),
        )
    ]
    return rates[0] / rates[1] if all(rates) else 0.0


def run(*args: Any, **kwargs: Any) -> tuple[dict[str, Any], Counter[int], float]:
    """Do the same from outside."""
    return asyncio.run(measured(*args, **kwargs))


def speed(name: str, bodies: list[bytes], how: list[str], path: str | None) -> float:
    """Measure one receiver, print a line, and return spans a CPU-second."""
    usage, answers, _ = run(bodies, 8, how, path)
    return shown(name, spans_in(bodies[0]) * len(bodies), usage, answers)


def shown(name: str, spans: int, usage: dict[str, Any], answers: Counter[int]) -> float:
    """Print a line, and return spans a CPU-second; 0 = not all were stored."""
    if usage["stored"] != spans or set(answers) != {200}:
        print(f"  {name:44} FAILED: {usage['stored']:,} of {spans:,} stored, {dict(answers)}")
        return 0.0
    rate = spans / usage["cpu_s"]
    more = f", {usage['rows']:,} rows" if usage.get("rows") else ""
    print(
        f"  {name:44} {rate:9,.0f} spans a CPU-s   ({spans:,} spans{more}, "
        f"{usage['cpu_s']:.1f} CPU-s, {usage['most_rss_mb']:.0f} MB)",
        flush=True,
    )
    return rate


def calm(per_s: float, seconds: float) -> None:
    """Send requests with their engine's spans, one by one, and say how busy that keeps it."""
    bodies = [requests_sent(1, engine=True)[0] for _ in range(round(per_s * seconds))]
    usage, _, took = run(bodies, 4, [], None, per_s=per_s)
    print(f"  {per_s:g} requests a second: {usage['cpu_s'] / took:.0%} of a core")


def overload(spans_s: float, seconds: float) -> bool:
    """Send ten times what the store takes; say whether memory held and nothing was lost."""
    spans = 900
    count = int(10 * spans_s * seconds / spans)
    print(f"ten times too much: a store of {spans_s:,.0f} spans/s, sent {10 * spans_s:,.0f}")
    few = list(plain_requests(min(count, 300), spans))
    bodies = [few[n % len(few)] for n in range(count)]
    calm, _, _ = run(few[:20], 4, ["--tight"], None)
    usage, answers, took = run(
        bodies, 64, ["--tight", "--slow", str(spans_s)], None, per_s=10 * spans_s / spans
    )
    taken = answers[200] * spans
    print(f"  {took:.0f} s, answers {dict(sorted(answers.items()))}, by reason {usage['refused']}")
    print(f"  acknowledged {taken:,} spans, stored {usage['stored']:,}")
    print(
        f"  most memory {usage['most_rss_mb']:.0f} MB; after 20 requests and no more "
        f"{calm['most_rss_mb']:.0f} MB"
    )
    return taken == usage["stored"] and len(answers) > 1


def main() -> int:
    """Measure, print, and return 1 if the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--duckdb", help="folder that `pip install --target` put duckdb into")
    parser.add_argument("--only", choices=("share", "speed", "calm", "overload"))
    given = parser.parse_args()
    good = True
    if given.only in {None, "share", "speed"}:
        print(f"received over HTTP and stored, one core, {given.requests} requests of 900 spans:")
        plain = list(plain_requests(given.requests, 900))
        print(f"  ({len(plain[0]) / 900:.0f} bytes a span)")
        shares = [asyncio.run(side_by_side(plain)) for _ in range(given.turns)]
        share = statistics.median(shares)
        if given.duckdb and given.only != "share":
            rate = speed("llmtrace, spans of any application", plain, [], None)
            few = plain[: max(1, given.requests // 4)]
            other = speed(
                "every span in Python, into DuckDB", few, ["--into", "duckdb"], given.duckdb
            )
            if other:
                print(f"  {rate / other:.1f} times the alternative")
        if given.only != "share":
            small = list(plain_requests(given.requests, 90))
            speed("llmtrace, 90 spans a request", small, [], None)
            rows = list(row_requests(given.requests, 900))
            speed("llmtrace, its own spans, joined to rows", rows, [], None)
        good = share >= BAR
        print(
            f"llmtrace stores {share:.0%} of what the engine alone does (turns of both at once: "
            f"{', '.join(f'{one:.0%}' for one in sorted(shares))}): the bar, {BAR:.0%}, is "
            + ("met" if good else "missed")
        )
    if given.only in {None, "calm"}:
        print("a few requests, and the spans their engine sends of them:")
        for per_s in (2, 30):
            calm(per_s, 40)
    if given.only in {None, "overload"}:
        good = overload(5_000, 20) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
