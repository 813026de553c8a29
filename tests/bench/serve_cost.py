"""What does it cost the collector to serve what it holds?

    python -m tests.bench.serve_cost [--rows 1000000]

A store of an hour's rows, made in SQL: the live view, percentiles, pages of rows as JSON and as
Arrow, rows counted into metrics, and /metrics with so many engines in it. CPU seconds of this
process, all threads, and seconds as they passed; best of three.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest

from llmtrace.budget import DEFAULT
from llmtrace.exporters.prometheus.aggregate import Aggregate
from llmtrace_collector.metrics.request_metrics import RequestMetrics
from llmtrace_collector.metrics.target_metrics import TargetMetrics
from llmtrace_collector.scrape.scraper import TargetState
from llmtrace_collector.scrape.targets import Target
from llmtrace_collector.serve import arrow, live_queries
from llmtrace_collector.signals.normalise import Normaliser
from llmtrace_collector.signals.profile import builtin_profiles
from llmtrace_collector.store import read
from llmtrace_collector.store.clickhouse_store import Store
from llmtrace_collector.store.open_store import open_store

ROWS: Final = 1_000_000
ENGINES: Final = 100
COUNTED: Final = 20_000
_NS: Final = 1_000_000_000
_HOUR_NS: Final = 3_600 * _NS
_SCRAPE: Final = Path(__file__).parent.parent / "collector/data/vllm-0.32-metrics.txt"
_ROUNDS: Final = 3


def best(work: Callable[[], object]) -> tuple[float, float]:
    """Return the CPU seconds and the seconds something takes, at best."""
    found = []
    for _ in range(_ROUNDS):
        began, busy = time.perf_counter(), time.process_time()
        work()
        found.append((time.process_time() - busy, time.perf_counter() - began))
    return min(cpu for cpu, _ in found), min(passed for _, passed in found)


def fill(store: Store, rows: int, now_ns: int) -> None:
    """Make an hour of rows, each with its stages, as the join would."""
    store.engine.run(
        "INSERT INTO requests (start, trace_id, span_id, service, reported_by, operation, outcome,"
        " model, route, request_id, stream, attempts, chunks, weight, prompt_tokens,"
        " output_tokens, e2e_ns, ttft_ns, last_content_ns, network_ns, network_source, queue_ns,"
        " queue_source,"
        " prefill_ns, prefill_source, first_chunk_ns, first_chunk_source, decode_ns,"
        " decode_source, render_ns, render_source, unattributed_ns, version_ns)"
        " SELECT fromUnixTimestamp64Nano(toInt64("
        f"{now_ns - _HOUR_NS} + number * {_HOUR_NS // rows})),"
        " lower(hex(sipHash128(number))), lower(hex(sipHash64(number))), 'shop', ['row'], 'chat',"
        " if(number % 50 = 0, 'error', 'success'), concat('model-', toString(number % 4)),"
        " concat('route-', toString(number % 5)), lower(hex(number)), true, 1, 50, 1, 500, 50,"
        " n + q + p + f + d + r, n + q + p + f, n + q + p + f + d, n, 'client', q,"
        " 'engine_inband', p, 'engine_inband', f, 'client', d, 'client', r, 'client', 0,"
        f" toUInt64({now_ns - _HOUR_NS} + number * {_HOUR_NS // rows})"
        " FROM (SELECT number, toInt64(1e6 * (1 + rand(1) % 20)) AS n,"
        " toInt64(1e6 * exp(rand(2) / 1e9)) AS q, toInt64(1e6 * (50 + rand(3) % 300)) AS p,"
        " toInt64(1e6 * (2 + rand(4) % 30)) AS f, toInt64(1e6 * (300 + rand(5) % 2000)) AS d,"
        f" toInt64(1e5 * (rand(6) % 100)) AS r FROM numbers({rows}))"
    )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    options = parser.parse_args()
    now = time.time_ns()
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(folder)
        try:
            fill(store, options.rows, now)
            print(f"{options.rows:,} rows in an hour, CPU s and s:")
            serve(store, now)
            count(store, now)
        finally:
            store.close()
    expose()
    return 0


def serve(store: Store, now: int) -> None:
    """Measure what the page and the API ask."""
    since = now - _HOUR_NS
    few = 50_000
    for name, work in (
        ("live: five minutes", lambda: live_queries.counted(store, now - 300 * _NS, now, DEFAULT)),
        ("live: the hour, a minute each", lambda: live_queries.minutes(store, now, DEFAULT)),
        ("live: the slowest", lambda: live_queries.slowest(store, since, now, DEFAULT, 8)),
        ("API: p50, p95, p99 of 11, a minute each",
         lambda: read.stage_percentiles(store, since, now)),
        ("API: coverage", lambda: read.coverage(store, since, now)),
        (f"API: {few:,} rows", lambda: sum(1 for _ in read.rows(store, since, now, limit=few))),
        (f"API: {few:,} rows as Arrow",
         lambda: sum(map(len, arrow.encoder("rows")(read.rows(store, since, now, limit=few))))),
    ):  # fmt: skip
        cpu, passed = best(work)
        print(f"  {name:42} {cpu:7.3f} {passed:7.3f}")


def count(store: Store, now: int) -> None:
    """Measure how fast rows are counted into metrics."""
    rows = [*islice(read.rows(store, now - _HOUR_NS, now), COUNTED)]
    tally = RequestMetrics(store, Aggregate(thresholds_s=DEFAULT.thresholds_s()).add, settle_s=1.0)
    began = time.process_time()
    for row in rows:
        tally._count(row, now)
    print(f"  rows counted a CPU-second: {tally.rows / (time.process_time() - began):,.0f}")


def expose() -> None:
    """Measure /metrics by engines."""
    text = _SCRAPE.read_text(encoding="utf-8")
    states = []
    for number in range(ENGINES):
        state = TargetState(Target(f"http://engine-{number}:8000/metrics"),
                            Normaliser(builtin_profiles()))  # fmt: skip
        state.reading, state.up = state.normaliser.read(text), True
        states.append(state)
    registry = CollectorRegistry()
    registry.register(TargetMetrics(lambda: states))
    cpu, _ = best(lambda: generate_latest(registry))
    page = generate_latest(registry)
    series = sum(1 for line in page.splitlines() if not line.startswith(b"#"))
    print(
        f"/metrics of {ENGINES} vLLM: {series:,} series ({series / ENGINES:.0f} an engine), "
        f"{len(page) / (1 << 20):.1f} MiB, {cpu:.2f} CPU s ({1e6 * cpu / series:.1f} us a series)"
    )


if __name__ == "__main__":
    sys.exit(main())
