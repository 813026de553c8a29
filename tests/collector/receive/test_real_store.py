"""Does it hold with the real store behind it?"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import closing

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from llmtrace_collector.receive import Ingest, IngestSettings, Spool, SpoolLimits
from llmtrace_collector.receive.beacons import beacon_request
from llmtrace_collector.store import open_store
from tests.bench.crash import judge, lives
from tests.collector.receive.parts import body, request, span

DAY_NS = 86_400 * 10**9


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """An embedded store."""
    with closing(open_store(tmp_path_factory.mktemp("store"))) as opened:
        yield opened


@pytest.fixture
def spool(tmp_path):
    """Open an empty spool."""
    with closing(Spool(tmp_path / "spool", SpoolLimits(free_bytes=0))) as opened:
        yield opened


def append(spool, *payloads):
    """Append requests, one after the other."""

    async def run():
        for payload in payloads:
            await spool.append(payload, 1)

    asyncio.run(run())


def count(store, first, last):
    """Return how many spans and how many different ones there are of these numbers."""
    [found] = store.query(
        "SELECT count(), uniqExact(TraceId) FROM otel_traces"
        " WHERE TraceId BETWEEN {a:String} AND {b:String}",
        {"a": f"{first + 1:032x}", "b": f"{last + 1:032x}"},
    )
    return tuple(map(int, found))


def test_a_batch_inserted_again_is_stored_once(store, spool):
    """As after a crash between the insert and its note."""
    append(spool, *(body(n) for n in range(100)))
    batch = spool.next_batch(1 << 20, 60)
    store.insert_otlp(batch.body, batch.token)

    ingest = Ingest(spool, store)
    ingest.drain()

    assert count(store, 0, 99) == (100, 100)
    assert not ingest.counted.failures


def test_what_passed_the_check_never_stops_the_store(store, spool):
    """Spans from a year of days, from no time at all, with values of every kind."""
    now = time.time_ns()
    odd = [
        span(2000, start_time_unix_nano=0, end_time_unix_nano=0),
        span(2001, start_time_unix_nano=(1 << 64) - 1, end_time_unix_nano=0),
        span(2002, start_time_unix_nano=1 << 63, end_time_unix_nano=(1 << 64) - 1),
        span(2003, kind=77, name="\0\n'\\", trace_state="x" * 10_000),
    ]
    year = [span(3000 + n, start_time_unix_nano=now - n * DAY_NS) for n in range(365)]
    append(
        spool,
        request(*odd).SerializeToString(),
        request(*year).SerializeToString(),
        b"\x0a\x00" * 1000,
        b"\x0a\x02\x12\x00" * 1000,
        body(4000),
    )

    ingest = Ingest(spool, store)
    ingest.drain()

    assert (ingest.counted.quarantined, dict(ingest.counted.failures)) == ({}, {})
    assert count(store, 2000, 2003) == (4, 4)
    # Older ones than spans are kept are let go by the store.
    assert count(store, 3000, 3005) == (6, 6)
    assert count(store, 4000, 4000) == (1, 1)


def test_a_request_the_store_cannot_read_is_put_aside(store, spool):
    """Which the check would have rejected, had it come over the wire."""
    append(spool, body(5000), b"\x0a\x7fthis is no request", body(5001))

    ingest = Ingest(spool, store)
    ingest.drain()

    assert ingest.counted.quarantined == {"unreadable": 1}
    assert count(store, 5000, 5001) == (2, 2)


def test_a_beacon_is_a_span_of_the_store(store, spool):
    """Under the page's trace, with the figures' names on the wire."""
    shown = {"trace_id": "a" * 32, "span_id": "b" * 16, "e2e_ms": 1500, "outcome": "success"}
    append(spool, beacon_request(json.dumps(shown).encode(), time.time_ns()))

    Ingest(spool, store).drain()

    [[name, e2e, duration]] = store.query(
        "SELECT SpanName, SpanAttributes['llmtrace.browser.e2e'], toString(Duration)"
        " FROM otel_traces WHERE TraceId = {t:String}",
        {"t": "a" * 32},
    )
    assert (name, e2e, duration) == ("llmtrace.browser", "1.5", "1500000000")


def test_what_is_too_much_for_the_engine_is_set_aside(store, spool, monkeypatch):
    """A record that an earlier version took: what comes after it is stored all the same."""
    monkeypatch.setitem(store._otlp, "max_memory_usage", 192 << 20)  # of a smaller machine
    large = KeyValue(key="note", value=AnyValue(string_value="x" * 1_000_000))
    poison = request(*(span(number) for number in range(6000, 7000)))
    poison.resource_spans[0].resource.attributes.append(large)
    append(spool, body(5100), poison.SerializeToString(), body(5101))

    ingest = Ingest(spool, store, IngestSettings(backoff_s=0.01))
    ingest.drain()

    assert count(store, 5100, 5101) == (2, 2)
    assert ingest.counted.quarantined == {"memory": 1}
    [entry] = spool.quarantine.entries()
    assert "241" in entry.error
    assert spool.backlog_bytes == 0


def test_three_kills_lose_and_double_nothing(tmp_path, store):
    """A hundred: `python -m tests.bench.crash`."""
    store.close()  # one store a process
    sent, shown = asyncio.run(lives(tmp_path, 3, "interval", seed=7))

    verdict = judge(tmp_path, sent)

    assert shown["stored"]
    assert verdict.is_good, verdict
