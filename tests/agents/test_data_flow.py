"""Whether a call's arguments contain an earlier call's result."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from dataclasses import dataclass
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.agents.data_flow import MAX_CHARACTERS, prints_of


@dataclass
class Page:
    """A result of the application's own."""

    title: str
    size: int = 0


@dataclass(slots=True)
class Slotted:
    """One without a `__dict__`."""

    title: str


class Opaque:
    """One that says nothing of itself."""

    __slots__ = ("__weakref__",)


def shows(result, arguments, *known):
    """Say whether a result shows in arguments, given what earlier calls were given."""
    shared = prints_of(result).seen_in(prints_of(arguments))
    for one in known:
        shared -= prints_of(one).knows(shared)
    return bool(shared)


PAGE, OPAQUE = Page("A page about tea"), Opaque()
NOW = dt.datetime(2026, 11, 21, 10, 30, tzinfo=dt.UTC)
ID = uuid.UUID(int=7)


@pytest.mark.parametrize(
    ("result", "arguments"),
    [
        pytest.param("a longer answer", ["a longer answer"], id="text passed on"),
        pytest.param("Alan Turing", ["the life of Alan Turing, in brief"], id="text inside text"),
        pytest.param("found in Reykjavik.", ["Reykjavik"], id="a word of it"),
        pytest.param(
            "see https://x.org/abc for more", ["https://x.org/abc"], id="an address of it"
        ),
        pytest.param("it has the id doc-8271", ["fetch doc-8271 now"], id="an id, in a sentence"),
        pytest.param(
            "Once upon a time there was a king who had a cat",
            ["Translate: there was a king who had a cat, they say"],
            id="a run of words",
        ),
        pytest.param({"lat": 52.52, "lon": 13.405}, {"lat": 52.52, "lon": 13.405}, id="a place"),
        pytest.param({"order": 48213}, {"order_id": 48213}, id="a number"),
        pytest.param('{"order": 48213}', {"order_id": 48213}, id="a number in JSON"),
        pytest.param([{"hits": [{"url": "https://x.org"}]}], ("https://x.org",), id="deep inside"),
        pytest.param(
            '[{"url": "https://x.org/1"}]', '{"url": "https://x.org/1"}', id="JSON to JSON"
        ),
        pytest.param(b"some longer bytes", [b"some longer bytes"], id="bytes"),
        pytest.param(PAGE, [PAGE], id="an object"),
        pytest.param(PAGE, ["A page about tea"], id="an object's text"),
        pytest.param(Slotted("A page about tea"), ["A page about tea"], id="a slotted object's"),
        pytest.param(OPAQUE, {"handle": OPAQUE}, id="an object that says nothing"),
        pytest.param(NOW, [NOW], id="a time"),
        pytest.param(ID, [str(ID)], id="an id, as text"),
        pytest.param(Decimal("1234.56"), [Decimal("1234.56")], id="an amount"),
        pytest.param(
            "x " * 100 + "the very end of it",
            ["the very end of it"],
            id="the end of a longer text",
        ),
    ],
)
def test_a_result_shows(result, arguments):
    """Passed on as it is, in part, inside something else, or after JSON."""
    assert shows(result, arguments)


@pytest.mark.parametrize(
    ("result", "arguments"),
    [
        pytest.param("", [""], id="empty"),
        pytest.param(None, [None], id="nothing"),
        pytest.param(True, [True], id="true"),
        pytest.param(0, [0], id="zero"),
        pytest.param(7, [7], id="a small number"),
        pytest.param(2024, [2024], id="a year"),
        pytest.param(0.5, [0.5], id="a share"),
        pytest.param("ok", ["ok"], id="a word of two letters"),
        pytest.param("Paris", ["Paris"], id="a short word"),
        pytest.param({"ok": True, "n": 3}, {"ok": True, "n": 3}, id="trivial pairs"),
        pytest.param([], [[]], id="an empty list"),
        pytest.param("rain in the morning", ["news of today"], id="other texts"),
        pytest.param(
            "The results for today are not available", ["What are the results"], id="common words"
        ),
        pytest.param(Page("A page about tea"), [Page("Another page")], id="other objects"),
        pytest.param(Opaque(), [Opaque()], id="two that say nothing"),
    ],
)
def test_what_two_calls_share_by_chance(result, arguments):
    """Short and trivial values, and what only looks alike, show nothing."""
    assert not shows(result, arguments)


def test_what_was_known_before_shows_nothing():
    """What an earlier call was given was there without its result."""
    result = "3 hotels in Copenhagen: Astoria, Bristol, Continental"

    assert shows(result, {"city": "Copenhagen"})
    assert not shows(result, {"city": "Copenhagen"}, {"query": "hotels in Copenhagen"})
    assert shows(result, {"hotel": "Continental"}, {"query": "hotels in Copenhagen"})


def test_an_object_that_is_gone_shows_nothing():
    """Another object may be made where one was: it is not the same one."""
    seen = prints_of(Opaque())
    again = [Opaque() for _ in range(100)]

    assert not any(seen.seen_in(prints_of(one)) for one in again)


def test_prints_hold_nothing_of_the_value():
    """Only hashes are kept, and references that keep nothing alive."""
    seen = prints_of({"secret": "hunter2 is the password", "at": [Page("A page about tea")]})

    assert "hunter2" not in repr(seen)
    assert all(isinstance(one, int) for one in seen.hashes)
    assert all(reference() is None for reference in seen.objects.values())


def test_a_look_is_bounded():
    """However large, deep or circular a value is, so much is looked at and no more."""
    circular: list[object] = ["the beginning of it"]
    circular.append(circular)
    wide = {str(number): f"text number {number}" for number in range(100_000)}
    deep: object = "the innermost text"
    for _ in range(10_000):
        deep = [deep]
    long = " ".join(f"word{number:06}" for number in range(100_000))

    for value in (circular, wide, deep, long, "[" * 100_000, [long] * 1000):
        assert prints_of(value).size < 10_000
    assert not shows(long, [long[-20:]])
    assert shows(long, [long[: MAX_CHARACTERS // 2][-20:]])
    assert shows(circular, ["the beginning of it"])


def test_an_object_that_misbehaves_costs_nothing_more():
    """Reading attributes runs no code of the application's but properties of dataclasses."""

    class Trap:
        def __eq__(self, other):
            raise AssertionError("compared")

        __hash__ = object.__hash__

        def __str__(self):
            raise AssertionError("shown")

    trap = Trap()
    assert shows(trap, [trap])


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(values)
def test_any_value_can_be_looked_at(value):
    """Nothing that is passed to a tool makes a look at it fail."""
    prints_of(value)


@given(st.text(st.characters(categories=["L", "N"]), min_size=8), values)
def test_a_text_is_found_wherever_it_is_passed(text, beside):
    """A telling text shows in arguments that contain it, and in JSON made of them."""
    assert shows(text, [beside, {"argument": text}])
    assert shows({"field": text}, json.dumps({"argument": text}))


@given(values, values)
def test_what_is_known_is_all_that_is_taken_off(result, arguments):
    """A result that was itself an argument before shows nothing new."""
    assert not shows(result, arguments, arguments)


class Rows(list[int]):
    """Many rows, which count how many of them are read."""

    read = 0

    def __iter__(self):
        for row in range(1_000_000):
            Rows.read += 1
            yield row


class Cells(dict[int, int]):
    """The same of a dictionary."""

    def values(self):
        """Return what no list could hold."""
        return Rows()


@pytest.mark.parametrize("made", [Rows, Cells])
def test_of_a_value_without_end_no_more_is_read_than_is_looked_at(made):
    """A tool that returns a million rows waits for a thousand to be looked at."""
    Rows.read = 0
    prints_of(made())

    assert 1_000 < Rows.read < 2_000


def test_numbers_too_long_to_be_written_are_passed_over():
    """Python writes no number of more than 4,300 digits; what is beside it is looked at."""
    assert shows("a telling text", [10**5_000, "a telling text"])
