"""Does a triage get from a store itself what it would get from a collector?"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from urllib.parse import urlsplit

import numpy as np
import pytest

from llmtrace.cli import main
from llmtrace.core.errors import ConfigError, DataError
from llmtrace.dataset.case import Window
from llmtrace.dataset.columns import IDS, NUMBERS, WORDS, Builder, from_dicts, short
from llmtrace_collector.store import Event, Facts, SignalSample, StoreError, open_store, read
from llmtrace_collector.store.clickhouse_server import Server
from llmtrace_collector.store.clickhouse_store import Store
from llmtrace_collector.store.export_case import add_rows, read_case
from tests.collector.store.sent import STORABLE, drawn, join, send
from tests.collector.store.shim import serving

START = (time.time_ns() // 10**9 - 3600) * 10**9
ALL = Window(START / 1e9 - 1, START / 1e9 + 3000)


def silent(_what, _share):
    """Say nothing."""


def taken(store, **given):
    """Read the rows of the test's window."""
    builder = Builder()
    given = {"filters": {}, "window": ALL, "progress": silent, **given}
    said = add_rows(store.engine, builder, **given)
    return builder.done(), said


@pytest.fixture(scope="module")
def sent(store):
    """Store whatever rows there may be, a second apart."""
    found = [
        replace(row, start=START + n * 10**9 + n, trace_id=f"{n:032x}", span_id=f"{n:016x}")
        for n, row in enumerate(drawn(STORABLE, 200), 1)
    ]
    send(store, found)
    join(store)
    return found


def test_columns_are_those_of_rows(store, sent):
    """Every column is what the read API's rows come to."""
    found, said = taken(store)
    wanted = from_dicts(read.rows(store, START, START + 3000 * 10**9))

    assert found.n == wanted.n == len(sent)
    assert said == ()
    order = np.argsort(found.start)
    found = found.take(order)
    assert (found.start == wanted.start).all()
    for name in NUMBERS:
        np.testing.assert_allclose(
            found.numbers[name], wanted.numbers[name], rtol=0, atol=1e-9, err_msg=name
        )
    for name in WORDS:
        for i in range(found.n):
            assert found.words[name].word(i) == wanted.words[name].word(i), name
    for name in IDS:
        assert found.ids[name].tolist() == wanted.ids[name].tolist()


def test_the_store_filters(store, sent):
    """By one word or several of a field."""
    model = next(row.model for row in sent if row.model)
    found, _ = taken(store, filters={"model": (model, "no-such-model")})

    assert found.n == sum(row.model == model for row in sent)
    assert set(found.words["model"].names) == {short(model)}


def test_of_too_many_rows_some_stand_for_all(store, sent):
    """The store itself picks them; together they weigh about what all do."""
    found, said = taken(store, most=50)

    assert 20 <= found.n <= 90
    assert "stands for the others" in said[0]
    whole, _ = taken(store)
    wanted = dict(zip(whole.ids["span_id"].tolist(), whole.weights.tolist(), strict=True))
    for span, weight in zip(found.ids["span_id"].tolist(), found.weights.tolist(), strict=True):
        assert weight == pytest.approx(4 * wanted[span])


def test_signals_facts_and_events_come_along(tmp_path, store, sent):
    """As a case; a time without rows is an error that says so."""
    del sent
    t = START + 10**9
    store.insert_signals([SignalSample(t, "vllm-0", "waiting", 3.0)])
    store.insert_facts([Facts(t, "vllm-0", {"engine": "vllm"})])
    store.insert_events([Event(t, "deploy", "v2")])
    url = store.engine.name
    store.close()
    case = read_case(url, ALL, silent)

    assert case.rows.n == 200
    assert [*case.signals.signal.names] == ["waiting"]
    assert case.facts.instances == {"vllm-0": {"engine": "vllm"}}
    assert case.facts.events[0].text == "v2"
    with pytest.raises(DataError, match="has no rows, 2001"):
        read_case(url, Window(1e9, 1e9 + 60), silent)
    # And so does the command, which says it in words.
    split = ALL.start + 100
    windows = ("--before", f"{ALL.start}/{split}", "--after", f"{split}/{ALL.end}")
    assert main(["triage", "--store", url, *windows, "--json", "--bootstrap", "0",
                 "--save", str(tmp_path / "case")]) in {0, 10, 11}  # fmt: skip
    assert (tmp_path / "case" / "rows.jsonl").read_bytes().count(b"\n") == 200
    facts = json.loads((tmp_path / "case" / "facts.json").read_text())
    assert facts["vllm-0"] == {"engine": "vllm"}
    # A collector's data hold it, too, also as an address.
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "store").symlink_to(url)
    for data in (str(tmp_path / "a b"), f"chdb://{tmp_path}/a%20b"):
        assert read_case(data, ALL, silent).rows.n == 200
    open_store(url).close()


def test_who_may_only_read_is_enough(tmp_path):
    """Of a server nothing but SELECT is asked; the engine would refuse this user all else."""
    with serving(tmp_path / "data") as (url, _):
        store = Store(Server(urlsplit(f"{url}/llmtrace"), settle_s=0.0))
        found = [
            replace(row, start=START + n * 10**9, trace_id=f"{n:032x}", span_id=f"{n:016x}")
            for n, row in enumerate(drawn(STORABLE, 20), 1)
        ]
        send(store, found)
        join(store)
        store.insert_events([Event(START + 10**9, "deploy", "v2")])
        store.close()
    with serving(tmp_path / "data", reads_only=True) as (url, seen):
        case = read_case(f"{url}/llmtrace", ALL, silent, {"outcome": ("success",)})

        assert 0 < case.rows.n == sum(row.outcome == "success" for row in found)
        assert case.facts.events[0].text == "v2"
        assert seen
        assert all(sql.lstrip().startswith("SELECT") for _, sql in seen)
        with pytest.raises(ConfigError, match="no table `requests`"):
            read_case(f"{url}/default", ALL, silent)
        with pytest.raises(StoreError, match="nothere does not exist"):
            read_case(f"{url}/nothere", ALL, silent)
