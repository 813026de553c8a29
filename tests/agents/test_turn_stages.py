"""The split of a turn's time into stages."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from llmtrace.agents.turn_stages import Inside, turn_timeline
from llmtrace.core.stages import Reported, Stages, Timeline, split
from tests.strategies import timelines

MS = 1_000_000


def stages_of(wall, *requests):
    """Return the stages of a turn in milliseconds, the rest included; 0 and unknown left out."""
    found = split(turn_timeline(wall * MS, requests))
    assert found.total == wall * MS
    assert found.inconsistent == ()
    named = {name: ns // MS for name, ns in found if ns}
    return named | ({"unattributed": found.unattributed // MS} if found.unattributed else {})


def request(start, end, **stages):
    """Make a request from its start, end and stages in milliseconds."""
    known = {name: ns * MS for name, ns in stages.items()}
    return Inside(start * MS, end * MS, Stages(**known, sources=dict.fromkeys(known, "client")))


insides = st.builds(
    lambda start, timeline: Inside(
        start,
        start + (5 if timeline is None else timeline.e2e),
        None if timeline is None else split(timeline),
    ),
    st.integers(0, 10**9),
    st.none() | timelines,
)


def test_a_turn_without_requests_is_the_callers_own():
    """What no request covers is render; of the rest nothing is known."""
    stages = split(turn_timeline(5, []))

    assert (stages.render, stages.total) == (5, 5)
    assert stages.queue is None
    assert stages.decode is None


def test_requests_and_what_lies_between():
    """Stages of all requests add up, and the time between them is the caller's own."""
    one = request(100, 300, network=20, decode=180)
    two = request(800, 1000, network=50, decode=150)

    assert stages_of(1000, one, two) == {"network": 70, "decode": 330, "render": 600}


def test_overlap_is_counted_once():
    """Of two requests at a time the first keeps its stages; the second has what comes after."""
    one = request(0, 200, network=50, decode=150)
    two = request(100, 400, network=50, decode=250)

    assert stages_of(400, one, two) == {"network": 50, "decode": 350}


def test_a_reader_inside_a_request_is_the_callers_own():
    """A request's render is the turn's."""
    assert stages_of(200, request(0, 100, decode=40, render=60)) == {"decode": 40, "render": 160}


def test_time_that_cannot_be_split_stays_so():
    """A hosted API beside an engine: its part is not given to a stage it does not have."""
    engine = request(0, 100, queue=10, prefill=30, first_chunk=10, decode=50)
    hosted = Inside(
        100 * MS,
        200 * MS,
        Stages(decode=40 * MS, unattributed=60 * MS, sources={"decode": "client"}),
    )

    assert stages_of(200, engine, hosted) == {
        "queue": 10, "prefill": 30, "first_chunk": 10, "decode": 90, "unattributed": 60,
    }  # fmt: skip


def test_a_request_that_is_still_open():
    """When the turn ends before its request, that request's time cannot be split yet."""
    assert stages_of(100, Inside(20 * MS, 100 * MS, None)) == {"render": 20, "unattributed": 80}


def test_a_sum_is_as_good_as_its_worst_part():
    """A figure of an interval's average makes the turn's one, too."""
    exact = Stages(queue=1, sources={"queue": "engine_inband"}, decode=1)
    averaged = Stages(queue=2, sources={"queue": "engine_window"}, decode=1)

    timeline = turn_timeline(10, [Inside(0, 2, exact), Inside(5, 8, averaged)])
    assert timeline.queue == Reported(3, "engine_window")


@given(st.integers(0, 10**10), st.lists(insides, max_size=5), st.randoms())
def test_stages_add_up_to_the_turn(wall, requests, random):
    """For any requests, however they overlap or stick out, in any order."""
    stages = split(turn_timeline(wall, requests))
    shuffled = list(requests)
    random.shuffle(shuffled)

    assert stages.total == wall
    assert stages.inconsistent == ()
    assert split(turn_timeline(wall, shuffled)) == stages


@given(st.integers(0, 10**10), st.lists(insides, max_size=4))
def test_no_stage_is_longer_than_all_requests_together(wall, requests):
    """Nothing is invented: what a stage gets, requests had in it."""
    timeline = turn_timeline(wall, requests)
    stages = split(timeline)
    for name, ns in stages:
        if ns is not None and name != "render":
            had = [getattr(one.stages, name) or 0 for one in requests if one.stages is not None]
            assert ns <= sum(had)


@given(timelines)
def test_a_turn_of_one_request_is_that_request(timeline):
    """With one request that fills it, a turn has its stages."""
    timeline = replace(timeline, unsplit=0)
    alone = split(timeline)
    stages = split(turn_timeline(timeline.e2e, [Inside(0, timeline.e2e, alone)]))

    assert {name: ns or 0 for name, ns in stages} == {name: ns or 0 for name, ns in alone}
    assert stages.unattributed == alone.unattributed


def test_the_empty_timeline_has_nothing_unsplit():
    """Only turns have such time."""
    assert Timeline(e2e=5).unsplit == 0
