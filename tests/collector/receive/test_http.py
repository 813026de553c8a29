"""Does every sender over HTTP get the answer that an exporter knows what to do with?"""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import zlib
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import aiohttp
import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from llmtrace.core.browser_timing import ON_WIRE, unflatten
from llmtrace.semconv.attributes import SCOPE
from llmtrace_collector.receive import HttpAccess, ReceiveLimits, SpoolLimits
from llmtrace_collector.receive.decompress import ENCODINGS
from tests.collector.receive.parts import body, receiving, request, span, spooled
from tests.collector.receive.test_check import as_json
from tests.support.taking_time import aspend, forever
from tests.support.waiting import auntil

PROTOBUF = {"Content-Type": "application/x-protobuf"}
TOKEN = "a-token-of-sixteen"
BEACON = {
    "trace_id": "1" * 32, "span_id": "2" * 16, "e2e_ms": 1200.5, "ttft_ms": 300,
    "outcome": "success", "age_ms": 50,
}  # fmt: skip


@asynccontextmanager
async def sending(tmp_path, limits=None, access=None, spool_limits=None):
    """Listen; yield the receiver, and a session that sends to it."""
    async with (
        receiving(tmp_path / "spool", limits, access, spool_limits) as receiver,
        aiohttp.ClientSession(
            receiver.url, timeout=aiohttp.ClientTimeout(60), auto_decompress=False
        ) as session,
    ):
        yield receiver, session


async def posted(session, data, path="/v1/traces", **headers):
    """Post; return the status, the body and the headers of the answer."""
    headers = {**PROTOBUF, **{k.replace("_", "-"): v for k, v in headers.items()}}
    sent = io.BytesIO(data) if isinstance(data, bytes) else data
    async with session.post(path, data=sent, headers=headers) as answer:
        return answer.status, await answer.read(), answer.headers


def run(test, *args, **kwargs):
    """Run a test with a receiver of its own."""

    async def within():
        async with sending(*args, **kwargs) as (receiver, session):
            await test(receiver, session)

    asyncio.run(within())


def packed(encoding, raw):
    """Compress."""
    if encoding == "zstd":
        zstd = pytest.importorskip("backports.zstd")
        return zstd.compress(raw)
    return {"gzip": gzip.compress, "deflate": zlib.compress, "identity": bytes}[encoding](raw)


def test_what_is_answered_with_200_is_kept(tmp_path):
    """With the empty answer that OTLP has for it."""

    async def test(receiver, session):
        status, answer, headers = await posted(session, body(0, 5))

        assert (status, answer) == (200, b"")
        assert headers["Content-Type"] == "application/x-protobuf"
        assert list(range(5)) == spooled(receiver.spool)
        assert receiver.admission.counted.spans == {"http": 5}
        assert receiver.admission.counted.memory_bytes == 0

    run(test, tmp_path)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_is_read(tmp_path, encoding):
    """Large bodies and small ones."""

    async def test(receiver, session):
        for raw in (body(0, 1), body(1, 400)):
            status, _, _ = await posted(session, packed(encoding, raw), content_encoding=encoding)
            assert status == 200

        assert list(range(401)) == spooled(receiver.spool)

    run(test, tmp_path)


def test_json_is_taken_and_answered_in_json(tmp_path):
    """Hex ids and all."""

    async def test(receiver, session):
        raw = json.dumps(as_json(span(0), span(1))).encode()
        status, answer, headers = await posted(
            session, raw, content_type="application/json; charset=utf-8"
        )

        assert (status, answer, headers["Content-Type"]) == (200, b"{}", "application/json")
        assert spooled(receiver.spool) == [0, 1]

    run(test, tmp_path)


def test_what_is_left_out_is_reported_as_partial_success(tmp_path):
    """How many, and why; in the sender's own encoding."""
    wrong = span(1, trace_id=b"short")

    async def test(receiver, session):
        status, answer, _ = await posted(session, request(span(0), wrong).SerializeToString())
        shown = ExportTraceServiceResponse.FromString(answer).partial_success

        assert (status, shown.rejected_spans) == (200, 1)
        assert "trace id" in shown.error_message

        status, answer, _ = await posted(
            session, json.dumps(as_json(span(2), wrong)), content_type="application/json"
        )
        assert json.loads(answer)["partialSuccess"]["rejectedSpans"] == "1"
        assert spooled(receiver.spool) == [0, 2]
        assert receiver.admission.counted.rejected_spans == {"ids": 2}

    run(test, tmp_path)


@pytest.mark.parametrize(
    ("data", "headers", "status", "reason"),
    [
        (b"garbage", {}, 400, "bad_data"),
        (body()[:-2], {}, 400, "bad_data"),
        (b"not gzip", {"content_encoding": "gzip"}, 400, "bad_data"),
        (gzip.compress(body())[:-9], {"content_encoding": "gzip"}, 400, "bad_data"),
        (b"[" * 100_000, {"content_type": "application/json"}, 400, "bad_data"),
        (body(), {"content_encoding": "br"}, 415, "encoding"),
        (body(), {"content_type": "text/plain"}, 415, "media_type"),
        (bytes(200_000), {}, 413, "too_large"),
        (bytes(5_000_000), {}, 413, "too_large"),
        (b" " * 60_000, {"content_type": "application/json"}, 413, "too_large"),
        (gzip.compress(bytes(50_000_000)), {"content_encoding": "gzip"}, 413, "too_large"),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_is_rejected_for_good(tmp_path, data, headers, status, reason):
    """No exporter tries these again, and each moves a counter."""
    limits = ReceiveLimits(body_bytes=100_000, inflated_bytes=100_000, json_bytes=50_000)
    if data[:1] == b"[":
        limits = ReceiveLimits()

    async def test(receiver, session):
        got, answer, shown = await posted(session, data, **headers)

        assert (status, None) == (got, shown.get("Retry-After"))
        if shown["Content-Type"] == "application/json":
            assert json.loads(answer)["message"]
        else:
            assert Status.FromString(answer).message
        assert {("http", reason): 1} == receiver.admission.counted.rejected
        assert receiver.admission.counted.memory_bytes == 0
        # And the next one is taken.
        assert (await posted(session, body()))[0] == 200

    run(test, tmp_path, limits)


def test_a_body_whose_length_is_unknown_is_bounded_too(tmp_path):
    """Chunked bodies are counted as they come."""
    limits = ReceiveLimits(body_bytes=100_000)

    async def endless():
        while True:
            yield bytes(10_000)

    async def test(receiver, session):
        try:
            status, _, _ = await posted(session, endless())
        except aiohttp.ClientError:
            pass  # we had closed before it had read the answer
        else:
            assert status == 413
        assert receiver.admission.counted.rejected == {("http", "too_large"): 1}

    run(test, tmp_path, limits)


def test_too_much_at_once_is_to_come_back_later(tmp_path):
    """Memory is bounded over all requests; the response says when to try again."""
    limits = ReceiveLimits(body_bytes=60_000, inflated_bytes=60_000, memory_bytes=100_000)

    async def slow():
        yield bytes(50_000)
        await forever()

    async def test(receiver, session):
        busy = [asyncio.create_task(posted(session, slow())) for _ in range(2)]
        await until(lambda: receiver.admission.counted.memory_bytes >= 100_000)

        status, answer, headers = await posted(session, body())

        assert (status, headers["Retry-After"]) == (429, "5")
        assert "later" in Status.FromString(answer).message
        for one in busy:
            one.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
        await until(lambda: not receiver.admission.counted.memory_bytes)
        assert (await posted(session, body()))[0] == 200

    run(test, tmp_path, limits)


def test_a_full_spool_is_to_come_back_later(tmp_path):
    """As OTLP has it: 503 and when."""

    async def test(receiver, session):
        answers = [await posted(session, body(n, 3)) for n in range(0, 30, 3)]

        assert [answers[0][0], answers[-1][0]] == [200, 503]
        assert answers[-1][2]["Retry-After"] == "5"
        assert receiver.admission.counted.rejected["http", "spool_full"] > 0

    run(
        test, tmp_path, spool_limits=SpoolLimits(free_bytes=0, segment_bytes=1000, disk_bytes=1000)
    )


def test_a_token_is_asked_for_where_one_is_set(tmp_path):
    """Of spans, not of beacons; and never shown."""
    access = HttpAccess(token=TOKEN)

    async def test(receiver, session):
        for wrong in ({}, {"authorization": "Bearer no"}, {"authorization": f"Basic {TOKEN}"}):
            status, answer, headers = await posted(session, body(), **wrong)
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
            assert TOKEN.encode() not in answer
        assert (await posted(session, body(), authorization=f"bearer {TOKEN}"))[0] == 200
        assert (await posted(session, json.dumps(BEACON), "/v1/beacons"))[0] == 204

    run(test, tmp_path, access=access)
    assert TOKEN not in repr(access)


def test_a_beacon_becomes_the_page_s_span(tmp_path):
    """The same that the middleware would have made, in the page's trace."""

    async def test(receiver, session):
        status, answer, _ = await posted(session, json.dumps(BEACON), "/v1/beacons")
        assert (status, answer) == (204, b"")

        batch = receiver.spool.next_batch(1 << 20, 10)
        [resource] = ExportTraceServiceRequest.FromString(batch.records[0].payload).resource_spans
        [scope] = resource.scope_spans
        [made] = scope.spans
        assert (made.trace_id, made.span_id) == (b"\x11" * 16, b"\x22" * 8)
        assert (
            made.parent_span_id, made.name, scope.scope.name,
        ) == (b"", "llmtrace.browser", SCOPE)  # fmt: skip
        assert made.end_time_unix_nano - made.start_time_unix_nano == 1_200_500_000
        flat = {one.key: getattr(one.value, one.value.WhichOneof("value"))
                for one in made.attributes}  # fmt: skip
        browser = unflatten(flat, ON_WIRE)
        assert (browser.e2e_ns, browser.ttft_ns) == (1_200_500_000, 300_000_000)

    run(test, tmp_path)


@pytest.mark.parametrize(
    ("data", "status"),
    [(b"{}", 400), (b"x", 400), (b"[" * 3000, 400), (b" " * 5000, 413)],
)
def test_what_is_no_beacon_is_rejected(tmp_path, data, status):
    """And counted by its own way."""

    async def test(receiver, session):
        assert (await posted(session, data, "/v1/beacons"))[0] == status
        assert {"beacon"} == {way for way, _ in receiver.admission.counted.rejected}

    run(test, tmp_path)


def test_beacons_are_taken_so_many_a_second(tmp_path):
    """Anybody can send them, so that they must not fill the store."""

    async def test(_receiver, session):
        statuses = [
            (await posted(session, json.dumps(BEACON), "/v1/beacons"))[0] for _ in range(6)
        ]
        assert statuses == [204, 204, 429, 429, 429, 429]

    run(test, tmp_path, ReceiveLimits(beacons_per_s=2.0 / 1))


@pytest.mark.parametrize("path", ["/v1/beacons", "/v1/traces"])
def test_pages_of_named_origins_alone_may_send(tmp_path, path):
    """Preflights and requests; this collector's own origin always may."""
    access = HttpAccess(origins=frozenset({"https://shop.example"}))
    data = json.dumps(BEACON) if path.endswith("beacons") else body()

    async def test(receiver, session):
        own = receiver.url
        for origin, welcome in (
            ("https://shop.example", True), (own, True), ("https://evil.example", False),
        ):  # fmt: skip
            async with session.options(path, headers={"Origin": origin}) as answer:
                assert (204 if welcome else 403) == answer.status
                allowed = answer.headers.get("Access-Control-Allow-Origin")
                assert (origin if welcome else None) == allowed
            status, _, headers = await posted(session, data, path, origin=origin)
            assert (status < 300) == welcome
            assert welcome == ("Access-Control-Allow-Origin" in headers)

    run(test, tmp_path, access=access)


def test_any_origin_may_be_let_in(tmp_path):
    """Where a setting allows it."""

    async def test(_receiver, session):
        _, _, headers = await posted(
            session, json.dumps(BEACON), "/v1/beacons", origin="https://any.example"
        )
        assert headers["Access-Control-Allow-Origin"] == "*"

    run(test, tmp_path, access=HttpAccess(origins=frozenset("*")))


def test_a_label_explosion_grows_no_metric(tmp_path):
    """However many names senders make up, the counters' labels are ours."""

    async def test(receiver, session):
        for n in range(50):
            many = [KeyValue(key=f"key-{n}-{k}") for k in range(300)]
            await posted(session, request(span(n, attributes=many)).SerializeToString())
            await posted(session, body(), content_encoding=f"encoding-{n}")
            await posted(session, body(), content_type=f"type/{n}")
        counted = receiver.admission.counted

        assert counted.rejected_spans == {"attributes": 50}
        assert counted.rejected == {("http", "encoding"): 50, ("http", "media_type"): 50}

    run(test, tmp_path)


async def until(condition):
    """Wait for something that has to come."""
    await auntil(condition)


async def closed(writer):
    """Close a connection from this side."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def raw(url):
    """Open a connection of bytes."""
    where = urlsplit(url)
    return await asyncio.open_connection(where.hostname, where.port)


@pytest.mark.parametrize(
    "said",
    [b"", b"POST /v1/tra", b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nX: "],
)
def test_a_head_that_never_comes_closes_the_connection(tmp_path, said):
    """Half-open connections, and those that drip, are not kept."""
    limits = ReceiveLimits(head_s=0.2, idle_s=600)

    async def test(receiver, _session):
        reader, writer = await raw(receiver.url)
        writer.write(said)
        async with asyncio.timeout(20):
            while await reader.read(1000):
                pass
        await closed(writer)
        assert receiver.admission.counted.dropped_connections["slow_head"] == 1
        await until(lambda: not receiver.admission.counted.connections)

    run(test, tmp_path, limits)


def test_nor_is_one_kept_that_begins_a_second_request_and_stops(tmp_path):
    """A line's end alone counts as a beginning."""
    limits = ReceiveLimits(head_s=0.2, idle_s=600)

    async def test(receiver, _session):
        reader, writer = await raw(receiver.url)
        writer.write(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(20):
            await reader.readuntil(b"\r\n\r\nNot Found")
            writer.write(b"\r\n")
            assert await reader.read() == b""
        await closed(writer)
        assert receiver.admission.counted.dropped_connections["slow_head"] == 1

    run(test, tmp_path, limits)


def test_a_body_that_never_comes_is_given_up(tmp_path):
    """The connection is closed, and what it held is free again."""
    limits = ReceiveLimits(body_s=0.2)

    async def test(receiver, _session):
        reader, writer = await raw(receiver.url)
        writer.write(
            b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
            b"Content-Length: 1000\r\n\r\nabc"
        )
        async with asyncio.timeout(20):
            answer = await reader.read()
        await closed(writer)
        assert b" 408 " in answer.splitlines()[0]
        assert receiver.admission.counted.memory_bytes == 0
        assert receiver.admission.counted.rejected == {("http", "too_slow"): 1}

    run(test, tmp_path, limits)


def test_a_slow_but_steady_sender_is_served(tmp_path):
    """What comes in time is taken, however small its pieces."""

    async def test(receiver, _session):
        reader, writer = await raw(receiver.url)
        data = body(0, 2)
        whole = (
            f"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
            "Content-Type: application/x-protobuf\r\nConnection: close\r\n\r\n"
        ).encode() + data
        for place in range(0, len(whole), 20):
            writer.write(whole[place : place + 20])
            await aspend(0.005)
        async with asyncio.timeout(20):
            assert b" 200 " in (await reader.read()).splitlines()[0]
        await closed(writer)
        assert spooled(receiver.spool) == [0, 1]

    run(test, tmp_path)


def test_connections_are_bounded(tmp_path):
    """One too many gets 503, and the others are served."""
    limits = ReceiveLimits(connections=3)

    async def test(receiver, session):
        assert (await posted(session, body()))[0] == 200
        others = [await raw(receiver.url) for _ in range(2)]
        await until(lambda: receiver.admission.counted.connections == 3)

        reader, writer = await raw(receiver.url)
        async with asyncio.timeout(20):
            answer = await reader.read()
        assert b"503" in answer
        assert b"Retry-After" in answer
        assert (await posted(session, body()))[0] == 200
        assert receiver.admission.counted.dropped_connections == {"too_many": 1}
        for _, one in (*others, (reader, writer)):
            await closed(one)

    run(test, tmp_path, limits)


def test_what_is_no_http_closes_the_connection(tmp_path):
    """And is counted."""

    async def test(receiver, session):
        for nonsense in (b"\x16\x03\x01\x02\x00\x01\x00", b"HELO there\r\n\r\n", bytes(3000)):
            reader, writer = await raw(receiver.url)
            writer.write(nonsense)
            async with asyncio.timeout(20):
                await reader.read()
            await closed(writer)
        assert receiver.admission.counted.dropped_connections == {"bad_http": 3}
        assert (await posted(session, body()))[0] == 200

    run(test, tmp_path)


def test_a_sender_that_leaves_within_its_body_holds_nothing(tmp_path):
    """What it had sent is let go."""

    async def test(receiver, _session):
        _, writer = await raw(receiver.url)
        writer.write(
            b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
            b"Content-Length: 100000\r\n\r\nabc"
        )
        await until(lambda: receiver.admission.counted.memory_bytes)
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()
        await until(lambda: not receiver.admission.counted.memory_bytes)

    run(test, tmp_path)


def test_other_paths_and_methods_are_distinguished(tmp_path):
    """404 and 405, as anywhere."""

    async def test(_receiver, session):
        async with session.get("/v1/traces") as answer:
            assert answer.status == 405
        async with session.post("/v1/metrics") as answer:
            assert answer.status == 404

    run(test, tmp_path)
