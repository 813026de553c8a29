"""Rows in columns: what goes in comes out, and what is no row stays out."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmtrace.core.errors import DataError, SourceError
from llmtrace.core.row import Row
from llmtrace.dataset import files
from llmtrace.dataset.columns import (
    COUNTS,
    IDS,
    NUMBERS,
    WORDS,
    Doubt,
    concatenate,
    empty,
    from_dicts,
    from_rows,
    short,
)
from llmtrace.dataset.files import read_columns, write_columns
from llmtrace.dataset.sampling import Sample
from llmtrace.exporters.row_files import forms
from tests.strategies import requests

START = 1_700_000_000 * 10**9

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)
odd_rows = st.dictionaries(
    st.sampled_from(["start", *NUMBERS, *WORDS, *IDS, "whatever"]), anything, max_size=12
)


def same(one, other):
    """Return whether two tables have the same rows."""
    return (
        one.n == other.n
        and np.array_equal(one.start, other.start)
        and all(np.array_equal(one.numbers[k], other.numbers[k], equal_nan=True) for k in NUMBERS)
        and all([one.words[k].word(i) for i in range(one.n)]
                == [other.words[k].word(i) for i in range(one.n)] for k in WORDS)
        and all(one.id(k, i) == other.id(k, i) for k in IDS for i in range(one.n))
    )  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(requests, max_size=3))
def test_rows_lie_in_columns_as_they_are(rows: list[Row]):
    """Every number and word of a row is in its column, and what it lacks is unknown."""
    placed = [row for row in rows if 0 < row.start < 2**63 - 1024]
    columns = from_rows(rows)

    assert columns.n == len(placed)
    for i, row in enumerate(placed):
        flat = row.as_dict()
        assert columns.start[i] == row.start
        for name in NUMBERS:
            value = columns.numbers[name][i]
            if name in flat and not (name in COUNTS and flat[name] > 2**53):
                assert value == pytest.approx(float(flat[name])) or np.isnan(value)
            else:
                assert np.isnan(value)
        for name in WORDS:
            word = flat.get(name)
            assert columns.words[name].word(i) == (short(word) if word else None)


def test_durations_of_another_generator_are_kept():
    """Stages are taken as they stand, though their source is not reported."""
    columns = from_dicts([{"start": START, "queue_s": 0.5, "prefill_s": 0.25, "ttft_s": 1.0}])

    assert columns.numbers["queue_s"][0] == 0.5
    assert columns.numbers["prefill_s"][0] == 0.25


@settings(deadline=None)
@given(st.lists(odd_rows, max_size=6))
def test_whatever_a_row_holds_no_column_breaks(rows):
    """Numbers are within their bounds or unknown, and what was ignored is counted."""
    columns = from_dicts(rows)

    for name in NUMBERS:
        known = columns.numbers[name][~np.isnan(columns.numbers[name])]
        assert ((known >= 0) & (known < 2**53 + 1)).all()
    again = from_dicts(columns.to_dicts())
    assert same(columns, again)
    assert again.warnings == ()


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("ttft_s", "fast", "ttft_s: not a number, as 'fast'"),
        ("ttft_s", True, "ttft_s: not a number, as True"),
        ("ttft_s", float("nan"), "ttft_s: not a number, as nan"),
        ("ttft_s", -1, "ttft_s: out of bounds"),
        ("ttft_s", 10**400, "ttft_s: out of bounds"),
        ("ttft_s", {"a": 1}, "ttft_s: not a number, as {'a': 1}"),
        ("weight", 0, "weight: out of bounds"),
        ("tenant", 7, "tenant: not text"),
        ("request_id", ["x"], "request_id: not text"),
    ],
)
def test_what_is_no_value_is_unknown_and_counted(field, value, said):
    """A field that is nonsense does not cost the rest of its row."""
    columns = from_dicts([{"start": START, "e2e_s": 1.0, field: value}])

    assert columns.n == 1
    assert columns.numbers["e2e_s"][0] == 1.0
    assert columns.warnings == (f"{said}: 1 value ignored",)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"ttft_s": 1.2}, "ttft_s: longer than e2e_s"),
        ({"tpot_s": 1100.0}, "tpot_s: longer than e2e_s"),
        ({"render_s": 1.2}, "render_s: longer than e2e_s"),
        ({"last_content_s": 2.0}, "last_content_s: longer than e2e_s"),
        ({"queue_s": 0.6, "decode_s": 0.6}, "stages: sum to more than e2e_s"),
        ({"decode_s": 0.6, "unattributed_s": 0.6}, "stages: sum to more than e2e_s"),
    ],
)
def test_a_part_longer_than_its_request_is_unknown_and_counted(parts, why):
    """In one row of a hundred it costs these values; in every row all figures are in doubt."""
    row = {"start": START, "e2e_s": 1.0, "prompt_tokens": 7, **parts}
    one, each = from_dicts([row] + [{"start": START}] * 99), from_dicts([row] * 2)

    assert np.isnan([one.numbers[name][0] for name in parts]).all()
    assert (one.numbers["e2e_s"][0], one.numbers["prompt_tokens"][0]) == (1.0, 7.0)
    assert (*one.warnings, *each.warnings) == (
        f"{why}: 1 value ignored", f"{why}: 2 values ignored",
    )  # fmt: skip
    assert [isinstance(text, Doubt) for text in (*one.warnings, *each.warnings)] == [False, True]


def test_a_part_may_exceed_its_request_by_a_tick_of_the_clock():
    """Or by rounding; and without `e2e_s` there is nothing to exceed."""
    flat = {"start": START, "ttft_s": 1.04, "queue_s": 0.54, "decode_s": 0.5}
    columns = from_dicts([{**flat, "e2e_s": 1.0}, {**flat, "ttft_s": 90.0}])

    assert columns.warnings == ()
    assert columns.numbers["ttft_s"].tolist() == [1.04, 90.0]


@pytest.mark.parametrize("start", [None, 0, -1, "now", 2**64, float("nan"), True])
def test_a_row_without_a_time_is_no_row(start):
    """It cannot be placed."""
    columns = from_dicts([{"start": start, "e2e_s": 1.0}, {"start": START}])

    assert columns.n == 1
    assert columns.warnings == ("row: no usable start: 1 row ignored",)


def test_rows_are_taken_by_mask_index_and_time():
    """And taking all of them copies nothing."""
    columns = from_dicts(
        {"start": START + i * 10**9, "e2e_s": float(i), "tenant": f"t{i % 2}", "trace_id": str(i)}
        for i in range(10)
    )

    assert columns.take(columns.words["tenant"].where("t1")).n == 5
    assert columns.take(np.array([3, 1])).id("trace_id", 0) == "3"
    assert columns.within(1_700_000_002, 1_700_000_005).numbers["e2e_s"].tolist() == [2, 3, 4]
    assert columns.take(np.ones(10, bool)) is columns
    mixed = columns.take(np.array([5, 1, 4]))
    assert mixed.within(1_700_000_004, 1_700_000_006).n == 2


def test_tables_are_joined_though_their_words_differ():
    """Codes are translated to one dictionary."""
    one = from_dicts([{"start": START, "tenant": "a"}, {"start": START, "tenant": "b"}])
    other = from_dicts([{"start": START, "tenant": "b"}, {"start": START}])
    both = concatenate([one, other, empty()])

    assert [both.words["tenant"].word(i) for i in range(4)] == ["a", "b", "b", None]
    assert both.words["tenant"].where("b").tolist() == [False, True, True, False]
    assert concatenate([]).n == 0


def lines(path, *some):
    """Write lines, as they are or as JSON."""
    path.write_bytes(
        b"\n".join(s if isinstance(s, bytes) else json.dumps(s).encode() for s in some) + b"\n"
    )
    return path


plain_rows = st.lists(
    st.fixed_dictionaries(
        {"start": st.integers(START, 2**62)},
        optional={
            "ttft_s": st.floats(0, 1e3), "prompt_tokens": st.integers(0, 10**6),
            "tenant": st.text(max_size=5), "stream": st.booleans(),
            "request_id": st.text(max_size=5),
            "attempt_log": st.lists(
                st.dictionaries(st.text(max_size=2), st.integers(), max_size=2)
            ),
            "e2e_s": st.none(),
        },
    ),
    min_size=1, max_size=8,
)  # fmt: skip


@pytest.mark.parametrize("odd", [False, True], ids=["plain", "odd"])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_both_readers_read_the_same(tmp_path_factory, odd, data):
    """With pyarrow, and line by line: the same rows, the same warnings."""
    some = data.draw(st.lists(odd_rows, min_size=1, max_size=5) if odd else plain_rows)
    usual = [{"start": START + i} for i in range(6)]
    path = lines(tmp_path_factory.mktemp("both") / "rows.jsonl", *usual, *some)
    fast = read_columns(path)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(files, "_add_json_fast", lambda *_: False)
        slow = read_columns(path)

    assert same(fast, slow)
    assert fast.warnings == slow.warnings


def test_the_fast_reader_is_used_for_plain_rows(tmp_path, monkeypatch):
    """Not a line goes through the slow one."""
    path = lines(tmp_path / "rows.jsonl", *[{"start": START + i, "e2e_s": 1.0} for i in range(50)])
    monkeypatch.setattr(files, "objects", lambda _: pytest.fail("line by line"))

    assert read_columns(path).n == 50


def test_what_was_written_is_read(tmp_path):
    """Plain and gzipped, and all files of a folder."""
    columns = from_dicts(
        {"start": START + i, "e2e_s": 0.1 * i, "tenant": "é", "stream": True, "trace_id": f"{i}"}
        for i in range(20)
    )
    for name in ("rows.jsonl", "rows.jsonl.gz"):
        write_columns(tmp_path / name, columns)
        assert same(read_columns(tmp_path / name), columns)
    assert same(read_columns(tmp_path), columns)  # of a saved case, each row once
    (tmp_path / "several").mkdir()
    for name in ("a.jsonl", "b.jsonl.gz"):
        write_columns(tmp_path / "several" / name, columns)
    (tmp_path / "several" / "notes.txt").write_text("no rows")
    assert same(read_columns(tmp_path / "several"), concatenate([columns, columns]))
    packed = (tmp_path / "rows.jsonl.gz").read_bytes()
    assert gzip.decompress(packed).startswith(b'{"start":')


def test_parquet_is_read(tmp_path):
    """With its nulls, its dictionaries, and columns that are not ours."""
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table(
        {
            "start": [START, None, START + 1, -5],
            "ttft_s": [0.5, 0.5, float("nan"), 0.5],
            "output_tokens": [7, 7, None, 7],
            "tenant": pa.array(["a", "b", None, "a"]).dictionary_encode(),
            "e2e_s": ["x", "y", "z", "w"],
            "model": [1, 2, 3, 4],
            "other": [1, 2, 3, 4],
        }
    )
    parquet.write_table(table, tmp_path / "rows.parquet")
    columns = read_columns(tmp_path / "rows.parquet")

    assert columns.start.tolist() == [START, START + 1]
    assert columns.numbers["ttft_s"][0] == 0.5
    assert columns.numbers["output_tokens"][0] == 7
    assert [columns.words["tenant"].word(i) for i in range(2)] == ["a", None]
    assert columns.warnings == (
        "e2e_s: not a number: 2 values ignored",
        "model: not text: 2 values ignored",
        "row: no usable start: 2 rows ignored",
        "ttft_s: not a number: 1 value ignored",
    )


def test_parquet_of_other_columns_says_which(tmp_path):
    """And what the first row has for a start."""
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"start": [-5], "latency": [1.0]}), tmp_path / "rows.parquet")
    with pytest.raises(
        DataError,
        match=r"`start` is -5, .* has start, latency; rename latency → e2e_s$",
    ):
        read_columns(tmp_path / "rows.parquet")


def test_a_timestamp_of_parquet_is_a_start(tmp_path):
    """In whatever unit it has: data frames write microseconds and nanoseconds."""
    import pyarrow as pa
    from pyarrow import parquet

    at = pa.array([START // 1000], pa.timestamp("us"))
    parquet.write_table(pa.table({"start": at, "ttft_s": [0.5]}), tmp_path / "rows.parquet")
    assert read_columns(tmp_path / "rows.parquet").start.tolist() == [START // 1000 * 1000]


DEEP = b'{"start": 1, "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
LONG = b'{"start": 1, "a": "' + b"x" * (2 << 20) + b'"}'


@pytest.mark.parametrize(
    "line", [b"{", b"[]", b"7", b"null", b"\xff\xfe", b'{"start": NaN}', DEEP, LONG]
)
def test_a_line_that_is_no_row_costs_no_other(tmp_path, line):
    """It is counted, and the rows before and after it are read."""
    path = lines(tmp_path / "rows.jsonl", {"start": START}, line, b"", {"start": START + 1})
    columns = read_columns(path)

    assert columns.start.tolist() == [START, START + 1]
    odd = [text for text in columns.warnings if text.endswith((": 1 line ignored",
                                                               ": 1 row ignored"))]  # fmt: skip
    assert len(odd) == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            b"begin,ttft_s",
            r"line: not a row \(1\); its first line is 'begin,ttft_s'; rows are JSON",
        ),
        (b'[{"start": 1}', "a JSON array"),
        (b"\x1b[31m\xff", "its first line is '[^\x1b]*'; rows"),
        (
            {"timestamp": 1, "model": "m"},
            "`start` is missing, .* has timestamp, model; rename timestamp → start$",
        ),
        (
            {"start": "21/Sep/2026"},
            '`start` is "21/Sep/2026", and must be an ISO 8601 date and time .* Unix time in sec',
        ),
    ],
)
def test_a_file_of_no_rows_says_why(tmp_path, line, words):
    """Not an empty result that looks like a quiet day: what is there, and what rows are."""
    with pytest.raises(DataError, match=words):
        read_columns(lines(tmp_path / "rows.jsonl", b"", line))


def test_keys_that_may_be_mistyped_are_said(tmp_path):
    """In doubt, before the verdict; keys of one's own are no mistake."""
    row = {"start": START, "ttft": 0.5, "e2e_s": 1.0, "customer_tier": "gold", "tenant": "a"}
    some = read_columns(lines(tmp_path / "some.jsonl", row)).warnings
    del row["e2e_s"]
    none = read_columns(lines(tmp_path / "none.jsonl", row)).warnings

    unknown = "unknown key 'ttft'. Did you mean 'ttft_s'?"
    lacks = "no row has a usable ttft_s or tpot_s or e2e_s or render_s; the first has"
    assert some == (unknown,)
    assert none == (f"{lacks} start, ttft, customer_tier, tenant", unknown)
    assert all(isinstance(text, Doubt) for text in (*some, *none))


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("input_tokens", "Did you mean 'prompt_tokens'?"),
        ("ttft_ms", "Did you mean 'ttft_s', in seconds (divided by 1,000)?"),
        ("completion_tokens", "Did you mean 'output_tokens'?"),
        ("request_time", "Did you mean 'e2e_s'?"),
        ("customer", "Did you mean 'tenant'?"),
        ("customer_tier", ""),
    ],
)
def test_a_key_of_another_system_is_known(tmp_path, key, said):
    """Not the key that looks most like it: `input_tokens` is no `output_tokens`."""
    row = {"start": START, "tpot_s": 0.01, key: 1}
    warnings = read_columns(lines(tmp_path / "rows.jsonl", row)).warnings

    assert [*warnings] == ([f"unknown key {key!r}. {said}"] if said else [])
    assert [isinstance(text, Doubt) for text in warnings] == [key != "customer"] * bool(said)


def test_numbers_and_flags_may_be_quoted(tmp_path):
    """As the access logs of proxies have them; what is neither is counted by what it should be."""
    some = {"start": START, "e2e_s": "1.234", "http_status": "503", "stream": "True"}
    odd = {"start": START + 1, "e2e_s": "0.010, 1.234", "stream": "maybe"}
    columns = read_columns(lines(tmp_path / "rows.jsonl", some, odd))

    assert next(columns.to_dicts()) == {
        "start": START, "e2e_s": 1.234, "http_status": 503, "stream": True, "outcome": "error",
    }  # fmt: skip
    assert [text.partition(":")[:3:2] for text in columns.warnings] == [
        ("e2e_s", " not a number, as '0.010, 1.234': 1 value ignored"),
        ("stream", " not true or false, as 'maybe': 1 value ignored"),
    ]


@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        ({"outcome": "FAILED"}, "error"),
        ({"outcome": "ok", "http_status": 503}, "success"),
        ({"outcome": "canceled"}, "cancelled"),
        ({"http_status": 503}, "error"),
        ({"http_status": 200}, "success"),
        ({"http_status": 499}, "cancelled"),
        ({"outcome": "hm", "http_status": 429}, "error"),
        ({"http_status": 0}, None),
        ({}, None),
    ],
)
def test_an_outcome_has_other_words_and_shows_in_the_status(tmp_path, given, outcome):
    """Else a log without our words would show no failures."""
    columns = read_columns(lines(tmp_path / "rows.jsonl", {"start": START, **given}))

    assert next(columns.to_dicts()).get("outcome") == outcome


def test_a_json_array_is_read_whatever_its_lines(tmp_path):
    """As `jq -s` and `json.dump` write one; and gzipped, whatever the name."""
    rows = [{"start": START + i, "e2e_s": 1.0} for i in range(3)]
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=2), encoding="utf-8")
    (tmp_path / "b").write_bytes(gzip.compress(json.dumps(rows).encode()))

    for name in ("a.json", "b"):
        assert read_columns(tmp_path / name).start.tolist() == [START, START + 1, START + 2]


def test_a_unit_that_changes_is_doubted(tmp_path):
    """From one deployment on, durations in milliseconds."""
    rows = [{"start": START + i, "ttft_s": 0.5 if i < 900 else 500.0} for i in range(1000)]
    (doubt,) = read_columns(lines(tmp_path / "rows.jsonl", *rows)).warnings

    assert doubt == "ttft_s is 500 s at the median for part of the time: are these milliseconds?"


def test_rows_are_read_from_a_pipe(tmp_path, monkeypatch):
    """As `-` is, which stands for standard input: it has no size, and no place in it."""
    ends = os.pipe()
    os.write(ends[1], b'{"start": %d, "e2e_s": 1.0}\n' % START)
    os.close(ends[1])
    monkeypatch.setattr(forms, "_STDIN", Path(f"/dev/fd/{ends[0]}"))

    assert read_columns(Path("-")).n == 1
    os.close(ends[0])


def test_a_file_of_nothing_is_no_rows(tmp_path):
    """Nothing was said, and nothing is wrong."""
    (tmp_path / "rows.jsonl").write_bytes(b"")

    assert read_columns(tmp_path / "rows.jsonl").n == 0


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [("rows.jsonl.gz", b"no row", DataError), ("rows.parquet", b"not parquet", SourceError),
     ("rows.jsonl.gz", gzip.compress(b'{"start": 1}\n' * 1000)[:60], SourceError)],
)  # fmt: skip
def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path, name, content, error):
    """With its path."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=name):
        read_columns(tmp_path / name)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    """With its path."""
    with pytest.raises(SourceError, match=r"missing\.jsonl"):
        read_columns(tmp_path / "missing.jsonl")


def test_lines_are_whole_however_a_file_is_cut(tmp_path, monkeypatch):
    """Blocks end in the middle of lines, and no row is lost or torn."""
    monkeypatch.setattr(forms, "_BLOCK_BYTES", 100)
    path = lines(tmp_path / "rows.jsonl", *[{"start": START + i, "e2e_s": 1.0} for i in range(99)])
    seen = []
    columns = read_columns(path, progress=lambda what, share: seen.append(share))

    assert columns.start.tolist() == [START + i for i in range(99)]
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_of_very_many_rows_a_sample_is_kept(tmp_path, monkeypatch):
    """Each standing for those left out, and what was ignored counted once."""
    monkeypatch.setattr(forms, "_BLOCK_BYTES", 2000)
    monkeypatch.setattr(files, "_PIECE", 100)
    monkeypatch.setattr(files, "Sample", lambda: Sample(1000))
    some = [{"start": START + 7 * i, "e2e_s": "x" if i % 10 == 0 else 1.0} for i in range(5000)]
    columns = read_columns(lines(tmp_path / "rows.jsonl", *some))

    assert 300 < columns.n <= 1000
    assert columns.weights.sum() == pytest.approx(5000, rel=0.2)
    assert "e2e_s: not a number, as 'x': 500 values ignored" in columns.warnings
    assert sum("one in" in warning for warning in columns.warnings) == 1


@pytest.mark.parametrize(("more", "decode_s", "tpot_s", "stream"), [
    ({}, 2.0, 0.02, 1),
    ({"ttft_s": 2.2}, None, None, 0),  # all of it came at its end
    ({"outcome": "error"}, None, None, None),
    ({"chunks": 50}, 2.0, 0.02, 1),
    ({"chunks": 1}, None, None, None),  # there is no time after it
    ({"tpot_s": 0.01}, None, 0.01, None),
    ({"output_tokens": 1}, None, None, None),
    ({"stream": False}, None, None, 0),
    ({"render_s": 0.5}, 1.5, 0.02, 1),  # the consumer's time is no wait for tokens
])  # fmt: skip
def test_time_after_the_first_content_follows_from_the_end(more, decode_s, tpot_s, stream):
    """A gateway's log has the first content, the end and the tokens."""
    row = {"start": 1_795_780_800, "e2e_s": 2.2, "ttft_s": 0.2, "output_tokens": 101}

    [read] = from_dicts([row | more]).to_dicts()

    assert (read.get("decode_s"), read.get("tpot_s"), read.get("stream")) == (
        decode_s and pytest.approx(decode_s), tpot_s and pytest.approx(tpot_s), stream,
    )  # fmt: skip


def test_a_status_that_is_none_is_no_success():
    """Gateways log 0 if there was no response: how the request ended is not known."""
    rows = [{"start": START + n, "e2e_s": 1.0, "http_status": n} for n in (0, 200, 503)]
    columns = from_dicts(rows)

    assert [columns.words["outcome"].word(n) for n in range(3)] == [None, "success", "error"]
    assert columns.warnings == ("http_status: out of bounds: 1 value ignored",)


def test_a_header_of_other_names_is_renamed_at_once(tmp_path):
    """The time and every other column that seems to mean a key; durations with their unit."""
    (tmp_path / "rows.csv").write_text("timestamp,status,latency_ms,note\n1,200,5,x\n")
    with pytest.raises(DataError) as raised:
        read_columns(tmp_path / "rows.csv")
    renamed = "rename latency_ms → e2e_s, in seconds (divided by 1,000); status → http_status; "
    assert f"{renamed}timestamp → start" in str(raised.value)


def test_a_file_that_is_named_twice_is_read_once(tmp_path):
    """By itself and in its folder, beside a table that no reader can unpack."""
    path = lines(tmp_path / "rows.jsonl", {"start": START, "e2e_s": 1.0})
    (tmp_path / "b.parquet.gz").write_bytes(b"no table")

    assert read_columns(tmp_path, path).n == 1
