"""Does a batch make its rows whose insert ended between two tables?"""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from llmtrace.testing import make_row
from llmtrace_collector.store import open_store
from llmtrace_collector.store.records import StoreError

from .sent import body_of


@pytest.mark.parametrize("ended", ["a kill", "a failure"])
def test_a_batch_that_was_stored_halfway_makes_its_rows(tmp_path, monkeypatch, ended):
    """Inserted again its parts are there already, and what finds them has another moment."""
    batch = body_of([make_row(start=time.time_ns())]), "halfway"
    store = open_store(tmp_path)
    store.join(time.time_ns())
    store.insert_otlp(*batch)
    store.engine.run("TRUNCATE TABLE part_keys")
    if ended == "a kill":
        store.close()
        store = open_store(tmp_path)
    else:
        with monkeypatch.context() as patched:
            patched.setattr(store.engine, "_path", tmp_path / "gone" / "there")
            with pytest.raises(StoreError):
                store.insert_otlp(*batch)
    with closing(store):
        store.insert_otlp(*batch)

        assert store.join(time.time_ns()).rows == 1
        assert store.query("SELECT count() FROM otel_traces WHERE ParentSpanId = ''") == [(1,)]
        assert store.join(time.time_ns()).rows == 0
