"""Whatever writes rows, does every consumer give them the same seven stages?"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

from llmtrace.cli import main
from llmtrace.core.errors import DataError, SourceError
from llmtrace.core.row import from_dict
from llmtrace.core.stages import STAGES
from llmtrace.dataset.case import Case, signals_from, write_case
from llmtrace.dataset.columns import Columns, from_rows
from llmtrace.dataset.files import read_columns, write_columns
from llmtrace.exporters.row_files.read_back import read_rows
from tests.strategies import rows

# Columns take what has a start and a name; what else a row is made of is anything at all.
placed = rows.map(
    lambda row: replace(row, start=1_790_000_000_000_000_000, service="s", request_id="r")
)
FILES = ["rows.jsonl", "rows.jsonl.gz", "rows.parquet"]


def saved(path, columns: Columns):
    """Write columns in the form that a file's name requires."""
    if path.suffix != ".parquet":
        write_columns(path, columns)
        return path
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(list(columns.to_dicts())), path)
    return path


def stages_of(columns: Columns, name: str) -> list[int | None]:
    """Return one stage of every row in whole nanoseconds, as columns have it."""
    return [None if np.isnan(s) else round(s * 1e9) for s in columns.numbers[f"{name}_s"]]


FLAT = {
    "start": 1_790_000_000_000_000_000, "service": "s", "request_id": "r", "trace_id": "0" * 32,
    "span_id": "0" * 16, "ttft_s": 0.9, "e2e_s": 3.0, "network_s": 0.05, "queue_s": 0.6,
    "prefill_s": 0.2, "first_chunk_s": 0.05, "decode_s": 2.1, "render_s": 0.0,
    "queue_source": "engine_inband", "prefill_source": "engine_inband",
}  # fmt: skip


def _case(columns: Columns) -> Case:
    return Case(rows=columns, signals=signals_from([])[0])


@given(placed)
def test_rows_that_went_through_columns_keep_their_stages(row):
    """Columns have the stages and not the reports behind them: they are the same."""
    columns = from_rows([row])
    [flat] = json.loads(json.dumps(list(columns.to_dicts())))
    back = from_dict(flat)

    for stage, ns in row.stages:
        assert getattr(back.stages, stage) == ns
        assert back.stages.sources.get(stage) == row.stages.sources.get(stage)
        assert stages_of(columns, stage) == [ns]
    assert back.stages.unattributed == row.stages.unattributed
    assert back.stages.total == back.e2e_ns == row.e2e_ns
    assert back.as_dict()["unattributed_s"] == row.as_dict()["unattributed_s"]


@pytest.mark.parametrize("name", FILES)
def test_every_form_of_file_is_read_to_the_same_rows(tmp_path, name):
    """Lines, compressed lines and Parquet; in a folder of a case, or by themselves."""
    columns = from_rows([from_dict(FLAT), from_dict({**FLAT, "queue_s": None})])
    path = saved(tmp_path / name, columns)

    for where in (path, tmp_path):
        assert [row.stages.queue for row in read_rows(where)] == [600_000_000, None]
    assert stages_of(read_columns(path), "queue") == [600_000_000, None]


def test_the_budget_knows_the_stages_of_a_saved_case(tmp_path, capsys):
    """Rows with `queue_s` and its source, without the engine's other figures."""
    path = tmp_path / "rows.jsonl"
    rows = [FLAT | {"start": FLAT["start"] + n} for n in range(200)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    assert main(["budget", "suggest", str(path)]) == 0
    said = capsys.readouterr().out
    assert "queue" in said
    assert "not reported: network, gateway, queue" not in said

    assert main(["budget", "report", str(path)]) == 0
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("queue"))
    assert "600" in line
    assert "not reported" not in line


def test_a_waterfall_is_drawn_of_a_saved_case(tmp_path, capsys):
    """The folder itself is taken, and the queue is in the picture."""
    write_case(tmp_path / "case", _case(from_rows([from_dict(FLAT)])), compress=True)

    assert main(["waterfall", str(tmp_path / "case")]) == 0
    line = next(x for x in capsys.readouterr().out.splitlines() if "queue" in x)
    assert "600.0 ms" in line


def test_a_folder_without_rows_is_named(tmp_path):
    """A folder that is no case is an error of the source."""
    with pytest.raises(SourceError, match="contains no file of rows"):
        read_rows(tmp_path)


def test_what_no_stage_is_written_for_is_unattributed():
    """A program that saw no decode writes none, and none is made up from the times."""
    row = from_dict({**FLAT, "decode_s": None, "unattributed_s": 2.1})

    assert row.stages.decode is None
    assert row.stages.unattributed == 2_100_000_000
    assert row.as_dict()["unattributed_s"] == 2.1


def test_rows_without_any_stage_are_split_by_their_times():
    """Rows of other programs: what is known of the wait is what the client's clock says."""
    stages = {f"{stage}_{what}" for stage in STAGES for what in ("s", "source")}
    flat = {name: value for name, value in FLAT.items() if name not in stages}

    assert from_dict(flat).stages.decode == 2_100_000_000
    assert from_dict(flat).stages.render is None  # how long its consumer took is not known


BARE = {"start": 1_790_000_000_000_000_000, "ttft_s": 0.9, "tpot_s": 0.02, "e2e_s": 3.0}


def test_rows_of_other_programs_need_a_start_and_a_duration_alone():
    """What triage reads, every command reads; what is not reported is not there, and never 0."""
    row = from_dict(BARE)

    assert (row.trace_id, row.span_id, row.service) == ("", "", "")
    assert row.tpot_s == 0.02
    assert row.as_dict().items() >= BARE.items()
    assert not row.as_dict().keys() & {"trace_id", "span_id", "service", "render_s"}
    assert from_dict(row.as_dict()) == row


def test_commands_print_what_such_rows_lack_as_not_reported(tmp_path, capsys):
    """No 0.0 ms of render, and the reported time of a token is compared with its budget."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(BARE)}\n" for _ in range(200)))

    assert main(["waterfall", str(path)]) == 0
    drawn = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert drawn["render"].endswith("not reported")
    assert "trace" not in drawn
    assert main(["budget", "report", str(path)]) == 0
    shown = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert shown["render"].endswith("not reported")
    assert "20.0 to 20.0  ✓ within" in shown["tpot"]


@pytest.mark.parametrize(
    ("odd", "named"),
    [
        ({"queue_s": 9.0}, "the stages come to 11.4 s, more than e2e_s of 3"),
        ({"queue_s": -1.0}, "queue_s is -1.0"),
        ({"queue_source": "a guess"}, "queue_source is 'a guess'"),
    ],
)
def test_a_partition_that_is_none_is_refused_by_file_and_line(tmp_path, odd, named):
    """A row whose stages cannot be is named; nothing is quietly left out of the sum."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({**FLAT, **odd}) + "\n")

    with pytest.raises(DataError, match=named) as caught:
        read_rows(path)
    assert f"{path}:1:" in str(caught.value)


def test_the_stages_of_rows_with_late_readers_bound_when_content_arrived():
    """`ttft_arrival_s` takes the consumer's own time off, also where only stages are known."""
    row = from_dict({**FLAT, "network_s": 0.02, "held_before_s": 0.03, "render_s": 0.03})

    assert row.ttft_arrival_s == pytest.approx(0.87)
