"""What does a page of the request list cost the collector, and the page of one request?

    python -m tests.bench.request_pages [--rows 1000000]

A store of an hour of rows, made in SQL, of which a tenth was written again; each page is requested
over the application itself, as a browser does. CPU seconds of this process, all threads, and
seconds as they passed; best of three.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from typing import Final

from starlette.testclient import TestClient

from llmtrace_collector.store.open_store import open_store
from tests.bench.serve_cost import best, fill
from tests.collector.serve.stored_requests import application

ROWS: Final = 1_000_000
MAX_CPU_S: Final = 0.3
LISTS: Final = (
    "", "model=model-1", "model=model-1&outcome=error", "model=nothing", "slower_than=2.5",
    "sort=e2e", "sort=queue", "sort=tpot&route=route-2", "sort=queue&limit=200",
)  # fmt: skip


def main() -> int:
    """Measure, print, and return 1 if a list takes too much."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    options = parser.parse_args()
    now = time.time_ns()
    most = 0.0
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(folder)
        try:
            fill(store, options.rows, now)
            store.engine.run(
                "INSERT INTO requests SELECT * REPLACE (version_ns + 1 AS version_ns)"
                " FROM requests WHERE cityHash64(span_id) % 10 = 0"
            )
            print(f"{options.rows:,} rows in an hour, CPU s and s:")
            with TestClient(application(store, now_s=now / 1e9)) as client:

                def get(path: str) -> None:
                    answer = client.get(path)
                    assert answer.status_code == 200, answer.text

                for query in LISTS:
                    cpu, passed = best(lambda query=query: get(f"/requests?{query}"))
                    print(f"  {'/requests?' + query:48} {cpu:7.3f} {passed:7.3f}")
                    if "limit" not in query:
                        most = max(most, cpu)
                [row] = client.get("/requests.json?sort=queue&limit=1").json()["rows"]
                cpu, passed = best(lambda: get(f"/requests/{row['trace_id']}"))
                print(f"  {'/requests/{id}':48} {cpu:7.3f} {passed:7.3f}")
        finally:
            store.close()
    verdict = "met" if most <= MAX_CPU_S else "missed"
    print(f"target: a list of 50 in {MAX_CPU_S:g} CPU s: {verdict}, {most:.3f} at most")
    return 0 if most <= MAX_CPU_S else 1


if __name__ == "__main__":
    sys.exit(main())
