"""Requests to send, and a store in memory to send them to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span
from starlette.applications import Starlette

from llmtrace_collector.receive import (
    Admission,
    HttpAccess,
    HttpServer,
    ReceiveLimits,
    Spool,
    SpoolLimits,
    routes,
)
from llmtrace_collector.store.records import BadBatch, JoinReport, StoreError


def span(number: int, **fields: object) -> Span:
    """Make one span; its number is its trace id and its span id."""
    now = time.time_ns()
    return Span(
        **{
            "trace_id": (number + 1).to_bytes(16),
            "span_id": (number + 1).to_bytes(8),
            "name": "chat",
            "kind": 3,
            "start_time_unix_nano": now - 1_000_000_000,
            "end_time_unix_nano": now,
            "attributes": [
                KeyValue(key="gen_ai.request.model", value=AnyValue(string_value="tiny")),
                KeyValue(key="number", value=AnyValue(int_value=number)),
            ],
            **fields,
        }
    )


def request(*spans: Span) -> ExportTraceServiceRequest:
    """Make one request of one service."""
    name = KeyValue(key="service.name", value=AnyValue(string_value="shop"))
    return ExportTraceServiceRequest(
        resource_spans=[
            ResourceSpans(
                resource=Resource(attributes=[name]), scope_spans=[ScopeSpans(spans=spans)]
            )
        ]
    )


def body(first: int = 0, count: int = 1) -> bytes:
    """Make a request of numbered spans, as bytes."""
    return request(*(span(n) for n in range(first, first + count))).SerializeToString()


def numbers(*payloads: bytes) -> list[int]:
    """Return the numbers of the spans in requests."""
    return [
        int.from_bytes(one.trace_id) - 1
        for payload in payloads
        for resource in ExportTraceServiceRequest.FromString(payload).resource_spans
        for scope in resource.scope_spans
        for one in scope.spans
    ]


def undelimited(delimited: bytes) -> list[bytes]:
    """Take requests apart that stand one behind the other, each after its length."""
    found, at = [], 0
    while at < len(delimited):
        length = shift = 0
        while True:
            byte = delimited[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        found.append(delimited[at : at + length])
        at += length
    return found


@dataclass
class MemoryStore:
    """Keeps batches by their token.

    Attributes:
        batches: what was inserted, by token.
        failing: the next inserts fail, so many of them.
        fails_after: the insert is done, and then fails.
        poison: a span with this number cannot be stored.
        joins: how often it joined.
        shared: others may write to it.
    """

    batches: dict[str, list[int]] = field(default_factory=dict)
    failing: int = 0
    fails_after: bool = False
    poison: int | None = None
    joins: int = 0
    again: int = 0
    shared: bool = True

    def insert_otlp(self, body: bytes, token: str) -> None:
        """Keep a batch once."""
        found = numbers(*undelimited(body))
        if self.failing and not self.fails_after:
            self.failing -= 1
            raise StoreError("not now")
        if self.poison in found:
            raise BadBatch("no spans")
        self.again += token in self.batches
        self.batches.setdefault(token, found)
        if self.failing:
            self.failing -= 1
            raise StoreError("the answer was lost")

    def join(self, now_ns: int) -> JoinReport:
        """Count that."""
        self.joins += 1
        return JoinReport(0)

    @property
    def stored(self) -> list[int]:
        """The numbers of all spans, in the order they came."""
        return [number for batch in self.batches.values() for number in batch]


@dataclass
class Receiver:
    """A receiver that listens."""

    url: str
    admission: Admission
    spool: Spool


@asynccontextmanager
async def receiving(
    folder: Path,
    limits: ReceiveLimits | None = None,
    access: HttpAccess | None = None,
    spool_limits: SpoolLimits | None = None,
) -> AsyncIterator[Receiver]:
    """Listen on loopback."""
    spool = Spool(folder, spool_limits or SpoolLimits(free_bytes=0))
    try:
        admission = Admission(spool, limits)
        app = Starlette(routes=routes(admission, access))
        server = HttpServer(app, "127.0.0.1", 0, admission.limits, admission.counted)
        await server.start()
        try:
            yield Receiver(f"http://127.0.0.1:{server.port}", admission, spool)
        finally:
            await server.stop()
    finally:
        await asyncio.to_thread(spool.close)


def spooled(spool: Spool) -> list[int]:
    """Return the numbers of all spans that the spool has not handed on, and hand them on."""
    found: list[int] = []
    while (batch := spool.next_batch(1 << 20, 1000)) is not None:
        found += numbers(*(record.payload for record in batch.records))
        spool.stored(batch)
    return found
