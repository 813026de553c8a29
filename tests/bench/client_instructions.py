"""How many instructions do a request and a chunk cost, by the OpenAI client and by llmtrace?

    python -m tests.bench.client_instructions [--times 100] [--how sync]

A busy or throttled machine moves times; what is executed it does not move. Each turn is a process
under valgrind's callgrind (Debian: valgrind), bare or traced, with exporters on, all threads
counted: requests over loopback to a server outside, and the chunks of one stream from memory. What
start-up costs goes out by a second, shorter turn, and so does the sending of the metrics, which is
the same for any number of requests.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.bench.client_cost import clients, exporters, serve
from tests.bench.replay import replaying

WARM_UP: Final = 5  # requests in every turn, before those that are counted
CHUNKS: Final = 2  # for each request
_COLLECTED: Final = re.compile(r"Collected : (\d+)")


def ask(url: str, times: int, *, chunks: bool, traced: bool, how: str) -> None:
    """Be the counted process: ask so many times, or for so many chunks at once, and flush."""
    import llmtrace

    if traced:
        llmtrace.init("bench", exporters=list(exporters().values()), instrument=["openai"])
    over = (replaying(times * CHUNKS), "http://replay/v1") if chunks else (None, f"{url}/v1")
    one = clients(*over)[how]
    for _ in range(WARM_UP if chunks else WARM_UP + times):
        one()
    llmtrace.flush()
    llmtrace.shutdown()


def counted(url: str, times: int, *, chunks: bool, traced: bool, how: str) -> int:
    """Return the instructions of such a process."""
    words = ["--url", url, "--times", str(times), "--how", how]
    words += ["--chunks"] * chunks + ["--traced"] * traced
    ran = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, "-m",
         "tests.bench.client_instructions", *words],
        capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONHASHSEED": "0",
             "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_ENDPOINT": url},
    )  # fmt: skip
    found = _COLLECTED.search(ran.stderr)
    assert found is not None, ran.stderr
    return int(found[1])


def costs(url: str, times: int, *, chunks: bool, how: str) -> tuple[float, float]:
    """Return the instructions of one request or chunk, bare, and what llmtrace adds."""
    turns = [(traced, number) for traced in (False, True) for number in (times, 0)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        many, none, traced_many, traced_none = pool.map(
            lambda turn: counted(url, turn[1], chunks=chunks, traced=turn[0], how=how), turns
        )
    number = times * CHUNKS * WARM_UP if chunks else times
    bare = (many - none) / number
    return bare, (traced_many - traced_none) / number - bare


def main() -> int:
    """Count, and print a line each for sync and async."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=100, help="requests a mean is taken of")
    parser.add_argument("--how", choices=("sync", "async"), help="of the two, one only")
    for hidden in ("--chunks", "--traced"):
        parser.add_argument(hidden, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.url:
        ask(given.url, given.times, chunks=given.chunks, traced=given.traced, how=given.how)
        return 0
    if shutil.which("valgrind") is None:
        print("valgrind is not here: apt install valgrind", file=sys.stderr)
        return 2
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(theirs,), daemon=True
    )
    server.start()
    print(f"{'instructions':12} {'a chunk, bare':>14} {'added':>8}   "
          f"{'a request, bare':>16} {'added':>10} {'in chunks':>16}")  # fmt: skip
    try:
        url = f"http://127.0.0.1:{ours.recv()}"
        for how in (given.how,) if given.how else ("sync", "async"):
            chunk, more = costs(url, given.times, chunks=True, how=how)
            bare, added = costs(url, given.times, chunks=False, how=how)
            print(f"{how:12} {chunk:14,.0f} {more:8,.0f}   {bare:16,.0f} {added:10,.0f} "
                  f"{added / chunk:6.2f} bare ones", flush=True)  # fmt: skip
    finally:
        server.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
