"""Is a store that an earlier version made opened, upgraded, and then as good as a new one?"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmtrace.core.errors import ConfigError
from llmtrace_collector.store import Event, Facts, SignalSample, ddl, open_store, upgrade
from llmtrace_collector.store.migrate import migrate
from llmtrace_collector.store.open_store import open_to_read
from llmtrace_collector.store.records import StoreError
from llmtrace_collector.store.tables import Keep
from tests.collector.store.sent import fetch, join, send
from tests.collector.store.test_join import differences, engine_span, plugin_span, row

# Made by each version, with three requests, a signal, an event and a fact: see `make` below.
STORED = sorted((Path(__file__).parent / "stored").glob("schema-*.tar.xz"))
# The rows in there are of the past: they are not to be dropped for their age meanwhile.
KEEP = Keep(spans=20_000, rows=20_000, signals=20_000, parts=20_000)
HERE = "database = currentDatabase() AND table NOT IN ('schema_versions')"


def make(folder):
    """Fill a store as those in `stored`; packed by `tar -cJf schema-N.tar.xz store` beside it."""
    store = open_store(folder / "store", keep=KEEP)
    rows = [row() for _ in range(3)]
    send(store, [*rows, plugin_span(rows[0].response_id), engine_span(rows[1])])
    join(store)
    now = time.time_ns()
    store.insert_signals([SignalSample(now, "a", "running", 3.0)])
    store.insert_events([Event(now, "deploy", "v2")])
    store.insert_facts([Facts(now, "a", {"engine": "vllm"})])
    store.close()


def shape(store):
    """Return the tables, columns, indexes and views there are."""
    return (
        set(store.query(f"SELECT table, name, type FROM system.columns WHERE {HERE}")),
        set(store.query(f"SELECT table, name FROM system.data_skipping_indices WHERE {HERE}")),
        set(store.query("SELECT name, as_select, sorting_key, partition_key FROM system.tables"
                        " WHERE database = currentDatabase()")),
    )  # fmt: skip


@pytest.fixture(scope="module")
def new(tmp_path_factory):
    """The shape of a store that this version makes."""
    store = open_store(tmp_path_factory.mktemp("new"), keep=KEEP)
    found = shape(store)
    store.close()
    return found


def unpacked(path, folder):
    """Return the folder of a stored store."""
    with tarfile.open(path) as packed:
        packed.extractall(folder, filter="data")
    return folder / "store"


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.name.partition(".")[0])
def test_a_store_of_each_earlier_schema_is_upgraded(path, new, tmp_path):
    """All it held is read as before, new requests join, and its tables are a new store's."""
    folder = unpacked(path, tmp_path)
    store = open_store(folder, keep=KEEP)
    assert shape(store) == new
    assert upgrade.version_of(store.engine) == upgrade.VERSION
    found = fetch(store, ["reported_by", "queue_ns", "e2e_ns"])
    assert sorted(one["reported_by"] for one in found.values()) == [
        ["row"], ["row", "engine"], ["row", "plugin"],
    ]  # fmt: skip
    assert {one["e2e_ns"] for one in found.values()} == {10**9}
    assert store.query("SELECT count() FROM signals")[0] == (1,)
    later = row()
    send(store, [later], "a token of this test's own")
    join(store)
    assert differences(store, [later]) == {}
    assert len(fetch(store, [])) == 4
    store.close()
    store = open_store(folder, keep=KEEP)  # nothing is left to do, and nothing is undone
    assert shape(store) == new
    store.close()


def test_there_is_a_stored_folder_of_each_earlier_schema():
    """A change that raises the number adds a folder that the version before made."""
    names = [f"schema-{number}.tar.xz" for number in range(1, upgrade.VERSION)]
    assert [path.name for path in STORED] == names


@pytest.mark.parametrize("number", range(1, upgrade.VERSION))
def test_what_is_printed_for_an_older_server_upgrades_it_and_may_run_twice(number, new, tmp_path):
    """`llmtrace schema clickhouse --from N`, on the tables of schema N."""
    store = open_store(tmp_path / "any")
    store.close()
    folder = unpacked(STORED[number - 1], tmp_path)
    from llmtrace_collector.store.clickhouse_embedded import Embedded

    engine = Embedded(folder)
    for _ in range(2):
        for statement in upgrade.statements(number, None, KEEP):
            engine.run(statement)
    engine.close()
    reader = open_to_read(folder)
    assert shape(reader) == new
    reader.close()


def test_columns_indexes_views_and_enums_of_another_text_are_brought_to_this_one(new, tmp_path):
    """Whatever the number says: an interrupted upgrade, or one of a development version."""
    store = open_store(tmp_path, keep=KEEP)
    run = store.engine.run
    view = store.query("SELECT create_table_query FROM system.tables"
                       " WHERE name = 'request_parts_of_spans'")[0][0]  # fmt: skip
    run("DROP VIEW request_parts_of_spans")
    for table in ("requests", "request_parts"):
        run(f"ALTER TABLE {table} DROP COLUMN cache_hit")
    run("ALTER TABLE requests DROP INDEX by_request_id")
    narrow = view.replace("unknown_service", "an_older_text").replace(", 'page' = 6", "")
    start = narrow.index("AS cache_hit")
    begin = narrow.rindex(",", 0, narrow.rindex("transform(", 0, start))
    run(narrow[:begin] + narrow[start + len("AS cache_hit") :].replace("`cache_hit` ", "", 1))
    store.close()

    store = open_store(tmp_path, keep=KEEP)
    assert shape(store) == new
    one = row()
    send(store, [one])
    join(store)
    assert differences(store, [one]) == {}
    store.close()


def test_a_store_of_a_newer_schema_is_refused_with_both_numbers(tmp_path):
    """For writing and for reading; and what is older is no reader's to change."""
    store = open_store(tmp_path)
    newer = upgrade.VERSION + 1
    store.engine.run(f"INSERT INTO schema_versions (version) VALUES ({newer})")
    store.close()
    for opening in (open_store, open_to_read):
        with pytest.raises(ConfigError, match=rf"schema is {newer}.*{upgrade.VERSION}"):
            opening(tmp_path)


def test_a_store_of_an_older_schema_is_not_copied_from_but_how_to_upgrade_it_said(tmp_path):
    """Its columns have other names than the destination's."""
    folder = unpacked(STORED[-1], tmp_path)
    with pytest.raises(ConfigError, match=r"schema is \d.*upgrades an older one when it starts"):
        migrate(str(folder), "http://127.0.0.1:9/llmtrace")


def test_numbers_that_are_none_are_refused():
    """`--from` of something else."""
    with pytest.raises(ConfigError, match="--from 99"):
        ddl.schema(since=99)


def test_opening_a_store_again_writes_no_definition(tmp_path):
    """On a full disk the engine cuts off what it writes: the next opening would fail."""
    open_store(tmp_path).close()
    definitions = tmp_path / "clickhouse" / "metadata" / "default"
    before = definitions.stat().st_mtime_ns
    open_store(tmp_path).close()
    assert definitions.stat().st_mtime_ns == before


def test_a_full_disk_gets_no_definition_and_a_store_on_it_opens(tmp_path, monkeypatch):
    """A new store is not begun there; one that needs no change opens."""
    made = tmp_path / "made"
    open_store(made).close()
    full = SimpleNamespace(f_bavail=0, f_frsize=4096)
    monkeypatch.setattr("os.statvfs", lambda _: full)
    open_store(made).close()
    with pytest.raises(StoreError, match="its disk is full"):
        open_store(tmp_path / "new")


@pytest.mark.parametrize(
    ("view", "left"), [("reporting_of_spans", 0), ("request_parts_of_spans", 4096)]
)
def test_a_view_that_a_full_disk_cut_off_is_made_again(view, left, tmp_path):
    """The engine itself would not open the store."""
    open_store(tmp_path).close()
    os.truncate(tmp_path / "clickhouse" / "metadata" / "default" / f"{view}.sql", left)
    store = open_store(tmp_path)
    send(store, [row()])
    join(store)
    assert len(fetch(store, [])) == 1
    store.close()


def test_the_definition_of_a_table_that_is_cut_off_is_named(tmp_path):
    """Its data needs it: it is not made again."""
    open_store(tmp_path).close()
    os.truncate(tmp_path / "clickhouse" / "metadata" / "default" / "requests.sql", 0)
    with pytest.raises(ConfigError, match=r"requests\.sql is cut off, as by a full disk"):
        open_store(tmp_path)


def test_a_damaged_part_is_named_and_can_be_set_aside(tmp_path):
    """With its table, as docs/operate/store.md says; all other parts are read."""
    store = open_store(tmp_path)
    store.engine.run("SYSTEM STOP MERGES requests")
    for number in range(2):
        send(store, [row()], f"batch {number}")
        join(store)
    [(part, folder), _] = store.query(
        "SELECT name, path FROM system.parts WHERE table = 'requests' AND active"
    )
    store.close()
    file = Path(folder) / "data.bin"
    file.write_bytes(file.read_bytes()[:-4] + b"XXXX")
    store = open_store(tmp_path)
    with pytest.raises(StoreError, match=rf"part {part} of table requests is damaged"):
        store.query("SELECT * FROM requests")
    assert store.query("SELECT 1") == [(1,)]  # and nothing of the query that failed
    store.engine.run(f"ALTER TABLE requests DETACH PART '{part}'")
    assert store.query("SELECT count() FROM requests") == [(1,)]
    store.close()


def test_a_folder_for_temporary_files_that_cannot_be_used_is_named():
    """One line, rather than the engine's stack."""
    done = subprocess.run(
        [sys.executable, "-c", "import llmtrace_collector.store.clickhouse_embedded"],
        env={**os.environ, "TMPDIR": "/proc"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr.splitlines()[-1].endswith(
        "set TMPDIR to a folder that this user may write to"
    )
