"""Is what is stored kept as long as it should be, and can it be taken elsewhere?"""

from __future__ import annotations

import fcntl
import time
from contextlib import ExitStack
from dataclasses import replace
from urllib.parse import urlsplit

import chdb
import pytest

from llmtrace.core.errors import ConfigError, SourceError
from llmtrace_collector.store import Event, Facts, SignalSample, StoreError, ddl, open_store
from llmtrace_collector.store.clickhouse_embedded import Embedded
from llmtrace_collector.store.clickhouse_server import Server
from llmtrace_collector.store.clickhouse_store import Store
from llmtrace_collector.store.migrate import copy, migrate
from llmtrace_collector.store.tables import Keep
from tests.collector.store.sent import body_of, fetch, join, send
from tests.collector.store.shim import serving
from tests.collector.store.test_join import differences, engine_span, plugin_span, row
from tests.support.free_ports import free_port

DAY_NS = 86_400 * 10**9


@pytest.fixture
def folder(tmp_path):
    """Where a store of one test lies."""
    return tmp_path / "store"


class Remembered:
    """An engine's answers, so that a second embedded engine need not be open to copy from it."""

    name = "remembered"

    def __init__(self, engine):
        self._engine = engine
        self.answers = {}

    def read(self, sql, form, parameters=None):
        """Ask, or answer as before."""
        if (sql, form) not in self.answers:
            self.answers[sql, form] = self._engine.read(sql, form, parameters)
        return self.answers[sql, form]


def test_everything_moves_to_a_server_and_an_interrupted_move_goes_on(folder, tmp_path):
    """All tables arrive, once, and the join there comes to the same rows."""
    store = open_store(folder)
    rows = [row() for _ in range(20)]
    send(store, [*rows, *(plugin_span(one.response_id) for one in rows[:5])])
    join(store)
    now = time.time_ns() // 10**6 * 10**6
    store.insert_signals([SignalSample(now + n * 10**9, "a", "running", n) for n in range(50)])
    store.insert_events([Event(now, "deploy", "v2")])
    store.insert_facts([Facts(now, "a", {"engine": "vllm"})])
    columns = ["reported_by", "queue_ns", "queue_source", "replica"]
    before = fetch(store, columns)
    counts = {
        table: store.query(f"SELECT count() FROM {table}")[0][0]
        for table in ("otel_traces", "signals")
    }
    source = Remembered(store.engine)

    class Away(Exception):  # noqa: N818
        pass

    def nothing(*_):
        pass

    class Interrupted:
        """A destination that goes away in the middle, having stored the slice or not."""

        def read(self, *_):
            return b"0"

        def insert(self, *_):
            raise Away

    with pytest.raises(Away):
        copy(source, Interrupted(), nothing)
    copy(source, store.engine, nothing)  # everything once more into itself: asks for all there is
    store.close()

    with serving(tmp_path / "data") as (url, _):
        there = Store(Server(urlsplit(f"{url}/moved"), settle_s=0.0))
        shown = []
        copy(source, there.engine, lambda *what: shown.append(what))
        moved = copy(source, there.engine, lambda *_: None)

        assert {one.table: (one.source, one.destination) for one in moved} == {
            "requests": (20, 20), "otel_traces": (counts["otel_traces"],) * 2,
            "signals": (50, 50), "events": (1, 1), "facts": (1, 1),
        }  # fmt: skip
        assert shown[0] == ("requests", 0, 20)
        assert shown[1] == ("requests", 20, 20)
        assert fetch(there, columns) == before
        join(there)
        assert fetch(there, columns) == before
        there.close()


def test_a_loss_on_the_way_is_an_error(folder):
    """Fewer rows over there than here: said, and not found out months later."""
    store = open_store(folder)
    send(store, [row()])
    join(store)

    class Leaky:
        def read(self, *_):
            return b"0"

        def insert(self, *_):
            pass

    with pytest.raises(SourceError, match="requests: 0 rows arrived of 1"):
        copy(store.engine, Leaky(), lambda *_: None)
    store.close()


def test_two_folders_are_copied_as_folders():
    """A process has one embedded store: the error says what to do instead."""
    with pytest.raises(ConfigError, match="Copy the folder"):
        migrate("/a", "chdb:///b")


def test_what_is_too_old_goes_and_the_tables_follow_the_setting(folder):
    """Spans a week, rows a season; another setting at the next start changes what is there."""
    store = open_store(folder, keep=Keep(spans=3, rows=30))
    now = time.time_ns()
    old = row(start=now - 5 * DAY_NS)
    recent = row(start=now - DAY_NS)
    send(store, [old, recent])
    join(store)
    store.engine.run("OPTIMIZE TABLE otel_traces FINAL")

    kept = {trace for (trace,) in store.query("SELECT DISTINCT TraceId FROM otel_traces")}
    assert kept == {recent.trace_id}
    assert differences(store, [old, recent]) == {}
    store.close()

    store = open_store(folder, keep=Keep(spans=9, rows=2))
    store.engine.run("OPTIMIZE TABLE requests FINAL")
    assert set(fetch(store, [])) == {recent.span_id}
    assert "toIntervalDay(9)" in store.query("SHOW CREATE TABLE otel_traces")[0][0]
    store.close()


def test_the_oldest_days_go_when_the_disk_is_full(folder):
    """Wrong clocks' days first, then the oldest spans; rows last, and never today's."""
    store = open_store(folder, keep=Keep(spans=300, rows=300))
    now = time.time_ns()
    days = [0, 1, 2, 30]
    rows = [row(start=now - day * DAY_NS) for day in days for _ in range(30)]
    send(store, rows)
    join(store)
    sizes = store.query(
        "SELECT toString(partition), sum(bytes_on_disk) FROM system.parts WHERE active"
        " AND table = 'otel_traces' GROUP BY partition ORDER BY partition"
    )
    total = sum(int(size) for _, size in store.query(
        "SELECT table, sum(bytes_on_disk) FROM system.parts WHERE active GROUP BY table"
    ))  # fmt: skip

    none = store.trim(total)
    some = store.trim(total - int(sizes[0][1]) - 1)
    everything = store.trim(1)

    assert none.dropped == ()
    assert some.dropped == (("otel_traces", sizes[0][0]), ("otel_traces", sizes[1][0]))
    assert some.freed >= int(sizes[0][1])
    assert ("requests", sizes[0][0]) in everything.dropped
    assert len(fetch(store, [])) == 30
    store.close()


def test_a_collector_fleet_needs_no_process_of_ours(tmp_path):
    """Spans that another program writes into `otel_traces`, joined by the printed views alone."""
    with serving(tmp_path / "data") as (url, _):
        store = Store(Server(urlsplit(f"{url}/fleet"), settle_s=0.0))
        one, late, large = row(), row(), row()
        parts = [plugin_span(one.response_id), engine_span(late)]
        for n, items in enumerate([[one, parts[1]], [parts[0], large], [late, large]]):
            store.insert_otlp(body_of(items), f"fleet-{n}")
        for statement in ddl.join_views():
            store.engine.run(statement)
        deadline = time.monotonic() + 90
        while len(fetch(store, [])) < 3 and time.monotonic() < deadline:
            for view in ddl.JOIN_VIEWS:
                store.engine.run(f"SYSTEM REFRESH VIEW {view}")
                store.engine.run(f"SYSTEM WAIT VIEW {view}")
        seen = fetch(store, ["reported_by", "queue_source", "queue_ns"])
        for view in reversed(ddl.JOIN_VIEWS):
            store.engine.run(f"DROP VIEW {view}")

        assert seen[one.span_id]["reported_by"] == ["row", "plugin"]
        assert seen[late.span_id]["reported_by"] == ["row", "engine"]
        assert seen[large.span_id]["reported_by"] == ["row"]
        store.close()


@pytest.mark.parametrize("cluster", [None, "prod"])
def test_the_printed_schema_is_sql(cluster, tmp_path):
    """Every statement of it is one that ClickHouse reads; names that are none are refused."""
    connection = chdb.connect(str(tmp_path / "parse"))
    text = ddl.schema("spans", cluster)
    statements = list(ddl.statements("spans", cluster, Keep()))

    for statement in statements:
        escaped = statement.replace("\\", "\\\\").replace("\n", "\\n")
        connection.query("SELECT formatQuery({q:String})", "TSV", params={"q": escaped})
        assert statement in text
    assert ("ON CLUSTER 'prod'" in text) == (cluster is not None)
    if cluster is None:
        for statement in statements:
            connection.query(statement, "Null")
    connection.close()
    with pytest.raises(ConfigError, match="--database"):
        ddl.schema("x; DROP TABLE y")


@pytest.mark.parametrize("url", ["http://h:99999/db", "http://[::1/db"])
def test_an_address_that_is_none_is_refused(url):
    """In words, and without what may be a password in it."""
    with pytest.raises(ConfigError, match=r"^store http://…: not a valid address$"):
        open_store(url)
    with pytest.raises(ConfigError, match="not a valid address"):
        migrate(url, url)


def test_of_two_that_start_at_once_one_says_why_not(folder, monkeypatch):
    """The other takes the folder between the check and the engine's start."""
    status = folder / "clickhouse" / "status"
    with ExitStack() as other:

        def starts(_engine):
            fcntl.flock(other.enter_context(status.open("w")), fcntl.LOCK_EX)

        def fails(_engine, _use):
            raise StoreError("cannot lock file status", "locked")

        monkeypatch.setattr(Embedded, "_check_definitions", starts)
        monkeypatch.setattr(Embedded, "_connection", fails)
        with pytest.raises(ConfigError, match="another collector uses it"):
            open_store(folder)


def test_a_store_is_for_one_process(folder, capfd):
    """Closed is closed; a second folder, or a file in the way, is refused at set-up."""
    store = open_store(folder)
    with pytest.raises(ConfigError, match="another collector uses it: stop that one; to read"):
        open_store(folder)
    assert "DB::Exception" not in capfd.readouterr().err
    with pytest.raises(ConfigError, match="cannot be opened"):
        open_store(folder.parent / "other")
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.query("SELECT 1")
    (folder.parent / "file").write_text("")
    with pytest.raises(ConfigError, match="give another folder"):
        open_store(folder.parent / "file" / "below")


def test_rows_survive_a_restart(folder):
    """What was stored is there, the join goes on where it was, tokens are remembered."""
    store = open_store(folder)
    one, two = row(), row()
    body = body_of([one])
    store.insert_otlp(body, "first")
    join(store)
    store.insert_otlp(body_of([two]), "second")
    store.close()

    store = open_store(folder)
    store.insert_otlp(body, "first")
    report = join(store)

    assert report.rows == 1
    assert differences(store, [one, two]) == {}
    [(spans,)] = store.query(
        "SELECT count() FROM otel_traces WHERE TraceId = {id:String}", {"id": one.trace_id}
    )
    assert spans == len({span for (span,) in store.query(
        "SELECT SpanId FROM otel_traces WHERE TraceId = {id:String}", {"id": one.trace_id}
    )})  # fmt: skip
    store.close()


def test_nothing_is_left_in_the_working_directory(folder, tmp_path, monkeypatch):
    """The engine keeps its files where the settings say."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    store = open_store(folder)
    send(store, [replace(row(), attempts=2)])
    join(store)
    store.close()

    assert list(here.iterdir()) == []


def test_a_server_out_of_reach_is_said_in_one_line(caplog):
    """The setting, the address and the system's words; nothing of a library's insides."""
    port = free_port()
    with pytest.raises(StoreError) as shown:
        Server(urlsplit(f"http://127.0.0.1:{port}/default"))
    assert str(shown.value) == f"store.url http://127.0.0.1:{port}/default: connection refused"
    assert not caplog.records
