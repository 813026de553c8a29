"""What tool calls of a turn come to: parallelism, critical path, and what taking turns cost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.core.tool_calls import (
    PART_KINDS,
    Part,
    ToolFigures,
    could_run_together,
    flat_part,
    read_part,
    tool_figures,
)

MS = 1_000_000
OUTCOMES = ("success", "error", "cancelled", None)


def call(name, start, end, *, number=None, **more):
    """Make a tool call from its start and end in milliseconds; numbered as it begins."""
    numbered = start if number is None else number
    return Part(
        kind="tool",
        name=name,
        number=numbered,
        start=start * MS,
        duration=(end - start) * MS,
        **{"outcome": "success", **more},
    )


def figures(*calls):
    """Return the figures of some calls in milliseconds."""
    found = tool_figures(calls)
    return tuple(
        value // MS for value in (found.wall, found.serial, found.critical_path, found.serial_loss)
    )


@st.composite
def calls(draw, rounds=3):
    """Calls such as a turn may hold, numbered in the order they begin, each with its needs."""
    starts = sorted(draw(st.lists(st.integers(0, 60), max_size=10)))
    return [
        Part(
            kind="tool",
            name=f"tool{number}",
            number=number,
            start=start,
            duration=draw(st.integers(0, 20)),
            outcome=draw(st.sampled_from(OUTCOMES)),
            round=draw(st.integers(0, rounds)),
            needs=tuple(draw(st.lists(st.integers(0, number), max_size=3))),
        )
        for number, start in enumerate(starts)
    ]


# --- figures -----------------------------------------------------------------------------------


def test_three_calls_in_turn():
    """Three calls of 1.5 s that need nothing of each other lose two thirds by taking turns."""
    search, weather, news = call("a", 0, 1500), call("b", 1500, 3000), call("c", 3000, 4500)

    assert figures(search, weather, news) == (4500, 4500, 1500, 3000)


def test_three_calls_together():
    """The same three at once lose nothing."""
    together = [call(name, 0, 1500, number=n) for n, name in enumerate("abc")]

    assert figures(*together) == (1500, 4500, 1500, 0)


def test_a_call_that_needs_another_loses_nothing():
    """A chain has to take turns: its critical path is all of it."""
    search = call("search", 0, 1500)
    fetch = call("fetch", 1500, 3000, needs=(0,))

    assert figures(search, fetch) == (3000, 3000, 3000, 0)


def test_a_chain_beside_an_independent_call():
    """Only what need not have waited is lost."""
    search = call("search", 0, 1000)
    fetch = call("fetch", 1000, 2000, needs=(0,))
    weather = call("weather", 2000, 3500)

    assert figures(search, fetch, weather) == (3500, 3500, 2000, 1500)


def test_rounds_wait_for_the_model():
    """What the model asked for after it saw results is no loss, though nothing shows in it."""
    first = call("a", 0, 1000, round=1)
    second = call("b", 2000, 3000, round=2)

    assert figures(first, second) == (2000, 2000, 2000, 0)


def test_within_a_round_and_across():
    """Two rounds of two calls each lose one call's time each."""
    one = [call("a", 0, 1000, round=1), call("b", 1000, 2000, round=1)]
    two = [call("c", 3000, 4000, round=2), call("d", 4000, 5000, round=2)]

    assert figures(*one, *two) == (4000, 4000, 2000, 2000)


def test_a_call_that_outlives_its_round():
    """A call still running when the next round begins cannot be what that one waited for."""
    long = call("a", 0, 2000, round=1)
    next_round = call("b", 1500, 3000, round=2)

    assert figures(long, next_round) == (3000, 3500, 2000, 0)


def test_running_beside_a_long_one_saves_nothing():
    """What took turns while another call ran anyway could not have made the tools' time less."""
    long = call("background", 0, 1000, number=0)
    quick = [call("x", 100, 300), call("y", 300, 500)]

    assert figures(long, *quick) == (1000, 1400, 1000, 0)


def test_calls_inside_calls_are_part_of_them():
    """A tool that a tool calls is its time, and neither counted nor added to it."""
    outer, inner = call("outer", 0, 1000), call("inner", 200, 800, depth=2)

    assert tool_figures([outer, inner]) == tool_figures([outer])
    assert tool_figures([outer, inner]).calls == 1


def test_no_tools():
    """Without tools there are figures all the same, and all are 0."""
    assert tool_figures([]) == ToolFigures()


@given(calls(), st.randoms())
def test_the_order_of_the_parts_does_not_matter(parts, random):
    """Figures and groups are of the calls, not of the list they come in."""
    shuffled = list(parts)
    random.shuffle(shuffled)

    assert tool_figures(parts) == tool_figures(shuffled)
    assert could_run_together(parts, 0) == could_run_together(shuffled, 0)


@given(calls())
def test_what_holds_for_any_calls(parts):
    """The longest call ≤ the critical path ≤ the wall ≤ the sum; no loss below 0 or beyond."""
    found = tool_figures(parts)
    longest = max((part.duration for part in parts), default=0)

    assert longest <= found.critical_path <= found.wall <= found.serial
    assert 0 <= found.serial_loss <= found.wall - found.critical_path
    assert found.serial == sum(part.duration for part in parts)


@given(calls(rounds=0))
def test_in_one_round_all_above_the_critical_path_is_lost(parts):
    """Loss is exact to the nanosecond: wall less critical path."""
    found = tool_figures(parts)

    assert found.serial_loss == found.wall - found.critical_path


@given(calls())
def test_a_chain_of_everything_loses_nothing(parts):
    """If each call needs all that ended before it, no time is lost to taking turns."""
    ends, at = [], 0
    for part in parts:  # laid end to end
        ends.append(replace(part, start=at, needs=tuple(range(part.number))))
        at += part.duration

    assert tool_figures(ends).serial_loss == 0
    assert tool_figures(ends).critical_path == at


@given(calls(), st.integers(0, 10**9))
def test_when_a_turn_began_does_not_matter(parts, later):
    """Figures are of durations: moved as a whole, they stay."""
    moved = [replace(part, start=part.start + later) for part in parts]

    assert tool_figures(moved) == tool_figures(parts)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8))
def test_coverage_is_counted_tick_by_tick(spans):
    """The union of intervals is what counting each moment gives."""
    parts = [
        Part(kind="tool", name="x", number=n, start=min(span), duration=max(span) - min(span))
        for n, span in enumerate(spans)
    ]
    ticks = {tick for part in parts for tick in range(part.start, part.end)}

    assert tool_figures(parts).wall == len(ticks)


# --- who could have run together -----------------------------------------------------------------


def test_groups_are_named():
    """Calls of a round that are equally far down their chains could have run together."""
    parts = [
        call("search", 0, 1000),
        call("fetch", 1000, 2000, needs=(0,)),
        call("weather", 2000, 3500),
    ]

    [group] = could_run_together(parts)
    assert (group.names, group.loss) == (("search", "weather"), 1000 * MS)


def test_the_costliest_group_comes_first():
    """Groups are in the order of what they cost."""
    parts = [
        call("a", 0, 100, round=1),
        call("b", 100, 200, round=1),
        call("c", 300, 1300, round=2),
        call("d", 1300, 2300, round=2),
    ]

    assert [group.names for group in could_run_together(parts)] == [("c", "d"), ("a", "b")]


def test_a_little_between_two_starts_is_not_worth_words():
    """Calls that were started together start a little apart."""
    parts = [
        Part(kind="tool", name=name, number=number, start=number * 20_000, duration=MS)
        for number, name in enumerate("abc")
    ]

    assert could_run_together(parts) == ()
    assert tool_figures(parts).serial_loss == 40_000


@given(calls())
def test_no_group_holds_two_that_need_each_other(parts):
    """Calls named together can be run together."""
    by_name = {part.name: part for part in parts}
    for group in could_run_together(parts, 0):
        members = [by_name[name] for name in group.names]
        assert len(members) > 1
        assert group.loss >= 0
        for one in members:
            waited_for = [by_name[f"tool{number}"] for number in one.needs]
            assert not [
                other
                for other in waited_for
                if other in members and other.number < one.number and other.end <= one.start
            ]


# --- to JSON and back ----------------------------------------------------------------------------

parts_of_any_kind = st.builds(
    Part,
    kind=st.sampled_from(PART_KINDS),
    name=st.text(max_size=10),
    number=st.integers(0, 1000),
    start=st.integers(0, 10**15),
    duration=st.integers(0, 10**15),
    outcome=st.none() | st.sampled_from(["success", "error"]),
    depth=st.integers(1, 9),
)


@given(parts_of_any_kind | calls().filter(bool).map(lambda found: found[-1]))
def test_a_part_comes_back_as_it_was(part):
    """Nothing is lost on the way to JSON, not even a nanosecond."""
    assert read_part(flat_part(part)) == part


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "meeting"},
        {"name": 5},
        {"number": -1},
        {"number": True},
        {"start_s": "soon"},
        {"duration_s": 1e300},
        {"duration_s": -1},
        {"needs": ["first"]},
        {"outcome": 3},
    ],
)
def test_what_is_no_part_is_refused(wrong):
    """What comes from a file may be anything; it must not become a part."""
    with pytest.raises((TypeError, ValueError)):
        read_part({**flat_part(call("a", 0, 1)), **wrong})
