"""Does an hour of scraping leave memory where it was?

    python -m tests.bench.scrape_hour                        # 20 engines, an hour's readings each
    python -m tests.bench.scrape_hour --url http://127.0.0.1:8000/metrics    # one live engine

An hour at 15 s is 240 readings of an engine. They are made as fast as they go: fetched over HTTP,
unified, held against the one before, made samples for the store, and every tenth time written out
as metrics, as `llmtrace collect` does. The pages are a real vLLM's, of 2,400 lines, with moving
numbers; every tenth reading its engine has begun anew, every fiftieth a page does not come.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest

from llmtrace_collector.metrics.target_metrics import TargetMetrics
from llmtrace_collector.scrape.samples import of_targets
from llmtrace_collector.scrape.scraper import Scraper, ScrapeSettings, TargetState
from llmtrace_collector.scrape.targets import StaticTargets, Target
from tests.bench.bench_pages import page

READINGS: Final = 240
ENGINES: Final = 20
_AT_ONCE: Final = 10
_EXPOSED_EVERY: Final = 10
_WARM: Final = 40
_ALLOWED_MIB: Final = 4.0
_MIB: Final = 1 << 20
_PAGE_BYTES: Final = 4096
_COUNT: Final = re.compile(r"GET /(\d+)/metrics")


def resident_mib() -> float:
    """Return what this process holds of memory, in MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * _PAGE_BYTES / _MIB


async def serve() -> None:
    """Be all the engines: each page the next one's numbers."""
    texts = [page(step).encode() for step in range(10)]
    asked: dict[str, int] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                found = _COUNT.match(head.decode("ascii"))
                engine = found[1] if found else ""
                number = asked[engine] = asked.get(engine, -1) + 1
                if number % 50 == 49:
                    writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
                else:
                    text = texts[number % 10]
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text))
                    writer.write(text)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


async def scrape(urls: Sequence[str], rounds: int) -> list[tuple[int, float]]:
    """Read them all so often; return the memory after each tenth of the rounds."""
    targets = StaticTargets(tuple(Target(url) for url in urls))
    settings = ScrapeSettings(interval_s=86_400.0, timeout_s=60.0)  # read by hand alone
    seen = []
    async with Scraper([targets], settings) as scraper:
        while len(scraper.states()) < len(urls):  # noqa: ASYNC110 - it notifies nothing
            await asyncio.sleep(0.01)
        registry = CollectorRegistry()
        registry.register(TargetMetrics(scraper.states))
        for number in range(1, rounds + 1):
            for some in _in_turn(scraper.states()):
                await asyncio.gather(*(scraper.read(state) for state in some))
            if number % _EXPOSED_EVERY == 0:
                generate_latest(registry)
            written = sum(1 for _ in of_targets(scraper.states(), time.time_ns()))
            if number % max(1, rounds // 10) == 0 or number == _WARM:
                gc.collect()
                seen.append((number, resident_mib()))
                lost = sum(sum(state.failures.values()) for state in scraper.states())
                print(
                    f"  {number:4} readings of {len(urls)} engines: {seen[-1][1]:7.1f} MiB, "
                    f"{written:,} samples a round, {lost} readings did not come", flush=True,
                )  # fmt: skip
    return seen


def _in_turn(states: Sequence[TargetState]) -> Iterator[Sequence[TargetState]]:
    for first in range(0, len(states), _AT_ONCE):
        yield states[first : first + _AT_ONCE]


def main() -> int:
    """Measure, print, and return 1 if memory grew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", action="append", help="a live page; may be given again")
    parser.add_argument("--engines", type=int, default=ENGINES)
    parser.add_argument("--readings", type=int, default=READINGS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve())
        return 0
    if options.url:
        return measured(options.url, options.readings)
    command = [sys.executable, "-m", "tests.bench.scrape_hour", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as engines:
        try:
            assert engines.stdout is not None
            port = int(engines.stdout.readline())
            urls = [f"http://127.0.0.1:{port}/{n}/metrics" for n in range(options.engines)]
            return measured(urls, options.readings)
        finally:
            engines.terminate()


def measured(urls: Sequence[str], rounds: int) -> int:
    """Scrape and judge."""
    logging.getLogger("llmtrace").setLevel(logging.ERROR)
    began, work = time.perf_counter(), time.process_time()
    seen = asyncio.run(scrape(urls, rounds))
    took, busy = time.perf_counter() - began, time.process_time() - work
    pages = rounds * len(urls)
    warm = next((mib for number, mib in seen if number >= min(_WARM, rounds)), seen[0][1])
    grew = seen[-1][1] - warm
    verdict = "stable" if grew <= _ALLOWED_MIB else "GREW"
    print(
        f"{pages:,} pages in {took:.0f} s, {busy:.0f} s of CPU ({pages / busy:,.0f} a CPU-second, "
        f"exposing and samples included)\n"
        f"memory after {min(_WARM, rounds)} readings {warm:.1f} MiB, at the end "
        f"{seen[-1][1]:.1f} MiB: {grew:+.1f} MiB, {verdict}"
    )
    return 0 if grew <= _ALLOWED_MIB else 1


if __name__ == "__main__":
    sys.exit(main())
