"""Are the join keys sent, and is what headers tell of a request read within bounds?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.record import Recording
from llmtrace.runtime import SpanIdentity
from llmtrace.stages import EngineFigures, Reported
from llmtrace.wrappers.headers import incoming, outgoing, server_timing

MS = 1_000_000
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

names = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)
quoted = st.text(st.sampled_from('abc ,;="\\'), max_size=12).map(
    lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
)


@pytest.fixture
def recording() -> Recording:
    """A recording with ids."""
    made = Recording(lambda _, __: None, {"request_id": f"lt-{SPAN}"})
    made.span = SpanIdentity(TRACE, SPAN, None, sampled=True)
    return made


# --- out ----------------------------------------------------------------------------------------


def test_both_join_keys_are_sent(recording):
    """A request carries its trace and its id, unless its caller said otherwise."""
    assert outgoing(recording, {"Accept": "*/*"}) == {
        "traceparent": f"00-{TRACE}-{SPAN}-01",
        "X-Request-Id": f"lt-{SPAN}",
    }


def test_what_is_not_sampled_says_so(recording):
    """The server is told that nobody keeps this trace."""
    recording.span = SpanIdentity(TRACE, SPAN, None, sampled=False)

    assert outgoing(recording, {})["traceparent"] == f"00-{TRACE}-{SPAN}-00"


def test_the_callers_own_keys_stay(recording):
    """A caller's `traceparent` stays; its `x-request-id` becomes the row's id."""
    given = {"TraceParent": "00-aa-bb-01", "X-REQUEST-ID": "order-7"}

    assert outgoing(recording, given) == {}
    assert recording.info["request_id"] == "order-7"


@pytest.mark.parametrize("value", ["", None, object()])
def test_a_caller_without_an_id_gets_ours(recording, value):
    """An empty id, or an SDK's sign for "leave it out", is none."""
    assert outgoing(recording, {"x-request-id": value})["X-Request-Id"] == f"lt-{SPAN}"


# --- in -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("gateway;dur=12.5", [("gateway", 12_500_000)]),
        ("cache, gw ; desc=x ; DUR=.5", [("gw", 500_000)]),
        ('Queue;dur="3"', [("queue", 3 * MS)]),
        ("db;dur=1;dur=2", [("db", MS)]),
        ("a;dur=1.5e3, b;dur=2.", [("a", 1500 * MS), ("b", 2 * MS)]),
        ("a;dur=0", [("a", 0)]),
        ('a;desc="x, queue;dur=99";dur=5', [("a", 5 * MS)]),
        ('a;desc="q\\"; dur=9";dur=5', [("a", 5 * MS)]),
        ("a;dur=-5, b;dur=nan, c;dur=, d;dur, e", []),
        ("a;dur=86400000, b;dur=1e999", []),
        ("a b;dur=5, ;dur=5, ;a;dur=5, ;, ,", []),
        ('"a;dur=5, b;dur=6', []),
        ("", []),
    ],
)
def test_a_server_timing_header(value, expected):
    """Names and durations are read; what has none or is malformed is skipped."""
    assert list(server_timing(value)) == expected


@given(st.dictionaries(names, st.tuples(st.integers(0, 10**6), quoted), max_size=8))
def test_any_well_formed_header_is_read(entries):
    """Durations come back whatever the descriptions beside them hold."""
    header = ", ".join(f"{name};desc={desc};dur={ms}" for name, (ms, desc) in entries.items())

    assert dict(server_timing(header)) == {name: ms * MS for name, (ms, _) in entries.items()}


@given(st.text() | st.text(st.sampled_from('ab;,= "\\dur.5-'), max_size=60))
def test_any_text_is_read_within_bounds(value):
    """Nothing a server sends raises, or yields what no request can last."""
    for name, ns in server_timing(value):
        assert name == name.lower()
        assert 0 <= ns <= 86_400_000 * MS


def test_a_long_header_is_read_in_part():
    """Of a header, 32 entries and 4 KiB are looked at."""
    assert len(list(server_timing(",".join(["a;dur=1"] * 100)))) == 32
    assert list(server_timing(" " * 4096 + "a;dur=1")) == []


def test_a_gateways_time(recording):
    """A gateway tells its own time by either name."""
    for name in ("gateway", "gw"):
        incoming(recording, {"server-timing": f"{name};dur=12"})

        assert recording.gateway == Reported(12 * MS, "server_timing")


@pytest.mark.parametrize(
    ("header", "queue", "prefill"), [("queue;dur=3", 3, None), ("prefill;dur=4", None, 4)]
)
def test_a_servers_queue_and_prefill(recording, header, queue, prefill):
    """What a server tells of its engine is kept, and what it does not tell stays unknown."""
    incoming(recording, {"server-timing": header})

    assert recording.engine == [
        EngineFigures(
            queue=None if queue is None else Reported(queue * MS, "server_timing"),
            prefill=None if prefill is None else Reported(prefill * MS, "server_timing"),
        )
    ]


def test_headers_that_tell_nothing(recording):
    """Other entries say nothing of queue, prefill or the gateway."""
    incoming(recording, {"server-timing": "db;dur=5", "date": "now"})

    assert (recording.gateway, recording.engine) == (None, [])


def test_litellms_overhead(recording):
    """LiteLLM names itself by its overhead header."""
    incoming(recording, {"x-litellm-overhead-duration-ms": "7.5"})

    assert recording.gateway == Reported(7_500_000, "server_timing")
    assert recording.info["gateway"] == "litellm"


@pytest.mark.parametrize("overhead", ["None", "-3", "nan", ""])
def test_litellm_without_a_figure(recording, overhead):
    """A header without a duration names the gateway all the same."""
    incoming(recording, {"x-litellm-overhead-duration-ms": overhead})

    assert (recording.gateway, recording.info["gateway"]) == (None, "litellm")


def test_a_gateways_own_figure_wins(recording):
    """What the standard header says is not replaced by LiteLLM's own."""
    incoming(recording, {"server-timing": "gw;dur=9", "x-litellm-overhead-duration-ms": "7"})

    assert recording.gateway == Reported(9 * MS, "server_timing")


@pytest.mark.parametrize(
    ("headers", "bare"),
    [
        ({"content-type": "text/event-stream"}, True),
        ({"via": "1.1 proxy"}, False),
        ({"server-timing": "gw;dur=1"}, False),
        ({"x-envoy-upstream-service-time": "5"}, False),
    ],
)
def test_a_proxy_shows_in_the_headers(recording, headers, bare):
    """Behind anything that adds headers, their arrival bounds nothing of the engine."""
    incoming(recording, headers)

    assert recording.bare is bare
