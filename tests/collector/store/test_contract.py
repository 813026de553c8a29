"""Does a store keep its promises, inside this process and over HTTP alike?

"server" is the test double of `shim.py`: the ClickHouse engine behind a server's protocol.
"""

from __future__ import annotations

import time
from urllib.parse import urlsplit

import pytest

from llmtrace.core.errors import DataError
from llmtrace_collector.store import BadBatch, Event, Facts, SignalSample, open_store
from llmtrace_collector.store.clickhouse_server import Server
from llmtrace_collector.store.clickhouse_store import Store
from llmtrace_collector.store.otlp_to_spans import INDEXED_LATER
from tests.collector.store.sent import body_of, fetch, join, send
from tests.collector.store.shim import serving
from tests.collector.store.test_join import differences, plugin_span, row

NS = 10**9


@pytest.fixture(scope="module", params=["embedded", "server"])
def store(request, tmp_path_factory):
    """An empty store, of either kind."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "embedded":
        opened = open_store(folder)
        yield opened
        opened.close()
        return
    with serving(folder / "data") as (url, _):
        opened = Store(Server(urlsplit(f"{url}/llmtrace"), settle_s=0.0))
        yield opened
        opened.close()


def count(store, table):
    """Count a table's rows."""
    return store.query(f"SELECT count() FROM {table} FINAL")[0][0]


def spans(store):
    """Count the spans."""
    return store.query("SELECT count() FROM otel_traces")[0][0]


def test_a_batch_is_stored_once_for_each_token(store):
    """The same batch again stores nothing, in none of the tables; another token does."""
    before = spans(store)
    body = body_of([row(), row()])

    store.insert_otlp(body, "once")
    once = spans(store) - before
    store.insert_otlp(body, "once")
    again = spans(store) - before
    store.insert_otlp(body, "another")

    assert once == again > 2
    assert spans(store) - before == 2 * once


def test_rows_are_joined_and_read_back(store):
    """Spans in, one row out, with the figures of a record that came after it."""
    one = row()
    send(store, [one], token=f"rows-{one.span_id}")
    assert join(store).rows >= 1
    assert differences(store, [one]) == {}

    send(store, [plugin_span(one.response_id)], token=f"rows-late-{one.span_id}")
    assert join(store).rows == 1
    [stored] = fetch(
        store, ["reported_by", "replica"], "span_id = {id:String}", id=one.span_id
    ).values()
    assert stored["reported_by"] == ["row", "plugin"]


@pytest.mark.parametrize("cut", [1, 7, 40, -1])
def test_a_cut_batch_is_refused_whole(store, cut):
    """Nothing of it is stored, and the store goes on."""
    before = spans(store)
    body = body_of([row(), row()])

    with pytest.raises(BadBatch):
        store.insert_otlp(body[:cut], f"cut-{cut}-{time.time_ns()}")

    assert spans(store) == before
    send(store, [row()], token=f"after-{time.time_ns()}")
    assert spans(store) > before


def test_an_empty_batch_is_no_batch(store):
    """Nothing is stored, and nothing goes wrong."""
    before = spans(store)

    store.insert_otlp(b"", "empty")

    assert spans(store) == before


def test_signals_events_and_facts(store):
    """They come back as they were; events and facts twice are once."""
    now = time.time_ns() // 10**6 * 10**6
    store.insert_signals(
        [
            SignalSample(now, "pod-1", "running", 3.0),
            SignalSample(
                now + 10**6, "pod-1", "finished", 1e9 + 0.5, {"reason": "it's \\ done\n"}
            ),
            SignalSample(now, "pod-2", "kv_usage", float("nan")),
        ]
    )
    event = Event(now, "deploy", "v2 \u2192 all", labels={"version": "2"})
    store.insert_events([event])
    store.insert_events([event])
    facts = Facts(now, "pod-1", {"engine": "vllm", "max_num_seqs": 256})
    store.insert_facts([facts])
    store.insert_facts([facts])

    samples = store.query(
        "SELECT toUnixTimestamp64Milli(t), instance, signal, value, labels"
        " FROM signals ORDER BY t, instance"
    )
    assert samples[0] == (now // 10**6, "pod-1", "running", 3.0, {})
    assert samples[1][:3] == (now // 10**6, "pod-2", "kv_usage")
    assert samples[2][2:] == ("finished", 1e9 + 0.5, {"reason": "it's \\ done\n"})
    assert store.query("SELECT kind, text, labels FROM events FINAL") == [
        ("deploy", "v2 \u2192 all", {"version": "2"})
    ]
    assert store.query("SELECT instance, facts FROM facts FINAL") == [
        ("pod-1", '{"engine": "vllm", "max_num_seqs": 256}')
    ]


def test_queries_take_parameters_and_change_nothing(store):
    """Whatever is in them stays data."""
    hostile = "x' OR 1=1 -- \\ \t\n"
    assert store.query("SELECT {a:String}, {b:Int64}, {c:Array(String)}", {
        "a": hostile, "b": -5, "c": [hostile, ""]}) == [(hostile, -5, [hostile, ""])]  # fmt: skip
    with pytest.raises(DataError):
        store.query("SELECT nothing FROM nowhere")
    with pytest.raises(DataError):
        store.query("INSERT INTO events (t, kind) VALUES (now(), 'x')")


def test_times_of_wrong_clocks_are_stored_as_of_now(store):
    """A sender a century ahead makes no folder for each of its days."""
    ahead = row(start=4_000_000_000 * NS)
    behind = row(start=0)

    send(store, [ahead, behind], token=f"clocks-{ahead.span_id}")
    join(store)

    for one in (ahead, behind):
        [(start,)] = store.query(
            "SELECT toUnixTimestamp(start) FROM requests FINAL WHERE span_id = {id:String}",
            {"id": one.span_id},
        )
        assert abs(start - time.time()) < 600


def test_indexes_that_merges_make_are_there_afterwards(store):
    """A fresh part has the index on trace ids; once merged it has all of the exporter's."""
    sizes = (
        "SELECT name, sum(data_compressed_bytes) > 0 FROM system.data_skipping_indices"
        " WHERE table = 'otel_traces' AND database = currentDatabase() GROUP BY name"
    )
    store.engine.run("TRUNCATE TABLE otel_traces")
    store.engine.run("SYSTEM STOP MERGES otel_traces")
    store.insert_otlp(body_of([row(), row()]), "indexed later")
    fresh = dict(store.query(sizes))
    store.engine.run("SYSTEM START MERGES otel_traces")
    store.engine.run("OPTIMIZE TABLE otel_traces FINAL")
    merged = dict(store.query(sizes))

    assert {name for name, is_made in fresh.items() if not is_made} == set(INDEXED_LATER)
    assert all(merged.values())
