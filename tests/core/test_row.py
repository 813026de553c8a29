"""A row exposes what it holds, comes back from plain JSON, and rejects what is not a row."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from llmtrace.core.errors import DataError
from llmtrace.core.row import OUTCOMES, Row, from_dict, seconds, with_figures
from llmtrace.core.stages import PARTITION, STAGES, EngineFigures, Network, Reported, Timeline
from llmtrace.testing import make_row
from tests.strategies import durations, maybe, rows

MS = 1_000_000

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([*OUTCOMES, *STAGES, "client"]),
    lambda inside: st.lists(inside, max_size=2) | st.dictionaries(st.text(), inside, max_size=2),
    max_leaves=4,
)


def inband(value: int) -> Reported:
    """Report milliseconds as an engine does in its answer."""
    return Reported(value * MS, "engine_inband")


def streamed(**given: int | Reported) -> Row:
    """Make a row of a streamed request from its timeline, in milliseconds."""
    ns = {name: value * MS if isinstance(value, int) else value for name, value in given.items()}
    return make_row(timeline=Timeline(**ns))


# --- there and back -----------------------------------------------------------------------------


@given(rows)
def test_a_row_comes_back_from_its_dict(row):
    """Whatever a row holds comes back from what it flattens to, to the nanosecond."""
    assert from_dict(row.as_dict()) == row


@given(rows)
def test_a_row_comes_back_from_json(row):
    """The same after it was written as strict JSON and read again."""
    written = json.dumps(row.as_dict(), allow_nan=False)

    assert from_dict(json.loads(written)) == row


@given(rows)
def test_a_row_that_came_back_writes_the_same(row):
    """Writing, reading and writing again changes nothing, derived figures included."""
    flat = row.as_dict()

    assert from_dict(flat).as_dict() == flat


@given(rows)
def test_what_is_unknown_is_left_out(row):
    """No key is written for what is not known: not even as null."""
    flat = row.as_dict()

    assert None not in flat.values()
    for stage, ns in row.stages:
        assert (f"{stage}_s" in flat) == (f"{stage}_source" in flat) == (ns is not None)


@given(rows)
def test_written_stages_add_up(row):
    """The stages as written, in seconds, add up to the wait as written."""
    flat = row.as_dict()
    written = [flat[f"{stage}_s"] for stage in PARTITION if f"{stage}_s" in flat]

    assert sum(written) == pytest.approx(flat["e2e_s"], rel=1e-12, abs=1e-12)


@given(rows)
def test_a_row_can_be_sent_to_another_process(row):
    """A row survives pickling after its stages were looked at."""
    stages = row.stages

    copy = pickle.loads(pickle.dumps(row))

    assert copy == row
    assert copy.stages == stages


def test_the_raw_figure_of_a_cut_stage_is_written():
    """A figure that did not fit is written as reported, and as it was cut."""
    flat = streamed(e2e=1_000, ttft=100, queue=inband(400)).as_dict()

    assert (flat["queue_s"], flat["reported_queue_s"]) == (0.1, 0.4)
    assert flat["inconsistent"] == ["queue"]


def test_the_keys_are_the_contracts():
    """Network phases, marks, reports and attributes go by the names other programs read."""
    flat = make_row(
        timeline=Timeline(
            e2e=100 * MS,
            ttft=50 * MS,
            held_before=1 * MS,
            held_after=2 * MS,
            network=Network(
                client_wait=0,
                dns=MS,
                connect=2 * MS,
                tls=3 * MS,
                send=4 * MS,
                rtt=5 * MS,
                rtt_source="kernel",
            ),
            retry_network=3 * MS,
            retry_gateway=4 * MS,
            queue=inband(5),
            frontend=inband(6),
            marked_after={"render": 7 * MS},
        ),
        max_gap_ns=8 * MS,
        attributes={"team": "search"},
        response_headers={"retry-after": "5"},
        burst_chunks=9,
    ).as_dict()

    assert (
        flat.items()
        >= {
            "network_client_wait_s": 0.0,
            "network_dns_s": 0.001,
            "network_connect_s": 0.002,
            "network_tls_s": 0.003,
            "network_send_s": 0.004,
            "network_rtt_s": 0.005,
            "network_rtt_source": "kernel",
            "held_before_s": 0.001,
            "held_after_s": 0.002,
            "retry_network_s": 0.003,
            "retry_gateway_s": 0.004,
            "retry_s": 0.007,
            "reported_queue_s": 0.005,
            "reported_queue_source": "engine_inband",
            "first_chunk_frontend_s": 0.006,
            "marked_after_render_s": 0.007,
            "max_gap_s": 0.008,
            "stream": True,
            "burst_chunks": 9,
        }.items()
    )
    assert flat["attributes"] == {"team": "search"}
    assert flat["response_headers"] == {"retry-after": "5"}


# --- what is not a row --------------------------------------------------------------------------


@given(json_values)
def test_anything_else_is_refused_as_data(value):
    """What is no row at all raises `DataError`, and nothing else."""
    with pytest.raises(DataError):
        from_dict(value)


@given(rows, st.data())
def test_a_spoilt_row_is_refused_or_makes_sense(row, data):
    """A row with any value replaced is refused as data, or still adds up and can be written."""
    flat = row.as_dict()
    key = data.draw(
        st.sampled_from([*flat, "ttft_s", "stream", "response_headers", "marked_after_decode_s"])
    )
    flat[key] = data.draw(json_values)
    try:
        back = from_dict(flat)
    except DataError:
        return

    assert back.stages.total == back.e2e_ns
    assert from_dict(back.as_dict()) == back


@given(rows, st.data())
def test_null_is_the_same_as_missing(row, data):
    """A key that holds null reads as if it were not there."""
    flat = row.as_dict()
    required = {"trace_id", "span_id", "start", "service", "e2e_s"}
    key = data.draw(
        st.sampled_from(sorted({*flat, "stream", "attributes", "response_headers"} - required))
    )
    without = {name: value for name, value in flat.items() if name != key}

    assert from_dict({**flat, key: None}) == from_dict(without)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("e2e_s", "1"),
        ("e2e_s", True),
        ("e2e_s", -1),
        ("e2e_s", float("nan")),
        ("e2e_s", float("inf")),
        ("e2e_s", 10**400),
        ("ttft_s", [1]),
        ("stream", "false"),
        ("outcome", "fine"),
        ("outcome", ["error"]),
        ("model", 7),
        ("start", "now"),
        ("start", 1.5),
        ("chunks", True),
        ("weight", float("inf")),
        ("tool_wall_s", 10**400),
        ("tool_wall_s", 1e300),
        ("reported_queue_source", "hearsay"),
        ("network_rtt_source", {}),
        ("network_dns_s", "0"),
        ("marked_before_render_s", "0"),
        ("response_headers", {"retry-after": 5}),
    ],
)
def test_a_wrong_value_is_named(key, value):
    """The message of what is refused names the key."""
    flat = {**streamed(e2e=10, ttft=5, queue=inband(1)).as_dict(), key: value}

    with pytest.raises(DataError, match=key):
        from_dict(flat)


def test_what_a_row_lacks_or_has_too_much_is_named():
    """One of them is said alone."""
    with pytest.raises(TypeError, match=r"^a row lacks span_id$"):
        Row(**{name: value for name, value in vars(make_row()).items() if name != "span_id"})
    with pytest.raises(TypeError, match=r"^a row has no colour$"):
        Row(**vars(make_row()), colour="red")


@pytest.mark.parametrize("key", ["start", "e2e_s"])
def test_a_missing_key_is_named(key):
    """The message names a key that a row cannot do without."""
    flat = make_row().as_dict()
    del flat[key]

    with pytest.raises(DataError, match=key):
        from_dict(flat)


def test_whole_numbers_may_come_as_floats():
    """A count kept in a column of floats is still a count."""
    row = from_dict({**make_row().as_dict(), "prompt_tokens": 512.0})

    assert (row.prompt_tokens, type(row.prompt_tokens)) == (512, int)


def test_a_report_without_a_source_is_dropped():
    """A reported duration without its source is unknown."""
    row = from_dict({**make_row().as_dict(), "reported_queue_s": 0.1})

    assert row.timeline.queue is None


def test_an_unknown_key_is_ignored():
    """Keys of a later version do no harm."""
    assert from_dict({**make_row().as_dict(), "mood": "good"}) == make_row()


# --- figures that arrive later ------------------------------------------------------------------

figures = st.builds(
    EngineFigures,
    queue=st.none() | durations.map(lambda ns: Reported(ns, "engine_span")),
    prefill=st.none() | durations.map(lambda ns: Reported(ns, "engine_span")),
    decode=st.none() | durations.map(lambda ns: Reported(ns, "engine_span")),
)


@given(rows, figures)
def test_late_figures_make_the_row_they_make_at_once(row, late):
    """Figures joined before or after a row was written, looked at and read make the same row."""
    at_once = with_figures(row, late)
    assume(row.stages is not None)  # the row has been split already

    joined = with_figures(from_dict(row.as_dict()), late)

    assert joined == at_once
    assert joined.stages == at_once.stages
    assert joined.stages.total == row.e2e_ns


@given(rows, figures)
def test_figures_may_arrive_twice(row, late):
    """Joining the same figures again changes nothing."""
    once = with_figures(row, late)

    assert with_figures(once, late) == once


def test_late_figures_split_what_was_unattributed():
    """Before its figures are there, a row is honest; after, it is complete."""
    row = streamed(e2e=1_000, ttft=300)
    before = row.stages.unattributed

    joined = with_figures(row, EngineFigures(queue=inband(100), prefill=inband(150)))

    assert (before, joined.stages.unattributed) == (300 * MS, 0)
    assert joined.stages.first_chunk == 50 * MS


# --- derived figures ----------------------------------------------------------------------------


@given(rows)
def test_arrival_lies_between_what_is_known_and_what_was_felt(row):
    """Content cannot have arrived after it was handed over, nor before the request began."""
    ttft = min(row.timeline.ttft or 0, row.timeline.e2e)
    row = replace(row, timeline=replace(row.timeline, ttft=ttft, stream=True))
    arrival = row.ttft_arrival_s
    assume(arrival is not None)

    assert 0 <= arrival <= row.ttft_s


def test_arrival_of_an_eager_reader():
    """Who asked at once had the content when it arrived."""
    assert streamed(e2e=1_000, ttft=300).ttft_arrival_s == 0.3


def test_arrival_for_a_late_reader():
    """The hold of a late reader is taken off, as far as the engine leaves room for it."""
    engine = {"queue": inband(100), "prefill": inband(150)}

    assert streamed(e2e=1_000, ttft=600, held_before=200, **engine).ttft_arrival_s == 0.4
    assert streamed(e2e=1_000, ttft=600, held_before=590, **engine).ttft_arrival_s == 0.25


def test_arrival_does_not_mind_what_was_rendered_later():
    """Rendering after the first content, held or marked, says nothing of its arrival."""
    row = streamed(e2e=2_000, ttft=600, held_before=200, queue=inband(100), prefill=inband(150))
    timeline = replace(row.timeline, held_after=700 * MS, marked_after={"render": 650 * MS})

    assert replace(row, timeline=timeline).ttft_arrival_s == 0.4


@pytest.mark.parametrize("queue", [None, Reported(100 * MS, "estimated")])
def test_arrival_that_nothing_bounds(queue):
    """Without the engine's timings the arrival of a late consumer's content is not known."""
    timeline = Timeline(
        e2e=1_000 * MS, ttft=600 * MS, held_before=200 * MS, prefill=inband(1), queue=queue
    )

    assert make_row(timeline=timeline).ttft_arrival_s is None


def test_arrival_without_content():
    """No content never arrived."""
    assert streamed(e2e=1_000).ttft_arrival_s is None


@pytest.mark.parametrize(
    ("ttft", "last", "tokens", "expected"),
    [
        (200, 700, 11, 0.05),
        (200, 200, 2, 0.0),
        (200, 700, 1, None),
        (200, 700, 0, None),
        (200, 700, None, None),
        (None, 700, 11, None),
        (200, None, 11, None),
    ],
)
def test_time_per_output_token(ttft, last, tokens, expected):
    """From first to last content, over the tokens after the first; else unknown."""
    row = make_row(
        timeline=Timeline(e2e=1_000 * MS, ttft=None if ttft is None else ttft * MS),
        last_content_ns=None if last is None else last * MS,
        output_tokens=tokens,
    )

    assert row.tpot_s == expected


@given(maybe)
def test_seconds_of_the_unknown_are_unknown(ns):
    """Nanoseconds turn into seconds, and None stays None."""
    assert seconds(ns) == (None if ns is None else ns / 1e9)


def test_figures_in_seconds():
    """The row's own figures read in seconds."""
    row = streamed(e2e=1_500, ttft=300, retry_network=20, retry_gateway=30)

    assert (row.e2e_s, row.ttft_s, row.retry_s, row.max_gap_s) == (1.5, 0.3, 0.05, None)
    assert replace(row, max_gap_ns=40 * MS).max_gap_s == 0.04


def test_a_whole_answer_is_no_stream():
    """A row says whether its answer came as a stream."""
    flat: dict[str, Any] = make_row(timeline=Timeline(e2e=1, stream=False)).as_dict()

    assert flat["stream"] is False
    assert from_dict(flat).stream is False
