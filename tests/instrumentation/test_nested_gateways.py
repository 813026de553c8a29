"""The time of gateways one behind the other counts once, however often it is reported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.core.recording import Recording
from llmtrace.core.stages import EngineFigures, Reported
from llmtrace.instrumentation.headers.propagation import commented, incoming
from llmtrace.instrumentation.headers.server_timing import Entry, entries, write

MS = 1_000_000
A, B = 'gateway;dur=10;desc="a";hop=aa', 'gateway;dur=3;desc="b";hop=bb'


@pytest.fixture
def recording() -> Recording:
    """A recording."""
    return Recording(lambda _, __: None, {})


def gateway_ms(recording: Recording) -> float | None:
    """Return the time of all gateways."""
    return None if recording.gateway is None else recording.gateway.ns / MS


texts = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
reported_entry = st.builds(
    Entry,
    st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True),
    st.none() | st.integers(0, 86_399 * 10**9),
    st.none() | texts,
    st.none() | st.from_regex(r"[0-9a-f]{1,16}(\.[0-9]){0,2}", fullmatch=True),
)


@given(st.lists(reported_entry, max_size=8))
def test_what_is_written_is_read(some):
    """Names, durations to the nanosecond, descriptions and ids come back as they were."""
    assert list(entries(write(some))) == some


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (f"{A}, {B}", 13),
        (f"{A}, {B}, {B}", 13),
        (f"{A}, gateway;dur=4;desc=b;hop=bb, {B}", 14),
        (f"{A}, gateway;dur=2, gw;dur=1", 13),
        ('gateway;desc="a";hop=aa', None),
        (f'gateway;desc="a";hop=aa, {B}', 3),
        ("gateway;dur=1;hop=?, gateway;dur=2;hop=?", 3),
    ],
)
def test_headers(recording, header, expected):
    """Each id counts once, as the gateway in front reports it; no id is one more gateway."""
    incoming(recording, {"server-timing": header})

    assert gateway_ms(recording) == expected


def test_who_may_tell_more_is_known_from_the_headers(recording):
    """Only a gateway that is llmtrace writes comments, so that others' responses cost nothing."""
    assert incoming(recording, {"server-timing": A}) is True
    assert incoming(recording, {"server-timing": "gateway;dur=1"}) is False
    assert incoming(recording, {"server": "uvicorn"}) is False


@pytest.mark.parametrize("name", ["litellm", "kong"])
def test_a_header_passed_on_together_with_what_it_says(recording, name):
    """What a front gateway has reported of the one behind is not read again from its header."""
    theirs = {"x-litellm-overhead-duration-ms": "7", "x-kong-proxy-latency": "7"}
    incoming(
        recording,
        {"server-timing": f"{A}, gateway;dur=7;desc={name};hop=aa.0.0"}
        | {header: ms for header, ms in theirs.items() if name in header},
    )

    assert gateway_ms(recording) == 17


def test_a_gateway_of_its_own_kind_in_front(recording):
    """LiteLLM before one of ours is one more gateway."""
    incoming(recording, {"server-timing": A, "x-litellm-overhead-duration-ms": "7"})

    assert gateway_ms(recording) == 17
    assert recording.info["gateway"] == "a,litellm"


def test_a_comment_takes_the_place_of_the_header(recording):
    """What is known once content has been sent is more than was known before."""
    incoming(recording, {"server-timing": f"{A}, {B}"})
    commented(recording, 'gateway;dur=12;desc="a";hop=aa')

    assert gateway_ms(recording) == 15


def test_comments_of_two_gateways(recording):
    """One that passes on the other's bytes passes its comments on, too."""
    incoming(recording, {"server-timing": A})
    commented(recording, 'gateway;dur=4;desc="b";hop=bb')
    commented(recording, 'gateway;dur=11;desc="a";hop=aa, gateway;dur=4;desc="b";hop=bb')

    assert gateway_ms(recording) == 15


def test_a_gateway_that_cannot_tell_after_all(recording):
    """A figure is taken back that turns out not to be one."""
    incoming(recording, {"server-timing": f"{A}, {B}"})
    commented(recording, 'gateway;desc="a";hop=aa')

    assert gateway_ms(recording) == 3


def test_a_comment_says_whether_another_may_follow(recording):
    """So that no bytes are searched in vain."""
    assert commented(recording, f"{A}, more") is True
    assert commented(recording, A) is False


def test_the_engine_as_the_gateway_in_front_tells_it(recording):
    """Its sum over several calls holds, not what one of them said."""
    incoming(recording, {"server-timing": f"{A}, queue;dur=5, decode;dur=50, queue;dur=2"})

    assert recording.engine == [
        EngineFigures(
            queue=Reported(5 * MS, "server_timing"), decode=Reported(50 * MS, "server_timing")
        )
    ]


def test_gateways_are_kept_within_bounds(recording):
    """No number of comments fills the memory."""
    for number in range(1000):
        commented(recording, f"gateway;dur=1;hop={number}")

    assert len(recording.hops) == 32


def test_a_cache_hit(recording):
    """A cache that answered shows on the row."""
    incoming(recording, {"server-timing": f"{A}, cache;desc=hit"})

    assert recording.info["cache_hit"] is True


def test_a_cache_hit_in_a_comment(recording):
    """A gateway may have learnt of it late."""
    incoming(recording, {"server-timing": A})
    assert "cache_hit" not in recording.info
    commented(recording, f"{A}, cache;desc=hit")

    assert recording.info["cache_hit"] is True
