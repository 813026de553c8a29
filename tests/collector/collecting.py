"""A whole collector in this process, and rows and spans to send to it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from llmtrace.core.row import Row
from llmtrace.engines.spans import DECODE, PREFILL, QUEUE
from llmtrace.exporters.otlp.encode import Resources, encode
from llmtrace.testing import make_row
from llmtrace_collector.commands.collect import running
from llmtrace_collector.config.schema import load
from llmtrace_collector.serve.how_to_send import Places
from tests.support.waiting import until

PATIENCE_S = 60.0


class Collecting:
    """A running collector, as its users see it."""

    def __init__(self, places: Places, loop: asyncio.AbstractEventLoop) -> None:
        assert places.web is not None
        assert places.otlp_http is not None
        self.places = places
        self.loop = loop
        self.web = places.url(places.web)
        self.otlp = places.url(places.otlp_http)

    def get(self, path: str, **headers: str) -> bytes:
        """Ask the web address."""
        asked = urllib.request.Request(self.web + path, headers=headers)
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            return bytes(answer.read())

    def json(self, path: str) -> Any:
        """Ask the web address for JSON."""
        return json.loads(self.get(path))

    def rows(self, query: str = "start=-1h") -> list[dict[str, Any]]:
        """Return stored rows."""
        return [json.loads(line) for line in self.get(f"/api/v1/rows?{query}").splitlines()]

    def send(self, body: bytes) -> int:
        """Send OTLP over HTTP, and return the status."""
        post = urllib.request.Request(
            f"{self.otlp}/v1/traces",
            data=body,
            headers={"Content-Type": "application/x-protobuf"},
        )
        with urllib.request.urlopen(post, timeout=PATIENCE_S) as answer:
            return int(answer.status)

    def metrics(self) -> dict[tuple[str, ...], float]:
        """Return all samples of /metrics by name and labels."""
        from prometheus_client.parser import text_string_to_metric_families as parse

        return {
            (one.name, *(f"{k}={v}" for k, v in sorted(one.labels.items()) if v)): one.value
            for family in parse(self.get("/metrics").decode())
            for one in family.samples
        }


@contextmanager
def collecting(data: Path, **variables: str) -> Iterator[Collecting]:
    """Run a collector on free ports in a thread of its own.

    Args:
        data: its folder.
        variables: settings, as in `metrics_settle="1"`.
    """
    environment = {f"LLMTRACE_COLLECT_{name.upper()}": text for name, text in variables.items()}
    flags = {("listen", name): "0" for name in ("web", "otlp_http", "otlp_grpc")}
    config = load(None, {("data",): str(data), **flags}, environment)
    up, down = threading.Event(), asyncio.Event()
    reported: list[Collecting] = []
    failed: list[BaseException] = []

    async def run() -> None:
        async with running(config) as places:
            reported.append(Collecting(places, asyncio.get_running_loop()))
            up.set()
            await down.wait()

    def work() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:  # raised by the waiting thread
            failed.append(error)
        finally:
            up.set()

    thread = threading.Thread(target=work, name="collecting")
    thread.start()
    up.wait()
    if failed:
        thread.join()
        raise failed[0]
    try:
        yield reported[0]
    finally:
        reported[0].loop.call_soon_threadsafe(down.set)
        thread.join()
        if failed:
            raise failed[0]


def some_rows(count: int, **fields: Any) -> list[Row]:
    """Make rows with ids of their own, that began within the last seconds."""
    now = time.time_ns()
    return [
        replace(
            make_row(**fields),
            trace_id=f"{now + n:032x}",
            span_id=f"{now + n:016x}",
            request_id=f"lt-{now + n:016x}",
            start=now - (2 * count - n) * 10**7 - 10**9,
        )
        for n in range(count)
    ]


def as_otlp(rows: Sequence[Row]) -> bytes:
    """Write rows as the SDK sends them."""
    return b"".join(body for body, _ in encode(list(rows), Resources(), 1 << 20))


def engine_span(row: Row, queue_s: float, prefill_s: float, decode_s: float) -> bytes:
    """Write what an engine's own span tells of a request, in the row's trace."""
    reported = {QUEUE: queue_s, PREFILL: prefill_s, DECODE: decode_s}
    span = Span(
        trace_id=bytes.fromhex(row.trace_id),
        span_id=bytes.fromhex(row.span_id)[::-1],
        parent_span_id=bytes.fromhex(row.span_id),
        name="llm_request",
        kind=2,
        start_time_unix_nano=row.start,
        end_time_unix_nano=row.start + row.e2e_ns,
        attributes=[
            KeyValue(key=name, value=AnyValue(double_value=value))
            for name, value in reported.items()
        ],
    )
    service = KeyValue(key="service.name", value=AnyValue(string_value="vllm"))
    resource = ResourceSpans(
        resource=Resource(attributes=[service]), scope_spans=[ScopeSpans(spans=[span])]
    )
    return ExportTraceServiceRequest(resource_spans=[resource]).SerializeToString()


def wait_for(look: Any, what: str) -> Any:
    """Look again and again until there is something; return it."""
    return until(look, what, PATIENCE_S)


@contextmanager
def process(
    data: Path, *flags: str, **variables: str
) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """Run `llmtrace collect`; yield it, and the addresses it names for OTLP and the web."""
    command = [sys.executable, "-m", "llmtrace", "collect", "--data-dir", str(data),
               "--web", "0", "--otlp-http", "0", "--otlp-grpc", "off", *flags]  # fmt: skip
    given = {f"LLMTRACE_COLLECT_{name.upper()}": text for name, text in variables.items()}
    environment = {**os.environ, **given}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as running:
        try:
            said = ""
            assert running.stderr is not None
            for line in running.stderr:
                said += line
                if " ready" in line or "error" in line:
                    break
            otlp = re.search(r"OTLP over HTTP +(\S+)", said)
            web = re.search(r"metrics +(\S+)/metrics", said)
            assert otlp is not None, said
            assert web is not None, said
            yield running, otlp[1], web[1]
        finally:
            if running.poll() is None:
                running.kill()


def post(otlp: str, body: bytes, *, kind: str = "application/x-protobuf") -> None:
    """Send OTLP."""
    headers = {"Content-Type": kind}
    asked = urllib.request.Request(f"{otlp}/v1/traces", data=body, headers=headers)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        assert answer.status == 200
