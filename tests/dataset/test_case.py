"""An incident on disk: written, read, and odd in any way."""

from __future__ import annotations

import json

import numpy as np
import pytest

from llmtrace.budget import DEFAULT
from llmtrace.core.errors import ConfigError, DataError, SourceError
from llmtrace.dataset.case import (
    Case,
    Event,
    Facts,
    Window,
    facts_from,
    read_case,
    samples_of,
    signals_from,
    write_case,
)
from llmtrace.dataset.columns import Doubt, from_dicts

ROW = {"start": 1_700_000_000 * 10**9, "e2e_s": 1.0, "replica": "vllm-0"}
SAMPLE = {"t": 1_700_000_000.5, "instance": "vllm-0", "signal": "running", "value": 3.0}


def folder(tmp_path, **files):
    """Make a case folder of these files; what is no text is JSON."""
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW) + "\n", encoding="utf-8")
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / name.replace("_", ".")).write_text(text, encoding="utf-8")
    return tmp_path


def test_what_was_written_is_read(tmp_path):
    """Rows, signals, facts, windows, metric and budget."""
    labelled = {**SAMPLE, "signal": "finished", "labels": {"reason": "stop"}}
    case = Case(
        rows=from_dicts([ROW]),
        signals=signals_from([SAMPLE, labelled])[0],
        facts=Facts(
            {"vllm-0": {"version": "0.32.0", "chunked_prefill": True}},
            (Event(1_700_000_000.0, "deploy", "v2"),),
        ),
        before=Window(1_700_000_000.0, 1_700_000_100.0),
        after=Window(1_700_000_200.0, 1_700_000_300.0),
        metric="ttft",
        budget=DEFAULT,
        note="simulated",
    )
    for compress in (False, True):
        write_case(tmp_path / "case", case, compress=compress)
        again = read_case(tmp_path / "case")

        assert (again.before, again.after, again.metric) == (case.before, case.after, "ttft")
        assert (again.facts, again.budget, again.warnings) == (case.facts, case.budget, ())
        assert again.note == "simulated"
        assert list(samples_of(again.signals)) == [SAMPLE, labelled]
        assert list(again.rows.to_dicts()) == [ROW]


def test_rows_alone_are_a_case(tmp_path):
    """Everything else may be missing."""
    case = read_case(folder(tmp_path))

    assert (case.before, case.after, case.metric, case.budget) == (None, None, None, None)
    assert case.note is None
    assert (case.rows.n, len(case.signals), case.facts) == (1, 0, Facts())


@pytest.mark.parametrize("named", [True, False], ids=["by instance", "under instances"])
def test_facts_are_read_as_people_write_them(named):
    """An object by instance, or one under `instances`."""
    facts = {"vllm-0": {"version": "0.32.0", "nested": {"a": 1}, "huge": float("inf")}}
    given = {**(facts if named else {"instances": facts}), "events": [{"t": 5, "kind": "scale"}]}
    found, warnings = facts_from(given)

    assert found.instances == {"vllm-0": {"version": "0.32.0"}}
    assert found.events == (Event(5.0, "scale", ""),)
    assert warnings == ()


def test_odd_facts_are_left_out_and_counted():
    """An event without a time, an instance that is no object."""
    found, warnings = facts_from({"vllm-0": 7, "events": [{"kind": "scale"}, 3]})

    assert found == Facts()
    assert warnings == ("event: no usable time: 2 ignored", "facts: not an object: 1 ignored")


def test_a_listed_instance_whose_name_is_no_text_is_left_out():
    """Its facts belong to no engine; those listed beside it are read."""
    listed = [{"instance": ["vllm-0"]}, {"instance": "vllm-1", "version": "0.32.0"}]

    found, _ = facts_from({"instances": listed})

    assert found.instances == {"vllm-1": {"instance": "vllm-1", "version": "0.32.0"}}


@pytest.mark.parametrize(
    "sample",
    [
        {},
        {**SAMPLE, "t": None},
        {**SAMPLE, "t": -1},
        {**SAMPLE, "value": "3"},
        {**SAMPLE, "value": float("nan")},
        {**SAMPLE, "value": 10**400},
        {**SAMPLE, "signal": 3},
    ],
)
def test_odd_signals_are_left_out_and_counted(sample):
    """And the others are kept, by time."""
    signals, warnings = signals_from([{**SAMPLE, "t": 7}, sample, {**SAMPLE, "t": 5}])

    assert signals.t.tolist() == [5, 7]
    assert warnings == ("signal: no usable time, name or value: 1 ignored",)


def test_signals_are_taken_by_mask():
    """Labels and names go along."""
    signals, _ = signals_from([SAMPLE, {**SAMPLE, "signal": "waiting", "labels": {"a": "b"}}])
    taken = signals.take(signals.signal.where("waiting"))

    assert [one["labels"] for one in samples_of(taken)] == [{"a": "b"}]
    assert not signals.take(np.zeros(2, bool)).t.size


def test_lines_of_signals_that_are_no_json_are_counted(tmp_path):
    """The rest is read."""
    case = read_case(folder(tmp_path, signals_jsonl=json.dumps(SAMPLE) + "\nnonsense\n[]\n"))

    assert len(case.signals) == 1
    assert case.warnings == ("signals: 2 lines ignored: not JSON objects",)


@pytest.mark.parametrize(
    ("files", "error", "said"),
    [
        ({"case_json": {"before": [5, 3]}}, DataError, "before"),
        ({"case_json": {"before": "now"}}, DataError, "before"),
        ({"case_json": {"after": [1, None]}}, DataError, "after"),
        ({"case_json": {"metric": "latency"}}, DataError, "latency"),
        ({"case_json": {"note": ["simulated"]}}, DataError, "note"),
        ({"case_json": {"budget": {"totl": 1}}}, ConfigError, "totl"),
        ({"case_json": "{"}, DataError, "not JSON"),
        ({"case_json": "[" * 100_000}, DataError, "not JSON"),
        ({"case_json": []}, DataError, "not a JSON object"),
        ({"facts_json": "x"}, DataError, "facts.json"),
        ({"case_json": " " * (5 << 20)}, DataError, "larger"),
    ],
)
def test_a_case_that_is_none_says_what_is_wrong(tmp_path, files, error, said):
    """With the file, and what would do."""
    with pytest.raises(error, match=said):
        read_case(folder(tmp_path, **files))


def test_a_folder_without_rows_is_no_case(tmp_path):
    """Nor is one that is not there."""
    with pytest.raises(SourceError, match=r"rows\.jsonl"):
        read_case(tmp_path)
    with pytest.raises(SourceError, match="no such folder"):
        read_case(tmp_path / "missing")


@pytest.mark.parametrize("odd_start", [5, 4_000_000_000 * 10**9])
def test_a_start_years_from_the_others_is_kept_out(tmp_path, odd_start):
    """One such row would make a window of years."""
    rows = [{**ROW, "start": ROW["start"] + i} for i in range(4)]
    lines = "\n".join(map(json.dumps, [{**ROW, "start": odd_start}, *rows]))
    case = read_case(folder(tmp_path, rows_jsonl=lines))

    assert case.rows.n == 4
    assert case.warnings == ("row: start over a year from that of most: 1 row ignored",)


@pytest.mark.parametrize(
    ("row", "warning"),
    [
        ({"e2e_s": 3100.0}, "e2e_s is 3,100 s at the median: are these milliseconds?"),
        ({"outcome": "fine"}, "outcome: not one of success, error"),
    ],
)
def test_other_units_and_outcomes_are_warned_of(tmp_path, row, warning):
    """A file made by hand may be in milliseconds, or end requests in words of its own."""
    case = read_case(folder(tmp_path, rows_jsonl=json.dumps({**ROW, **row})))

    doubted = " ".join(one for one in case.warnings if isinstance(one, Doubt))
    assert warning in doubted


@pytest.mark.parametrize("unit", [10**9, 10**6, 10**3])
def test_a_start_may_be_in_other_units(tmp_path, unit):
    """Seconds, milliseconds and microseconds: no time since 2001 is two of them."""
    row = json.dumps({**ROW, "start": ROW["start"] // unit})
    assert read_case(folder(tmp_path, rows_jsonl=row)).rows.start == ROW["start"] // unit * unit


def test_a_start_in_no_unit_is_refused(tmp_path):
    """Such as seconds since a program started."""
    row = json.dumps({**ROW, "start": 3000})
    with pytest.raises(DataError, match=r"rows\.jsonl: start is 3000 in most rows: it must"):
        read_case(folder(tmp_path, rows_jsonl=row))
