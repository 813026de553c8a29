"""Does the collector serve 10,000 open connections, and what do they hold?

    python -m tests.bench.connections

Each connection sends one request, hears the answer and stays open; then all send another. One
connection more than are taken is rejected. Needs `ulimit -n` above the number.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from llmtrace.stats.quantiles import quantile
from tests.bench.bench_receive import plain_requests

AT_ONCE = 200  # requests under way
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def ask(connection: Connection, body: bytes) -> tuple[int, float]:
    """Post over an open connection; return the status and the seconds it took."""
    reader, writer = connection
    began = time.perf_counter()
    writer.write(
        b"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-protobuf\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    head = await reader.readuntil(b"\r\n\r\n")
    return int(head.split()[1]), time.perf_counter() - began


async def ask_all(connections: Sequence[Connection], body: bytes) -> tuple[Counter[int], float]:
    """Post once over each; return the answers, and the p99 in seconds."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(connection: Connection) -> tuple[int, float]:
        async with gate:
            return await ask(connection, body)

    answers = await asyncio.gather(*map(one, connections))
    return Counter(status for status, _ in answers), quantile(sorted(s for _, s in answers), 0.99)


async def open_all(count: int, port: int, body: bytes) -> list[Connection]:
    """Open connections, and post once over each: who connects has to say something soon."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one() -> Connection:
        async with gate:
            connection = await asyncio.open_connection("127.0.0.1", port)
            status, _ = await ask(connection, body)
            assert status == 200, status
            return connection

    return await asyncio.gather(*(one() for _ in range(count)))


def held_mb(process: int) -> float:
    """Return what a process holds in memory."""
    pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


async def measure(count: int) -> bool:
    """Open, ask, print; say whether all were served."""
    [body] = plain_requests(1, 1)
    with tempfile.TemporaryDirectory(prefix="llmtrace-connections-") as folder:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.bench.receive_collect", folder,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert child.stdout is not None
        port = int(await child.stdout.readline())
        empty = held_mb(child.pid)
        began = time.monotonic()
        connections = await open_all(count, port, body)
        print(f"{len(connections):,} connections in {time.monotonic() - began:.0f} s")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        status_line = (await reader.read()).split(b"\r\n")[0].decode()
        writer.close()
        print(f"one more: {status_line}")
        full = held_mb(child.pid)
        print(f"memory: {empty:.0f} MB without, {full:.0f} MB with them open")
        answers, p99 = await ask_all(connections, body)
        print(
            f"another request each, {AT_ONCE} at a time: {dict(answers)}, p99 {p99 * 1e3:.0f} ms"
        )
        for _, writer in connections:
            writer.close()
        child.terminate()
        stored = json.loads(await child.stdout.readline())["stored"]
        await child.wait()
        print(f"acknowledged {2 * count:,} spans, stored {stored:,}")
    return "503" in status_line and answers == {200: count} and stored == 2 * count


def main() -> int:
    """Measure, and return 1 if not all were served."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=int, default=10_000)
    given = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65_536)), hard))
    return 0 if asyncio.run(measure(given.connections)) else 1


if __name__ == "__main__":
    sys.exit(main())
