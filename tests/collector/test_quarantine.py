"""Is a request that cannot be stored seen, and stored once it can be? From end to end."""

from __future__ import annotations

import json

from llmtrace import cli
from llmtrace_collector.receive import ingest
from llmtrace_collector.store import StoreError
from llmtrace_collector.store.clickhouse_store import Store

from .collecting import as_otlp, collecting, post, some_rows, wait_for


def test_set_aside_shown_by_readyz_and_doctor_and_replayed_by_the_command(
    tmp_path, monkeypatch, capsys
):
    """And what was sent after it is there all the while."""
    real = Store.insert_otlp
    bad = True

    def insert(self, body, token):
        if bad and b"poison" in body:
            raise StoreError("Code: 241. it wants more memory than there is", "memory")
        real(self, body, token)

    monkeypatch.setattr(Store, "insert_otlp", insert)
    monkeypatch.setattr(ingest, "_TRIES", 1)  # the pauses between are tested elsewhere
    with collecting(tmp_path / "data", metrics_settle="0.2") as one:
        post(one.otlp, as_otlp(some_rows(1, route="poison")))
        post(one.otlp, as_otlp(some_rows(2, route="good")))
        ready = {"status": "ready", "quarantined_requests": 1}
        wait_for(lambda: one.json("/readyz") == ready, "a request in quarantine")
        wait_for(lambda: len(one.rows()) == 2, "what came after it")

        assert one.metrics()["llmtrace_ingest_quarantined_total", "reason=memory"] == 1
        assert cli.main(["doctor", one.web]) == 1
        assert "1 request is in quarantine" in capsys.readouterr().err
        assert cli.main(["quarantine", "--url", one.web, "--json"]) == 0
        [entry] = json.loads(capsys.readouterr().out)
        assert (entry["reason"], "241" in entry["error"]) == ("memory", True)

        bad = False
        assert cli.main(["quarantine", "--url", one.web, "--replay"]) == 0
        assert "replayed: 1" in capsys.readouterr().out
        wait_for(lambda: len(one.rows()) == 3, "the replayed row")

        assert {row["route"] for row in one.rows()} == {"good", "poison"}
        assert one.json("/readyz") == {"status": "ready"}
        assert cli.main(["doctor", one.web]) == 0
