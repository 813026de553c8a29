"""How many instructions does a request cost, by the OpenAI client and by llmtrace?

    python -m tests.bench.client_instructions [--requests 40] [--how sync]

A busy or throttled machine moves times; what is executed it does not move. Each turn is a process
under valgrind's callgrind (Debian: valgrind), bare or traced, with exporters on, all threads
counted, over loopback to a server outside. What start-up costs goes out by a second, shorter turn.
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

from llmtrace.export import ExportSettings, build
from tests.bench.client_cost import clients, serve

WARM_UP = 5  # requests in every turn, before those that are counted
_COLLECTED = re.compile(r"Collected : (\d+)")


def ask(url: str, requests: int, *, traced: bool, how: str) -> None:
    """Be the counted process: ask, and flush."""
    import prometheus_client

    import llmtrace

    if traced:
        settings = ExportSettings(service="bench", registry=prometheus_client.CollectorRegistry())
        llmtrace.init(
            "bench", exporters=["otlp", build("prometheus", settings)], instrument=["openai"]
        )
    one = clients(None, f"{url}/v1")[how]
    for _ in range(WARM_UP + requests):
        one()
    llmtrace.flush()
    llmtrace.shutdown()


def counted(url: str, requests: int, *, traced: bool, how: str) -> int:
    """Return the instructions of such a process."""
    words = [str(requests), "--url", url, "--how", how, *(["--traced"] if traced else [])]
    ran = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, "-m",
         "tests.bench.client_instructions", "--requests", *words],
        capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONHASHSEED": "0",
             "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_ENDPOINT": url},
    )  # fmt: skip
    found = _COLLECTED.search(ran.stderr)
    assert found is not None, ran.stderr
    return int(found[1])


def main() -> int:
    """Count, and print a line each for sync and async."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=40, help="of which a mean is taken")
    parser.add_argument("--how", choices=("sync", "async"), help="of the two, one only")
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--traced", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.url:
        ask(given.url, given.requests, traced=given.traced, how=given.how)
        return 0
    if shutil.which("valgrind") is None:
        print("valgrind is not here: apt install valgrind", file=sys.stderr)
        return 2
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(theirs,), daemon=True
    )
    server.start()
    try:
        url = f"http://127.0.0.1:{ours.recv()}"
        for how in (given.how,) if given.how else ("sync", "async"):
            turns = [(which, n) for which in (False, True) for n in (given.requests, 0)]
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                many, none, traced_many, traced_none = pool.map(
                    lambda turn, how=how: counted(url, turn[1], traced=turn[0], how=how), turns
                )
            bare = (many - none) / given.requests
            traced = (traced_many - traced_none) / given.requests
            print(
                f"{how:5}  bare {bare / 1e6:6.2f} million  added {(traced - bare) / 1e6:5.2f}"
                f" million  {traced / bare - 1:.1%}",
                flush=True,
            )
    finally:
        server.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
