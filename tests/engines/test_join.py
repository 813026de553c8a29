"""Which rows do an engine's records belong to?"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.core.row import with_figures
from llmtrace.core.stages import EngineFigures, Reported, Timeline
from llmtrace.engines.join import ClientIds, client_ids, join, together
from llmtrace.testing import make_row
from tests.strategies import requests

MS = 1_000_000


def figures(queue=10, prefill=20, decode=100, **more):
    """Make the figures of one sequence, in ms."""
    reported = {"queue": queue, "prefill": prefill, "decode": decode}
    return EngineFigures(
        **{
            name: None if ms is None else Reported(round(ms * MS), "engine_plugin")
            for name, ms in reported.items()
        },
        **{"engine": "e", **more},
    )


# The ids that vLLM makes of what it was sent, and responds with.
sent_ids = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1)
NAMED = {
    "chat": lambda sent: (f"chatcmpl-{sent}", f"chatcmpl-{sent}"),
    "completion": lambda sent: (f"cmpl-{sent}", f"cmpl-{sent}-0"),
    "response": lambda sent: (f"resp_{sent}", f"resp_{sent}_0"),
}


@pytest.mark.parametrize("kind", NAMED)
@given(sent=sent_ids)
def test_ids_lead_back_to_what_the_client_knows(kind, sent):
    """From vLLM's id, the response's id and the `X-Request-Id` follow, whatever was sent."""
    response_id, engine_id = NAMED[kind](sent)

    assert client_ids(engine_id) == ClientIds(response_id, None if kind == "response" else sent)


@given(st.text())
def test_any_text_may_be_an_id(text):
    """What has no known form is its own response's id, and nothing is made up."""
    ids = client_ids(text)

    assert text.startswith(ids.response_id)
    assert ids.request_id is None or ids.request_id in ids.response_id


@given(
    st.lists(sent_ids, unique=True, max_size=6),
    st.sets(st.integers(0, 5)),
    st.sampled_from(list(NAMED)),
    st.booleans(),
    st.randoms(),
)
def test_each_record_goes_to_its_own_row(sent, without, kind, passed_on, random):
    """In any order, with some missing, a row gets the figures of its id and no other's."""
    rows = [make_row(request_id=one, response_id=NAMED[kind](one)[0]) for one in sent]
    if not passed_on and kind != "response":  # a gateway made ids of its own for the responses
        rows = [replace(row, response_id=f"gw-{n}") for n, row in enumerate(rows)]
    filled = {one: figures(queue=n + 1) for n, one in enumerate(sent) if n not in without}
    records = [(NAMED[kind](one)[1], said) for one, said in filled.items()]
    random.shuffle(records)

    expected = [
        with_figures(row, filled[one]) if one in filled else row
        for one, row in zip(sent, rows, strict=True)
    ]
    assert list(join(rows, records)) == expected


def test_an_id_within_another_is_not_the_same():
    """`lt-1` is not `lt-12`, and a prompt's number is not taken off a chat's id."""
    row = make_row(request_id="lt-1", response_id=None)

    assert list(join([row], [("chatcmpl-lt-12", figures()), ("chatcmpl-lt-1-0", figures())])) == [
        row
    ]


def test_rows_that_share_an_id_get_nothing():
    """An application that sends one `X-Request-Id` for everything cannot be joined by it."""
    twins = [make_row(request_id="app", response_id="chatcmpl-app") for _ in range(2)]

    assert list(join(twins, [("chatcmpl-app", figures())])) == twins


def test_several_records_of_several_attempts_get_nothing():
    """Which of the attempts the client got a response of is unknown."""
    row = make_row(request_id="lt-1", response_id="chatcmpl-lt-1", attempts=2)
    first, second = ("chatcmpl-lt-1", figures()), ("chatcmpl-lt-1", figures(queue=5))

    assert list(join([row], [first, second])) == [row]
    assert list(join([row], [second])) == [with_figures(row, second[1])]


def test_several_sequences_are_one_request():
    """The first token of any is the first; the last of any ends decode; tokens add up."""
    slow = figures(10, 50, 100, prompt_tokens=8, output_tokens=6, preemptions=1)
    fast = figures(11, 20, 60, prompt_tokens=8, output_tokens=4, preemptions=0, replica="a")

    assert together([slow, fast]) == figures(
        11, 20, 129, output_tokens=10, preemptions=1, replica="a"
    )


def test_a_sequence_nothing_is_known_of_leaves_all_unknown():
    """One that reported too little may have been the first."""
    assert together([figures(), figures(queue=None)]) == EngineFigures()


def test_two_legs_are_no_sequences():
    """Prefill on one engine, decode on another: in either order, neither's time is the other's."""
    prefill = figures(50, 800, 0, engine="p", prompt_tokens=9, output_tokens=1, preemptions=0)
    decode = figures(220, 15, 3000, engine="d", output_tokens=70, preemptions=1, replica="d-1")
    wanted = figures(
        50, 800, 3000, engine=None, prompt_tokens=9, output_tokens=70, preemptions=1,
        replica="d-1", kv_transfer=Reported(220 * MS, "engine_plugin"),
    )  # fmt: skip

    assert together([prefill, decode]) == together([decode, prefill]) == wanted


def test_the_second_legs_wait_is_a_part_of_first_chunk():
    """800 ms of prefill stay 800, and the row says that the second leg waited 220 ms."""
    prefill, decode = figures(50, 800, 0, engine="p"), figures(220, 15, 3000, engine="d")
    row = make_row(response_id="chatcmpl-a", timeline=Timeline(e2e=4200 * MS, ttft=1130 * MS))

    [joined] = join([row], [("chatcmpl-a", decode), ("chatcmpl-a", prefill)])

    assert (joined.stages.queue, joined.stages.prefill) == (50 * MS, 800 * MS)
    flat = joined.as_dict()
    assert flat["first_chunk_kv_transfer_s"] == 0.22 <= flat["first_chunk_s"]


def a_slice(rank, **times):
    """Make a slice of a request's time, in ms, as one rank of an engine reports it."""
    reported = {name: Reported(ms * MS, "engine_span") for name, ms in times.items()}
    return EngineFigures(**reported, engine=rank, is_slice=True)


def test_slices_make_one_record_with_the_whole():
    """Chunks of a prefill add up within a rank; ranks work at once, so the slowest counts."""
    whole = EngineFigures(decode=Reported(900 * MS, "engine_span"))
    slices = [
        a_slice("tp0", queue=2000), a_slice("tp0", prefill=70), a_slice("tp0", prefill=50),
        a_slice("tp1", queue=1999), a_slice("tp1", prefill=119),
    ]  # fmt: skip
    wanted = replace(
        whole,
        queue=Reported(2000 * MS, "engine_span"),
        prefill=Reported(120 * MS, "engine_span"),
    )

    assert together([whole, *slices]) == together([*reversed(slices), whole]) == wanted
    assert together(slices) == replace(wanted, decode=None)


def test_slices_of_several_records_tell_nothing():
    """Whose they are is unknown."""
    assert together([figures(), figures(11), a_slice("tp0", queue=1)]) == together(
        [figures(), figures(11)]
    )


def test_records_of_two_engines_that_both_decoded_tell_nothing():
    """Whether they are legs or two attempts is unknown."""
    assert together([figures(engine="a"), figures(15, engine="b")]) == EngineFigures()
    assert together([figures(engine=None), figures(15, engine=None)]) == EngineFigures()


durations = st.integers(0, 10**12)
sequences = st.lists(
    st.builds(
        EngineFigures,
        queue=durations.map(lambda ns: Reported(ns, "engine_plugin")),
        prefill=durations.map(lambda ns: Reported(ns, "engine_plugin")),
        decode=st.integers(1, 10**12).map(lambda ns: Reported(ns, "engine_plugin")),
        output_tokens=st.none() | st.integers(0, 9),
        engine=st.just("e"),
    ),
    min_size=1,
    max_size=4,
)


@given(sequences)
def test_sequences_taken_together_keep_the_first_token_and_the_last(several):
    """Queue and prefill end at the earliest first token, decode at the latest last one."""
    one = together(several)
    firsts = [each.queue.ns + each.prefill.ns for each in several]

    assert one.queue.ns + one.prefill.ns == min(firsts)
    assert one.queue.ns + one.prefill.ns + one.decode.ns == max(
        first + each.decode.ns for first, each in zip(firsts, several, strict=True)
    )


@given(requests, sequences)
def test_whatever_is_joined_the_stages_add_up(row, several):
    """The sum stays e2e to the nanosecond."""
    (joined,) = join([row], [(row.response_id or "none", one) for one in several])

    assert joined.stages.total == row.e2e_ns


def test_what_the_row_knows_stays():
    """An engine fills in what the client did not get, and does not overrule it."""
    filled = figures(prompt_tokens=9, cached_tokens=4, output_tokens=7, preemptions=0, replica="a")
    row = with_figures(make_row(prompt_tokens=8, outcome="success"), filled)

    assert (row.prompt_tokens, row.cached_tokens, row.output_tokens) == (8, 4, 7)
    assert (row.preemptions, row.replica) == (0, "a")


def test_the_client_of_a_cut_stream_got_fewer_tokens_than_the_engine_made():
    """The engine's count would make the time of an output token wrong."""
    row = with_figures(make_row(outcome="truncated"), figures(prompt_tokens=9, output_tokens=7))

    assert (row.prompt_tokens, row.output_tokens) == (9, None)
