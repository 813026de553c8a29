"""The receiving side of bench_receive: a collector, or the obvious alternative, on one core.

Prints its port, receives until SIGTERM, stores all of it, and prints what that took.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

Finish = Callable[[], Awaitable[dict[str, Any]]]


class Usage:
    """CPU time of this process, and the most memory it held, from now on."""

    def __init__(self) -> None:
        self._cpu = time.process_time()
        self.most_rss = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def totals(self) -> dict[str, float]:
        """Return both, and stop watching."""
        self._over.set()
        return {"cpu_s": time.process_time() - self._cpu, "most_rss_mb": self.most_rss / 2**20}

    def _watch(self) -> None:
        page = resource.getpagesize()
        while not self._over.wait(0.1):
            held = int(Path("/proc/self/statm").read_text().split()[1]) * page
            self.most_rss = max(self.most_rss, held)


# What the engine must do to store spans at all: text in the same table, and nothing else.
BARE = """\
CREATE MATERIALIZED VIEW spans_of_otlp TO otel_traces AS
SELECT
    fromUnixTimestamp64Nano(toInt64(s.start_time_unix_nano)) AS Timestamp,
    lower(hex(s.trace_id)) AS TraceId, lower(hex(s.span_id)) AS SpanId,
    lower(hex(s.parent_span_id)) AS ParentSpanId, s.name AS SpanName, toString(s.kind) AS SpanKind,
    resource['service.name'] AS ServiceName, resource AS ResourceAttributes,
    {spans} AS SpanAttributes, s.end_time_unix_nano - s.start_time_unix_nano AS Duration
FROM (
    SELECT resource, g.spans AS spans
    FROM (
        SELECT {resource} AS resource, r.scope_spans AS scope_spans
        FROM otlp ARRAY JOIN resource_spans AS r
    ) ARRAY JOIN scope_spans AS g
) ARRAY JOIN spans AS s"""
SCALARS = """\
mapFromArrays({0}.key, arrayMap(kv -> multiIf(kv.value.value = 'string_value',
    kv.value.string_value, kv.value.value = 'int_value', toString(kv.value.int_value),
    kv.value.value = 'double_value', toString(kv.value.double_value), ''), {0}))"""


async def ours(
    folder: Path, slow_spans_s: float, *, tight: bool, bare: bool
) -> tuple[int, Finish]:
    """Receive as `llmtrace collect` does; `bare`: without anything made of the spans."""
    from llmtrace_collector.receive import (
        Admission,
        HttpServer,
        Ingest,
        ReceiveLimits,
        Spool,
        SpoolLimits,
        routes,
    )
    from llmtrace_collector.store import open_store

    store: Any = open_store(folder / "store")
    store.query("SELECT 1")
    if bare:
        for view in ("reporting_of_spans", "request_parts_of_spans", "spans_of_otlp"):
            store.engine.run(f"DROP VIEW {view}")
        maps = {"spans": SCALARS.format("s.attributes")}
        maps["resource"] = SCALARS.format("r.resource.attributes")
        store.engine.run(BARE.format(**maps))
    if slow_spans_s:
        store = Slow(store, slow_spans_s)
    mib = 1 << 20
    spool_limits = SpoolLimits(disk_bytes=64 * mib, segment_bytes=8 * mib, free_bytes=0)
    spool = Spool(folder / "spool", spool_limits if tight else SpoolLimits(free_bytes=0))
    admission = Admission(spool, ReceiveLimits(memory_bytes=32 * mib) if tight else None)
    ingest = Ingest(spool, store)
    ingest.start()
    server = await HttpServer(
        Starlette(routes=routes(admission)), "127.0.0.1", 0, admission.limits, admission.counted
    ).start()

    async def finish() -> dict[str, Any]:
        await server.stop()
        if isinstance(store, Slow):
            store.spans_s = 0
        drained = await asyncio.to_thread(ingest.stop, 300.0)
        [[spans, rows]] = store.query(
            "SELECT (SELECT count() FROM otel_traces), (SELECT count() FROM requests FINAL)"
        )
        spool.close()
        store.close()
        return {
            "stored": spans,
            "rows": rows,
            "drained": drained,
            "insert_s": ingest.counted.insert_s,
            "join_s": ingest.counted.join_s,
            "batches": ingest.counted.batches,
            "refused": {" ".join(k): n for k, n in admission.counted.rejected.items()},
        }

    return server.port, finish


class Slow:
    """A store that takes so many spans a second, and no more."""

    def __init__(self, store: Any, spans_s: float) -> None:
        self._store = store
        self.spans_s = spans_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def insert_otlp(self, body: bytes, token: str) -> None:
        """Store, and take as long as it would."""
        self._store.insert_otlp(body, token)
        left = len(body) / 500 / self.spans_s if self.spans_s else 0
        while left > 0 and self.spans_s:
            time.sleep(min(left, 0.1))
            left -= 0.1


async def duckdb_walk(folder: Path) -> tuple[int, Finish]:
    """Receive as one would at first: read every span in Python, and insert columns into DuckDB."""
    import duckdb  # type: ignore[import-not-found]
    import pyarrow as pa

    database = duckdb.connect(str(folder / "spans.duckdb"))
    database.execute("SET threads=1")
    database.execute(
        "CREATE TABLE spans (start_ns UBIGINT, end_ns UBIGINT, trace_id VARCHAR, span_id VARCHAR,"
        " parent_span_id VARCHAR, name VARCHAR, kind INTEGER, service VARCHAR, status INTEGER,"
        " resource MAP(VARCHAR, VARCHAR), attributes MAP(VARCHAR, VARCHAR))"
    ).fetchall()
    mapping = pa.map_(pa.string(), pa.string())
    kinds = pa.schema(
        [("start_ns", pa.uint64()), ("end_ns", pa.uint64()), ("trace_id", pa.string()),
         ("span_id", pa.string()), ("parent_span_id", pa.string()), ("name", pa.string()),
         ("kind", pa.int32()), ("service", pa.string()), ("status", pa.int32()),
         ("resource", mapping), ("attributes", mapping)]
    )  # fmt: skip
    waiting: list[tuple[Any, ...]] = []
    lock = threading.Lock()
    over = threading.Event()

    def text(value: Any) -> str:
        which = value.WhichOneof("value")
        return "" if which is None else str(getattr(value, which))

    async def take(request: Request) -> Response:
        message = ExportTraceServiceRequest.FromString(await request.body())
        found = []
        for one in message.resource_spans:
            about = [(kv.key, text(kv.value)) for kv in one.resource.attributes]
            service = dict(about).get("service.name", "")
            for scope in one.scope_spans:
                for span in scope.spans:
                    attributes = [(kv.key, text(kv.value)) for kv in span.attributes]
                    found.append(
                        (span.start_time_unix_nano, span.end_time_unix_nano, span.trace_id.hex(),
                         span.span_id.hex(), span.parent_span_id.hex(), span.name, span.kind,
                         service, span.status.code, about, attributes)
                    )  # fmt: skip
        with lock:
            waiting.extend(found)
        return Response(b"", media_type="application/x-protobuf")

    def insert() -> None:
        nonlocal waiting
        with lock:
            rows, waiting = waiting, []
        if rows:
            columns = [
                pa.array(c, t) for c, t in zip(zip(*rows, strict=True), kinds.types, strict=True)
            ]
            batch = pa.Table.from_arrays(columns, schema=kinds)
            database.register("batch", batch)
            database.execute("INSERT INTO spans SELECT * FROM batch").fetchall()
            database.unregister("batch")

    def keep_inserting() -> None:
        while not over.wait(0.5):
            insert()

    thread = threading.Thread(target=keep_inserting)
    thread.start()
    app = Starlette(routes=[Route("/v1/traces", take, methods=["POST"])])
    config = uvicorn.Config(app, port=0, log_level="warning", access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn tells it in no other way
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]

    async def finish() -> dict[str, Any]:
        server.should_exit = True
        await serving
        over.set()
        await asyncio.to_thread(thread.join)
        await asyncio.to_thread(insert)
        [[spans]] = database.execute("SELECT count(*) FROM spans").fetchall()
        database.close()
        return {"stored": spans}

    return port, finish


async def serve(given: argparse.Namespace) -> None:
    """Receive until SIGTERM."""
    stop = asyncio.Event()
    if given.into == "duckdb":
        port, finish = await duckdb_walk(given.folder)
    else:
        bare = given.into == "bare"
        port, finish = await ours(given.folder, given.slow, tight=given.tight, bare=bare)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print(port, flush=True)
    usage = Usage()
    await stop.wait()
    totals = await finish()
    print(json.dumps(totals | usage.totals()), flush=True)


def main() -> None:
    """Pin, and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--into", default="llmtrace", choices=("llmtrace", "bare", "duckdb"))
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--tight", action="store_true")
    given = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(given))


if __name__ == "__main__":
    main()
