"""Whatever writes rows, the collector's store among them: does every reader give the same stages?

Four writers (an application's lines, a case, the read API's lines, a store's own export) and the
two readers that all commands have, of rows one by one and of columns.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace

import numpy as np
import pytest

from llmtrace.cli import main
from llmtrace.core.stages import STAGES, Reported, Timeline
from llmtrace.dataset.case import Case, Window, signals_from, write_case
from llmtrace.dataset.columns import Builder, from_rows
from llmtrace.dataset.files import read_columns
from llmtrace.exporters.row_files.read_back import read_rows
from llmtrace.exporters.row_files.sink import write_rows
from llmtrace.testing import make_row
from llmtrace_collector.store import read
from llmtrace_collector.store.export_case import add_rows
from tests.collector.store.sent import STORABLE, drawn, join, send

SECOND = 10**9
START = (time.time_ns() // SECOND - 3600) * SECOND
WINDOW = Window(START / SECOND - 1, START / SECOND + 3000)
WRITERS = ("application", "case", "api", "export")
MS = 1_000_000


@pytest.fixture(scope="module")
def sent(store):
    """Store rows of every kind, and one of which each stage is known."""
    whole = make_row(
        timeline=Timeline(
            e2e=2000 * MS, ttft=700 * MS, held_after=40 * MS,
            queue=Reported(300 * MS, "engine_inband"), prefill=Reported(150 * MS, "engine_span"),
            gateway=Reported(20 * MS, "server_timing"),
        )
    )  # fmt: skip
    found = [
        replace(row, start=START + n * SECOND + n, trace_id=f"{n:032x}", span_id=f"{n:016x}")
        for n, row in enumerate([whole, *drawn(STORABLE, 150)], 1)
    ]
    send(store, found)
    join(store)
    return found


def written(path, writer, store, rows):
    """Return the file that a writer makes of rows."""
    lines = path / f"{writer}.jsonl"
    if writer == "application":
        with lines.open("w", encoding="utf-8") as file:
            write_rows(file, rows)
        return lines
    if writer == "api":
        flat = read.rows(store, START, START + 3000 * SECOND)
        lines.write_text("".join(json.dumps(one) + "\n" for one in flat), encoding="utf-8")
        return lines
    columns = from_rows(rows)
    if writer == "export":
        builder = Builder()
        add_rows(store.engine, builder, filters={}, window=WINDOW, progress=lambda *_: None)
        columns = builder.done()
    write_case(path / writer, Case(rows=columns, signals=signals_from([])[0]), compress=True)
    return path / writer / "rows.jsonl.gz"


@pytest.mark.parametrize("writer", WRITERS)
def test_every_reader_gives_the_stages_that_were_measured(tmp_path, store, sent, writer):
    """Stage by stage to the nanosecond, unknown as unknown, with its source and the remainder."""
    path = written(tmp_path, writer, store, sent)
    one_by_one = {row.span_id: row for row in read_rows(path)}
    columns = read_columns(path)
    places = {span.decode(): place for place, span in enumerate(columns.ids["span_id"].tolist())}

    assert one_by_one.keys() == places.keys() == {row.span_id for row in sent}
    for row in sent:
        back, place = one_by_one[row.span_id], places[row.span_id]
        assert back.e2e_ns == row.e2e_ns
        assert back.stages.unattributed == row.stages.unattributed
        for stage in STAGES:
            ns, seconds = getattr(row.stages, stage), columns.numbers[f"{stage}_s"][place]
            assert getattr(back.stages, stage) == ns, stage
            assert (None if np.isnan(seconds) else round(seconds * SECOND)) == ns, stage
            assert back.stages.sources.get(stage) == row.stages.sources.get(stage), stage


@pytest.mark.parametrize("writer", WRITERS)
def test_every_command_reads_what_any_of_them_writes(tmp_path, capsys, store, sent, writer):
    """A waterfall of the request whose stages are known, and a report of all."""
    path = str(written(tmp_path, writer, store, sent))

    assert main(["waterfall", path, "--request", sent[0].trace_id]) == 0
    drawing = capsys.readouterr().out
    assert [words for words in ("300.0 ms", "150.0 ms", "20.0 ms") if words not in drawing] == []
    assert main(["budget", "report", path]) == 0
    report = capsys.readouterr().out
    (queue,) = (line for line in report.splitlines() if line.startswith("queue"))
    assert "not reported" not in queue
    assert main(["triage", "--rows", path, "--json", "--bootstrap", "0"]) in {0, 10, 11}
    assert json.loads(capsys.readouterr().out)
