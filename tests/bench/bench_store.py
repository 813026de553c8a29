"""What does it cost to store spans, to join them, and to ask ten million rows?

    python -m tests.bench.bench_store [--rows 10000000] [--requests 20000] [--folder DIR]

CPU seconds are of all threads of this process. Rows for the questions are made in the store
itself, a day of them; each question is asked three times, and the median is shown beside what was
promised.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from llmtrace.core.random_ids import random_id
from llmtrace.core.span import Span
from llmtrace.core.stages import STAGES
from llmtrace.exporters.otlp.encode import Resources, encode
from llmtrace_collector.store import open_store, read
from tests.collector.store.sent import delimited
from tests.exporters.samples import typical

NS = 10**9
DAY_NS = 86_400 * NS
MINUTE_NS = 60 * NS
DAY_US = DAY_NS // 1000  # times ten million it still fits into 64 bits
AGAIN = 3
# The aim is a second where the barest query of the stages takes 0.48 s: a multiple of that.
TIMES_BARE = 1 / 0.48


def requests_sent(number, *, engine):
    """Make rows as an application sends them, and the spans of their engine."""
    items = []
    for n in range(number):
        name = f"lt-{random_id(8)}"
        row = replace(
            typical(n), start=time.time_ns(), trace_id=random_id(16), span_id=random_id(8),
            parent_span_id=None, request_id=name, response_id=f"chatcmpl-{name}",
        )  # fmt: skip
        items.append(row)
        if engine:
            items.append(
                Span(
                    name="llm_request", kind="server", trace_id=row.trace_id,
                    span_id=random_id(8), parent_span_id=row.span_id, service="vllm",
                    start=row.start, duration_ns=2 * NS,
                    attributes={
                        "gen_ai.request.id": row.response_id,
                        "gen_ai.latency.time_in_queue": 0.12,
                        "gen_ai.latency.time_in_model_prefill": 0.23,
                        "gen_ai.latency.time_in_model_decode": 1.9,
                        "gen_ai.latency.time_to_first_token": 0.36,
                        "gen_ai.latency.e2e": 2.3,
                    },
                )
            )  # fmt: skip
    return [body for body, _ in encode(items, Resources(), 1 << 20)]


def cpu(work):
    """Run something; return what it took, in CPU seconds and in seconds, and its result."""
    began, wall = time.process_time(), time.perf_counter()
    result = work()
    return time.process_time() - began, time.perf_counter() - wall, result


def storing(store, number):
    """Store and join so many requests in batches of three sizes, without and with an engine."""
    for engine in (False, True):
        for size in (number // 20, number // 4, number):
            one_size(store, size, engine=engine)


def one_size(store, size, *, engine):
    """Store batches of one size, and join what came of them."""
    body = delimited(requests_sent(size, engine=engine))
    store.insert_otlp(body, f"warm-{engine}-{size}")
    store.join(time.time_ns())
    before = store.query("SELECT count() FROM otel_traces")[0][0]
    took = [
        cpu(lambda n=n: store.insert_otlp(body, f"{engine}-{size}-{n}"))[0] for n in range(AGAIN)
    ]
    spans = (store.query("SELECT count() FROM otel_traces")[0][0] - before) // AGAIN
    join_cpu, _, report = cpu(lambda: store.join(time.time_ns()))
    print(
        f"store  {'rows, engine spans' if engine else 'rows':18} {spans:7,} spans a batch"
        f"  {spans / statistics.median(took):9,.0f} spans/CPU-s  join of {report.rows:6,} rows"
        f"  {join_cpu:5.2f} CPU-s, {report.rows / join_cpu:7,.0f} rows/CPU-s",
        flush=True,
    )


def fill(store, number):
    """Make a day of rows in the store itself; return when they begin."""
    begin = time.time_ns() // DAY_NS * DAY_NS - DAY_NS
    stages = ("network", "gateway", "queue", "prefill", "first_chunk", "decode", "render")
    drawn = ", ".join(
        f"toInt64(exp(randNormal({mean}, 0.7, {place})) * 1e6) AS {stage}_ns,"
        f" 'client' AS {stage}_source"
        for place, (stage, mean) in enumerate(zip(stages, (1, 2, 3, 5, 2, 7, 3), strict=True), 1)
    )
    each = 1_000_000
    for first in range(0, number, each):
        count = min(each, number - first)
        store.engine.run(f"""
INSERT INTO requests (start, trace_id, span_id, service, operation, model, route, region, tenant,
  replica, outcome, request_id, response_id, reported_by, stream, prompt_tokens, output_tokens,
  {", ".join(f"{stage}_ns, {stage}_source" for stage in stages)},
  e2e_ns, ttft_ns, last_content_ns, version_ns)
SELECT
  fromUnixTimestamp64Nano(
    toInt64({begin} + intDiv((number + {first}) * {DAY_US}, {number}) * 1000), 'UTC'),
  lower(hex(sipHash128(number + {first}))), lower(hex(sipHash64(number + {first}))),
  'shop', 'chat', ['llama', 'qwen', 'mistral'][number % 3 + 1], ['/chat', '/sum'][number % 2 + 1],
  ['eu', 'us'][rand(9) % 2 + 1], concat('t', toString(rand(10) % 100)),
  concat('pod-', toString(rand(11) % 12)), if(rand(12) % 100 = 0, 'error', 'success'),
  concat('lt-', toString(number + {first})), concat('chatcmpl-lt-', toString(number + {first})),
  ['row'], true, rand(13) % 4000, rand(14) % 500 + 2, {drawn},
  network_ns + gateway_ns + queue_ns + prefill_ns + first_chunk_ns + decode_ns + render_ns,
  network_ns + gateway_ns + queue_ns + prefill_ns + first_chunk_ns,
  network_ns + gateway_ns + queue_ns + prefill_ns + first_chunk_ns + decode_ns, 1
FROM numbers({count})""")
        print(f"\rfill   {first + count:,} rows", end="", flush=True)
    print()
    return begin


def asking(store, begin, number):
    """Ask what the dashboards, triage and `llmtrace top` ask."""
    end = begin + DAY_NS
    some = random.Random(1).randrange(number)
    [(trace,)] = store.query(f"SELECT lower(hex(sipHash128(toUInt64({some}))))")
    stages = partial(read.stage_percentiles, store, begin, of=STAGES)
    columns = ", ".join(f"toUInt64({stage}_ns) AS {stage}" for stage in STAGES)
    store.engine.run(
        f"CREATE TABLE bare ENGINE = MergeTree ORDER BY start AS SELECT start, {columns}"
        " FROM requests"
    )
    store.engine.run("OPTIMIZE TABLE bare FINAL")
    exact = ", ".join(f"quantilesExact(0.5, 0.95, 0.99)({stage})" for stage in STAGES)
    bare = (
        f"SELECT intDiv(toUnixTimestamp64Nano(start), {MINUTE_NS}) AS minute, {exact} FROM bare"
        " GROUP BY minute"
    )
    questions = {
        "per-minute p50, p95, p99 of all stages, a day": (
            lambda: stages(end), f"<= {TIMES_BARE:.1f} times the next"),
        "the same of a table with nothing else in it": (lambda: store.query(bare), ""),
        "the same with ttft, tpot and e2e": (
            lambda: read.stage_percentiles(store, begin, end), ""),
        "the stages, an hour": (lambda: stages(begin + 3600 * NS), ""),
        "a trace by its id": (lambda: read.trace(store, trace), "<= 50 ms"),
        "the 20 slowest of the day": (lambda: read.slowest(store, begin, end), ""),
        "coverage of the day": (lambda: read.coverage(store, begin, end), ""),
        "all rows of a minute": (lambda: [*read.rows(store, begin, begin + 60 * NS)], ""),
    }  # fmt: skip
    for name, (question, promised) in questions.items():
        question()
        took = statistics.median(cpu(question)[1] for _ in range(AGAIN))
        print(f"ask    {name:48} {took * 1e3:9,.1f} ms   {promised}", flush=True)
    sizes = store.query(
        "SELECT sum(bytes_on_disk), sum(rows), count() FROM system.parts"
        " WHERE active AND table = 'requests'"
    )[0]
    print(f"size   requests: {sizes[0] / sizes[1]:.0f} bytes a row, in {sizes[2]} parts")


def main():
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--requests", type=int, default=12_000)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        store = open_store(folder)
        if options.requests:
            storing(store, options.requests)
        if options.rows:
            asking(store, fill(store, options.rows), options.rows)
        store.close()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
