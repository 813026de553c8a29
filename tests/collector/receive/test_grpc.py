"""Does every sender over gRPC get the answer that an exporter knows what to do with?"""

from __future__ import annotations

import asyncio
import gzip
from contextlib import asynccontextmanager

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from llmtrace.core.errors import ConfigError
from llmtrace_collector.receive import Admission, ReceiveLimits, Spool, SpoolLimits, start_grpc
from llmtrace_collector.receive.otlp_grpc import SERVICE
from tests.collector.receive.parts import body, request, span, spooled

TOKEN = "a-token-of-sixteen"


@asynccontextmanager
async def serving(folder, limits=None, spool_limits=None, **how):
    """Serve; yield the admission, the spool and what calls `Export` with bytes."""
    spool = Spool(folder, spool_limits or SpoolLimits(free_bytes=0))
    try:
        admission = Admission(spool, limits)
        server, port = await start_grpc(admission, "127.0.0.1:0", **how)
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield admission, spool, channel.unary_unary(f"/{SERVICE}/Export")
        finally:
            await server.stop(0)
    finally:
        await asyncio.to_thread(spool.close)


def run(test, *args, **kwargs):
    """Run a test with a server of its own."""

    async def within():
        async with serving(*args, **kwargs) as (admission, spool, export):
            await test(admission, spool, export)

    asyncio.run(within())


async def rejected(export, data, **how):
    """Call, and return the error."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await export(data, timeout=30, **how)
    return caught.value


def test_what_is_answered_is_kept(tmp_path):
    """Plain and compressed, with the empty answer that OTLP has for it."""

    async def test(admission, spool, export):
        assert await export(body(0, 5)) == b""
        assert await export(body(5, 5), compression=grpc.Compression.Gzip) == b""

        assert list(range(10)) == spooled(spool)
        assert admission.counted.spans == {"grpc": 10}
        assert admission.counted.memory_bytes == 0

    run(test, tmp_path)


def test_what_is_left_out_is_reported_as_partial_success(tmp_path):
    """How many, and why."""

    async def test(_admission, spool, export):
        answer = await export(request(span(0), span(1, span_id=b"")).SerializeToString())

        partial = ExportTraceServiceResponse.FromString(answer).partial_success
        assert (partial.rejected_spans, spooled(spool)) == (1, [0])

    run(test, tmp_path)


@pytest.mark.parametrize("wrong", [b"garbage", body()[:-2], gzip.compress(body())])
def test_bad_data_is_rejected_for_good(tmp_path, wrong):
    """No exporter tries it again."""

    async def test(admission, _spool, export):
        error = await rejected(export, wrong)

        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert admission.counted.rejected == {("grpc", "bad_data"): 1}

    run(test, tmp_path)


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_too_large_is_rejected(tmp_path, packed):
    """Also what only unfolds to that: gRPC itself bounds it."""
    limits = ReceiveLimits(body_bytes=100_000)
    how = {"compression": grpc.Compression.Gzip} if packed else {}

    async def test(_admission, spool, export):
        error = await rejected(export, bytes(50_000_000 if packed else 200_000), **how)

        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await export(body()) == b""
        assert spooled(spool) == [0]

    run(test, tmp_path, limits)


def retry_info(error):
    """Return how long the sender is asked to wait, in seconds."""
    trailers = dict(error.trailing_metadata())
    [detail] = Status.FromString(trailers["grpc-status-details-bin"]).details
    info = RetryInfo()
    assert detail.Unpack(info)
    return info.retry_delay.seconds


def test_a_full_spool_is_to_come_back_later(tmp_path):
    """As OTLP has it: unavailable, and when."""
    full = SpoolLimits(free_bytes=0, segment_bytes=1000, disk_bytes=1000)

    async def test(_admission, _spool, export):
        for n in range(2):
            await export(body(n, 3))
        error = await rejected(export, body(0, 3))

        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert retry_info(error) == 5

    run(test, tmp_path, spool_limits=full)


def test_too_much_at_once_is_to_come_back_later(tmp_path):
    """Exhausted, and when: without that an exporter drops its data."""

    async def test(admission, _spool, export):
        admission.counted.memory_bytes = admission.limits.memory_bytes
        error = await rejected(export, body())

        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert retry_info(error) == 5
        assert admission.counted.rejected == {("grpc", "overloaded"): 1}

    run(test, tmp_path)


def test_a_token_is_asked_for_where_one_is_set(tmp_path):
    """As metadata; and never shown."""

    async def test(_admission, _spool, export):
        for wrong in (None, [("authorization", "Bearer no")]):
            error = await rejected(export, body(), metadata=wrong)
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert TOKEN not in error.details()
        assert await export(body(), metadata=[("authorization", f"Bearer {TOKEN}")]) == b""

    run(test, tmp_path, token=TOKEN)


def test_a_place_that_cannot_be_listened_on_is_reported_at_set_up(tmp_path):
    """With what would do."""

    async def test(admission, _spool, _export):
        with pytest.raises(ConfigError, match="cannot listen"):
            await start_grpc(admission, "192.0.2.1:4317")

    run(test, tmp_path)
