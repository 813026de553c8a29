"""Wherever rows come from, the same incident is found; what cannot go together is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmtrace.cli import main, make_parser
from llmtrace.cli.extras import collector_module
from llmtrace.core.errors import DataError
from llmtrace.dataset.case import Case, Window, no_signals, read_case, signals_from, write_case
from llmtrace.dataset.columns import from_dicts
from llmtrace.triage.command import MOVED
from llmtrace.triage.sources import reader, with_earlier_days, with_replicas
from tests.dataset.test_langfuse_import import FROM, KEYS, TO, langfuse, observation
from tests.triage.days import START, Kind, day, requests

QUICK = ("--bootstrap", "0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a case on disk: one replica is slow."""
    made = tmp_path_factory.mktemp("sources") / "case"
    write_case(made, day(after=Kind(slow_replica=6.0), n=(1500, 600)))
    return made


def windows(case: Case) -> tuple[str, ...]:
    """Return the options for the windows of a case."""
    assert case.before is not None
    assert case.after is not None
    return (
        "--before", f"{case.before.start}/{case.before.end}",
        "--after", f"{case.after.start}/{case.after.end}",
    )  # fmt: skip


def silent(_what: str, _share: float) -> None:
    """Say nothing."""


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_file_of_rows(folder, tmp_path, capsys, form):
    """JSON lines or Parquet: the same stages and cohort as of the case, without signals."""
    path = folder / "rows.jsonl"
    if form == "parquet":
        from pyarrow import json as pa_json
        from pyarrow import parquet

        path = tmp_path / "rows.parquet"
        parquet.write_table(pa_json.read_json(folder / "rows.jsonl"), path)
    found = []
    for source in (("--case", folder), ("--rows", path)):
        arguments = [*map(str, source), *windows(read_case(folder)), "--json", *QUICK]
        assert main(["triage", *arguments]) == MOVED
        found.append(json.loads(capsys.readouterr().out))

    assert found[0]["contributions"] == found[1]["contributions"]
    assert found[1]["cohorts"][0]["attributes"] == {"replica": "vllm-0"}


def test_a_langfuse_project(monkeypatch, capsys):
    """Its generations of the time, as rows; what is no request is counted."""
    held = [observation(id=f"{n:016x}") for n in range(4)]
    with langfuse(*held, observation(id="f" * 16, endTime=None)) as server:
        for name, value in {**KEYS, "LANGFUSE_BASE_URL": server.url}.items():
            monkeypatch.setenv(name, value)
        options = make_parser().parse_args(["triage", "--langfuse"])
        read = reader(options, collector_module)
        case = read(Window(FROM.timestamp(), TO.timestamp()), silent, {})
        with pytest.raises(DataError, match="has no rows"):
            read(Window(1e9, 1e9 + 60), silent, {})
    assert case.rows.n == 4
    assert any("1 ignored" in line for line in case.warnings)
    assert main(["triage", "--langfuse", "--last", "5m"]) == 1
    assert "Langfuse" in capsys.readouterr().err


def test_a_prometheus_has_signals_for_any_rows(folder):
    """Those of the source are replaced, for the time that rows are of."""
    asked: list[Any] = []
    samples = [{"t": 1_700_000_000.0, "instance": "a", "signal": "waiting", "value": 1.0}]

    def read_signals(url: str, token: Path | None, window: Window, _progress: Any) -> Any:
        asked.append((url, token, window))
        return signals_from(samples)[0], ("one thing is odd",)

    options = make_parser().parse_args(
        ["triage", "--case", str(folder), "--prometheus", "http://p:9090"]
    )
    read = reader(options, lambda *_: SimpleNamespace(read_signals=read_signals))
    case = read(Window(1.0, 2.0), silent, {})
    t = case.rows.start / 1e9

    assert [*case.signals.signal.names] == ["waiting"]
    assert case.warnings[-1] == "one thing is odd"
    [(url, token, window)] = asked
    assert (url, token) == ("http://p:9090", None)
    assert window.start < t.min() < t.max() < window.end
    assert window.seconds < t.max() - t.min() + 3600


def test_a_server_that_signals_are_of_is_the_replica():
    """Where rows do not name one; a gateway's, or one without signals, is none."""
    t = 1_700_000_000
    servers = ("a:8000", "gateway:80", "hosted.example", None, "a:8000", "b:8000")
    replicas = (None, None, None, None, "named", None)
    pairs = zip(servers, replicas, strict=True)
    asked = from_dicts(
        [
            {"start": t * 10**9, "e2e_s": 1.0, "server": server, "replica": replica}
            for server, replica in pairs
        ]
    )
    seen = [("a:8000", "running"), ("b:8000", "waiting"), ("gateway:80", "running"),
            ("gateway:80", "gateway_requests"), ("hosted.example", "up")]  # fmt: skip
    signals, _ = signals_from(
        {"t": t, "instance": instance, "signal": signal, "value": 1.0} for instance, signal in seen
    )
    words = with_replicas(Case(rows=asked, signals=signals)).rows.words["replica"]

    found = [words.word(i) for i in range(len(servers))]
    assert found == ["a:8000", None, None, None, "named", "b:8000"]


def test_rows_of_a_case_get_their_replica(tmp_path):
    """By the command's reader, whatever the source."""
    some = day(n=(20, 20))
    rows = [
        {**{k: v for k, v in row.items() if k != "replica"}, "server": row["replica"]}
        for row in some.rows.to_dicts()
    ]
    names = some.rows.words["replica"].names
    signals, _ = signals_from(
        {"t": START, "instance": name, "signal": "running", "value": 1.0} for name in names
    )
    write_case(tmp_path / "case", replace(some, rows=from_dicts(rows), signals=signals))
    options = make_parser().parse_args(["triage", "--case", str(tmp_path / "case")])
    found = reader(options, collector_module)(Window(1.0, 2.0), silent, {}).rows.words["replica"]

    assert [found.word(i) for i in range(40)] == [row["server"] for row in rows]


@pytest.mark.parametrize(
    "together",
    [("--case", "d", "--url", "http://x"), ("--store", "d", "--rows", "f"),
     ("--langfuse", "--case", "d")],
)  # fmt: skip
def test_rows_have_one_source(together, capsys):
    """Two are refused before anything is read."""
    with pytest.raises(SystemExit):
        main(["triage", *together])
    assert "not allowed with" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rows", "nowhere.jsonl"), "nowhere.jsonl: cannot read it"),
        (("--store", "nowhere"), "holds no store"),
        (("--store", "ftp://x/y"), "give a folder"),
        (("--prometheus", "x"), "not an address of a Prometheus"),
        (("--prometheus", "http://127.0.0.1:9"), "no Prometheus responds"),
    ],
)
def test_what_is_wrong_with_a_source_is_said(folder, arguments, words, capsys):
    """On one line, with what to write instead."""
    source = ("--case", str(folder)) if arguments[0] == "--prometheus" else ()
    assert main(["triage", *source, *arguments]) in {1, 2}
    assert re.search(words, capsys.readouterr().err)


def test_the_same_hours_of_earlier_days_are_read_too():
    """Those there are; a day without rows, or one that is part of the window, is none."""
    hour, day_s = Window(1e9, 1e9 + 3600), 86_400.0
    back: list[float] = []

    def read(window, _progress, _filters):
        back.append(hour.start - window.start)
        if window.start < hour.start - 5 * day_s:
            raise DataError("no rows")
        return Case(requests(50, Kind(), 1, window.start), no_signals())

    both = with_earlier_days(read)
    case = both(hour, lambda *_: None, {})
    long = both(Window(hour.start - 3 * day_s, hour.end), lambda *_: None, {})

    assert back[:3] == [0.0, day_s, 7 * day_s]
    assert (case.searched, len(case.rows)) == (hour, 100)
    assert case.rows.start[0] / 1e9 < hour.start - day_s + 60
    assert len(back) == 5  # of three days only the week before
    assert long.searched is None
