"""Does a join cost the more, the more is stored?

    python -m tests.bench.bench_join [--rows 10000 100000 1000000 10000000] [--folder DIR]

A store is filled, step by step, with rows of twenty days and with the parts of the last two of
them, as that many days leave behind. At each step requests come with their engine's spans, and the
join is run: CPU seconds of all threads of this process, and how many stored lines it read. Ends
with 1 if the last step's join costs more than twice the first's, or reads a tenth of what is
stored, once that is a million rows.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from llmtrace_collector.store import open_store
from tests.bench.bench_store import cpu, requests_sent
from tests.collector.store.sent import delimited

DAYS = 20
DAYS_OF_PARTS = 2
REQUESTS = 20
AGAIN = 7
MAX_GROWTH = 2.0
MAX_SHARE_READ = 0.1
MANY = 1_000_000
_ROW = "hex(sipHash128('trace', n)) AS trace_id, hex(sipHash64('span', n)) AS span_id"


def fill(store, first, last):
    """Store rows by number: the first of each day's begin on that day."""
    for day in range(DAYS):
        low, high = (
            first + (last - first) * day // DAYS,
            first + (last - first) * (day + 1) // DAYS,
        )
        ago = f"toIntervalSecond({86_400 * (DAYS - 1 - day) + 3_600} + n % 80000)"
        numbers = f"(SELECT number AS n FROM numbers({low}, {high - low}))"
        store.engine.run(
            "INSERT INTO requests (start, trace_id, span_id, service, model, outcome, request_id,"
            " response_id, reported_by, e2e_ns, parts, version_ns)"
            f" SELECT now64(9) - {ago} AS start, {_ROW}, 'shop', 'llama', 'success',"
            " concat('lt-', toString(n)), concat('chatcmpl-lt-', toString(n)), ['row', 'engine'],"
            f" 1000000000 + n % 1000000000, 2, 1 FROM {numbers}"
            " SETTINGS max_partitions_per_insert_block = 0"
        )
        if day >= DAYS - DAYS_OF_PARTS:
            store.engine.run(
                "INSERT INTO request_parts (kind, arrived, trace_id, span_id, start, service,"
                " request_id, response_id, e2e_ns)"
                f" SELECT ['row', 'engine'][kind_number + 1], now64(6) - {ago},"
                " trace_id, if(kind_number = 0, span_id, lower(span_id)), now64(9), 'shop',"
                " if(kind_number = 0, concat('lt-', toString(n)), ''),"
                f" concat('chatcmpl-lt-', toString(n)), 1000000000 FROM (SELECT n, {_ROW} FROM"
                f" {numbers}) ARRAY JOIN [0, 1] AS kind_number"
                " SETTINGS max_partitions_per_insert_block = 0"
            )


def read_so_far(store):
    """Return how many stored lines have been read by now."""
    [(value,)] = store.query("SELECT sum(value) FROM system.events WHERE event = 'SelectedRows'")
    return int(value)


def measure(store, step):
    """Return the CPU seconds of a join and how many lines it reads, each the median of some."""
    costs, reads = [], []
    for number in range(AGAIN):
        body = delimited(requests_sent(REQUESTS, engine=True))
        store.insert_otlp(body, f"{step}-{number}")
        time.sleep(0.02)
        before = read_so_far(store)
        cost, _, report = cpu(lambda: store.join(time.time_ns()))
        reads.append(read_so_far(store) - before)
        costs.append(cost)
        if report.rows != REQUESTS:
            sys.exit(f"{report.rows} rows of {REQUESTS} requests")
    return statistics.median(costs), statistics.median(reads)


def main():
    """Fill and measure step by step; return 1 where the cost grows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000, 10_000_000]
    )
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=given.folder))
    seen = []
    try:
        store = open_store(folder)
        measure(store, "warm")
        stored = 0
        for size in given.rows:
            began = time.perf_counter()
            fill(store, stored, size)
            stored = size
            took_s = time.perf_counter() - began
            cost, read = measure(store, size)
            seen.append((cost, read / size))
            print(
                f"{size:12,} rows stored: a join of {REQUESTS} requests {cost:6.3f} CPU-s,"
                f" {read:9,.0f} lines read   (filled in {took_s:.0f} s)",
                flush=True,
            )
        store.close()
    finally:
        shutil.rmtree(folder)
    growth = seen[-1][0] / seen[0][0]
    good = growth <= MAX_GROWTH and (stored < MANY or seen[-1][1] <= MAX_SHARE_READ)
    print(f"the last costs {growth:.2f} times the first: the bar, {MAX_GROWTH:g}, is "
          + ("met" if good else "missed"))  # fmt: skip
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
