"""Is a row lost or doubled if the collector is killed, again and again, at any moment?

    python -m tests.bench.crash --rounds 100

A process receives over HTTP and stores, with the embedded store. It is killed (SIGKILL) at a
random moment of its life, its start included, and started anew over what is left. Senders
meanwhile note which requests were acknowledged. A request whose answer never came is sent again or
given up, by turns, as exporters do both. In the end every acknowledged row must be there once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from starlette.applications import Starlette

from llmtrace.core.row import Row
from llmtrace.core.stages import Timeline
from llmtrace.exporters.otlp.encode import Resources, encode
from llmtrace_collector.receive import (
    Admission,
    HttpServer,
    Ingest,
    IngestSettings,
    Spool,
    SpoolLimits,
    routes,
)
from llmtrace_collector.store import open_store

SENDERS = 4
MAX_ROWS = 20  # of one request
LIFE_S = (0.1, 2.0)
_PAUSE_S = 0.02  # between two requests of a sender: it is the collector that is to be busy
PROTOBUF = {"Content-Type": "application/x-protobuf"}


@dataclass
class Sent:
    """What senders know.

    Attributes:
        acknowledged: rows, by number, of requests sent once and answered with 200.
        repeated: rows of requests that were sent more than once, and then answered so.
        given_up: rows of requests sent once and never answered.
        answers: of the collector, by status; 0 = none came.
    """

    acknowledged: set[int] = field(default_factory=set)
    repeated: set[int] = field(default_factory=set)
    given_up: set[int] = field(default_factory=set)
    answers: Counter[int] = field(default_factory=Counter)
    next: int = 1


async def collect(folder: Path, port: int, sync: str) -> None:
    """Receive and store, until it is stopped."""
    store = open_store(folder / "store")
    spool = Spool(
        folder / "spool",
        SpoolLimits(sync=sync, free_bytes=0, segment_bytes=1 << 20),
    )
    admission = Admission(spool)
    # Batches often, and not large: as many moments to die in as can be had.
    ingest = Ingest(
        spool, store, IngestSettings(interval_s=0.02, batch_bytes=1 << 20, join_s=0.2, wait_s=0.1)
    )
    ingest.start()
    app = Starlette(routes=routes(admission))
    server = await HttpServer(app, "127.0.0.1", port, admission.limits, admission.counted).start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print("ready", flush=True)
    await stop.wait()
    await server.stop()
    stored = await asyncio.to_thread(ingest.stop, 900.0)
    result = {
        "stored": stored,
        "torn_bytes": spool.counted.torn_bytes,
        "damaged_bytes": spool.counted.damaged_bytes,
        "failures": ingest.counted.failures,
        "problem": ingest.counted.problem,
    }
    spool.close()
    store.close()
    print(json.dumps(result), flush=True)


def row(number: int) -> Row:
    """Make the row of one request; its number is its id."""
    return Row(
        request_id=f"crash-{number}",
        trace_id=f"{number:032x}",
        span_id=f"{number:016x}",
        start=time.time_ns(),
        service="crash",
        model="tiny",
        timeline=Timeline(e2e=1_000_000_000, ttft=200_000_000, stream=True),
    )


async def send(url: str, sent: Sent, random_: random.Random, over: asyncio.Event) -> None:
    """Send requests one after the other, whether there is a collector or not."""
    resources = Resources()
    timeout = aiohttp.ClientTimeout(total=10)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while not over.is_set():
            count = random_.randint(1, MAX_ROWS)
            first, sent.next = sent.next, sent.next + count
            numbers = range(first, first + count)
            [(body, _)] = encode(map(row, numbers), resources, 1 << 20)
            times = 0
            repeats = random_.random() < 0.5
            while True:
                answer = await post(session, url, body)
                # A connection that was not accepted brought nothing over.
                times += answer is not None
                sent.answers[answer or 0] += 1
                if answer == 200:
                    (sent.acknowledged if times == 1 else sent.repeated).update(numbers)
                    await asyncio.sleep(_PAUSE_S)
                    break
                if times and not repeats:
                    sent.given_up.update(numbers)
                    break
                if over.is_set():
                    break
                await asyncio.sleep(0.02)


async def post(session: aiohttp.ClientSession, url: str, body: bytes) -> int | None:
    """Return the answer's status; 0 = it never came; `None` = nothing listened."""
    try:
        async with session.post(url, data=body, headers=PROTOBUF) as answer:
            await answer.read()
            return answer.status
    except aiohttp.ClientConnectorError:
        return None
    except (aiohttp.ClientError, TimeoutError, OSError):
        return 0


async def start(folder: Path, port: int, sync: str) -> asyncio.subprocess.Process:
    """Start a collector."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.crash", "--collect", str(folder), "--port", str(port),
        "--sync", sync, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def lives(folder: Path, rounds: int, sync: str, seed: int) -> tuple[Sent, dict[str, object]]:
    """Kill so many collectors, and let the last one end as it should."""
    random_ = random.Random(seed)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    sent, over = Sent(), asyncio.Event()
    url = f"http://127.0.0.1:{port}/v1/traces"
    senders = [asyncio.create_task(send(url, sent, random_, over)) for _ in range(SENDERS)]
    for number in range(rounds):
        collector = await start(folder, port, sync)
        if random_.random() < 0.85:  # else killed while it starts
            assert collector.stdout is not None
            assert await collector.stdout.readline() == b"ready\n", "it did not start again"
        await asyncio.sleep(random_.uniform(*LIFE_S))
        collector.kill()
        await collector.wait()
        if sys.stderr.isatty() or number % 10 == 9:
            print(
                f"\r{number + 1}/{rounds} killed, {len(sent.acknowledged):,} rows acknowledged",
                end="" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True,
            )  # fmt: skip
    collector = await start(folder, port, sync)
    assert collector.stdout is not None
    assert await collector.stdout.readline() == b"ready\n", "it did not start again"
    await asyncio.sleep(1)
    over.set()
    await asyncio.gather(*senders)
    collector.terminate()
    result = json.loads(await collector.stdout.readline())
    assert await collector.wait() == 0
    return sent, result


@dataclass(frozen=True)
class Verdict:
    """What was found in the store.

    Attributes:
        acknowledged: rows that must be there.
        lost_spans: of those, whose span is not.
        lost_rows: of those, whose row is not.
        doubled_spans: spans there more than once whose request was sent once.
        doubled_rows: rows there more than once, of any request.
        repeated_spans: there more than once: their sender heard nothing, and sent them again.
        unasked: rows there that were never sent.
    """

    acknowledged: int
    lost_spans: int
    lost_rows: int
    doubled_spans: int
    doubled_rows: int
    repeated_spans: int
    unasked: int

    @property
    def is_good(self) -> bool:
        """Whether nothing acknowledged was lost or doubled."""
        return self.acknowledged > 0 and not (
            self.lost_spans
            or self.lost_rows
            or self.doubled_spans
            or self.doubled_rows
            or self.unasked
        )


def judge(folder: Path, sent: Sent) -> Verdict:
    """Compare what was acknowledged with what is stored."""
    store = open_store(folder / "store")
    with contextlib.closing(store):
        spans = Counter(
            {
                int(span_id, 16): int(count)
                for span_id, count in store.query(
                    "SELECT SpanId, count() FROM otel_traces WHERE ParentSpanId = ''"
                    " GROUP BY SpanId"
                )
            }
        )
        rows = Counter(
            {
                int(span_id, 16): int(count)
                for span_id, count in store.query(
                    "SELECT span_id, count() FROM requests FINAL GROUP BY span_id"
                )
            }
        )
    must = sent.acknowledged | sent.repeated
    return Verdict(
        acknowledged=len(must),
        lost_spans=len(must - set(spans)),
        lost_rows=len(must - set(rows)),
        doubled_spans=sum(spans[one] > 1 for one in sent.acknowledged | sent.given_up),
        doubled_rows=sum(count > 1 for count in rows.values()),
        repeated_spans=sum(spans[one] > 1 for one in sent.repeated),
        unasked=len({one for one in rows if one >= sent.next}),
    )


def main() -> int:
    """Kill, count, print, and return 1 if anything was lost or doubled."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--sync", choices=("always", "interval", "never"), default="interval")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--collect", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.collect is not None:
        asyncio.run(collect(given.collect, given.port, given.sync))
        return 0
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 32)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="llmtrace-crash-") as folder:
        sent, result = asyncio.run(lives(Path(folder), given.rounds, given.sync, seed))
        found = judge(Path(folder), sent)
    print(f"\n{given.rounds} kills in {time.monotonic() - began:.0f} s, seed {seed}")
    print(f"requests by answer (0 = none came): {dict(sorted(sent.answers.items()))}")
    for name, value in vars(found).items():
        print(f"  {name.replace('_', ' '):16} {value:>10,}")
    print(f"last life: {result}")
    print("nothing lost, nothing doubled" if found.is_good and result["stored"] else "FAILED")
    return 0 if found.is_good and result["stored"] else 1


if __name__ == "__main__":
    sys.exit(main())
