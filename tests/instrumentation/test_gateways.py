"""Gateways' self times are read from their own headers, and nothing is invented."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.instrumentation.headers.gateway_time import Hop, hops
from llmtrace.instrumentation.headers.server_timing import Entry, entries

MS = 1_000_000

names = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)
texts = st.text(st.sampled_from('abc ,;="\\'), max_size=12)


def quoted(text: str) -> str:
    """Write a text as a quoted string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def reported_hops(value: str) -> list[Hop]:
    """Return what a `Server-Timing` header reports of gateways."""
    return list(hops({"server-timing": value}, tuple(entries(value))))


# --- the header ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("gateway;dur=12.5", [("gateway", 12_500_000, None)]),
        ("cache, gw ; desc=x ; DUR=.5", [("cache", None, None), ("gw", 500_000, "x")]),
        ('Queue;dur="3"', [("queue", 3 * MS, None)]),
        ("db;dur=1;dur=2", [("db", MS, None)]),
        ("db;dur=1e999;dur=2", [("db", None, None)]),
        ("a;dur=1.5e3, b;dur=2.", [("a", 1500 * MS, None), ("b", 2 * MS, None)]),
        ("a;dur=0", [("a", 0, None)]),
        ("a;dur=0051", [("a", 51 * MS, None)]),
        ('a;desc="x, queue;dur=99";dur=5', [("a", 5 * MS, "x, queue;dur=99")]),
        ('a;desc="q\\"; dur=9";dur=5', [("a", 5 * MS, 'q"; dur=9')]),
        ('a;desc="";dur=5', [("a", 5 * MS, "")]),
        ("a;dur=-5, b;dur=nan, c;dur=", [("a", None, None), ("b", None, None), ("c", None, None)]),
        ("a;dur=86400000", [("a", None, None)]),
        ("a;dur=5ms, b;dur=0x10, c;dur=1_000", [(name, None, None) for name in "abc"]),
        ('a;dur=12 , b;dur="7" ;desc=x', [("a", 12 * MS, None), ("b", 7 * MS, "x")]),
        ("a b;dur=5, ;dur=5, ;a;dur=5, ;, ,", []),
        ('"a;dur=5, b;dur=6', []),
        ("", []),
    ],
)
def test_a_server_timing_header(value, expected):
    """Names, durations and descriptions are read; what is malformed is skipped."""
    assert list(entries(value)) == [Entry(*entry) for entry in expected]


@given(st.dictionaries(names, st.tuples(st.integers(0, 10**6), texts), max_size=8))
def test_any_well_formed_header_is_read(given_entries):
    """Durations and descriptions come back whatever the descriptions hold."""
    header = ", ".join(
        f"{name};desc={quoted(text)};dur={ms}" for name, (ms, text) in given_entries.items()
    )

    assert list(entries(header)) == [
        Entry(name, ms * MS, text) for name, (ms, text) in given_entries.items()
    ]


@given(st.text() | st.text(st.sampled_from('ab;,= "\\durescg.5-'), max_size=60))
def test_any_text_is_read_within_bounds(value):
    """Nothing a server sends raises, or yields what no request can last."""
    for name, ns, *_ in entries(value):
        assert name == name.lower()
        assert ns is None or 0 <= ns <= 86_400_000 * MS
    for hop in reported_hops(value):
        assert hop.ns is None or hop.ns >= 0
        assert hop.name is None or len(hop.name) <= 64


def test_a_long_header_is_read_in_part():
    """Of a header, 32 entries and 4 KiB are looked at."""
    assert len(list(entries(",".join(["a;dur=1"] * 100)))) == 32
    assert list(entries(" " * 4096 + "a;dur=1")) == []


# --- gateways -----------------------------------------------------------------------------------


def test_a_gateway_may_say_what_it_is_called():
    """A description that is one short word names it; a sentence does not."""
    assert reported_hops('gateway;dur=1;desc=edge-1, gw;dur=2;desc="the old one"') == [
        Hop("edge-1", MS),
        Hop(None, 2 * MS),
    ]


INNER = "gateway-total;dur=30, gateway-upstream;dur=25"
UPSTREAM_ONLY = "gateway-total;dur=30, gateway-upstream;dur="


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        # nginx: 0.302 s in all, 0.151 s of it the upstream's.
        ("gateway-total;dur=0302, gateway-upstream;dur=0151", [151]),
        # Cut to milliseconds, the part may seem longer than the whole.
        ("gateway-total;dur=50, gateway-upstream;dur=51", [0]),
        # One behind the other: each total goes with the upstream that follows it.
        (f"{INNER}, gateway-total;dur=90, gateway-upstream;dur=40", [5, 50]),
        # No upstream answered it, or it did not say: unknown, and not another's total.
        (f"{UPSTREAM_ONLY}, gateway-total;dur=90, gateway-upstream;dur=40", [None, 50]),
        ("gateway-upstream;dur=40", [None]),
        ("gateway-total;dur=40", []),
        ("gateway-total;dur=9, gateway-upstream;dur=4, gateway-upstream;dur=3", [5, None]),
    ],
)
def test_a_gateway_that_cannot_subtract(value, expected):
    """Total and upstream make the gateway's own time."""
    assert [hop.ns for hop in reported_hops(value)] == [
        None if ms is None else ms * MS for ms in expected
    ]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"x-litellm-overhead-duration-ms": "7.5"}, [Hop("litellm", 7_500_000)]),
        ({"x-litellm-version": "1.106.2"}, [Hop("litellm")]),
        (
            {"x-litellm-version": "1.106.2", "x-litellm-overhead-duration-ms": "0"},
            [Hop("litellm", 0)],
        ),
        *(
            ({"x-litellm-overhead-duration-ms": text}, [Hop("litellm")])
            for text in ("None", "-3", "nan", "")
        ),
        (
            {"x-kong-proxy-latency": "3", "x-kong-upstream-latency": "250"},
            [Hop("kong", 3 * MS)],
        ),
        # Kong answered itself: what it took is not reported_hops apart from an upstream's.
        ({"x-kong-response-latency": "3"}, []),
        # The upstream's time is not a gateway's self time.
        ({"x-envoy-upstream-service-time": "250"}, [Hop("envoy")]),
        ({"server": "envoy"}, [Hop("envoy")]),
        ({"server": "istio-envoy"}, [Hop("envoy")]),
        ({"server": "nginx/1.22.1"}, [Hop("nginx")]),
        ({"server": "openresty/1.27"}, [Hop("nginx")]),
        ({"server": "nginxish"}, []),
        ({"server": "uvicorn"}, []),
        ({}, []),
    ],
)
def test_what_gateways_tell_in_headers_of_their_own(headers, expected):
    """A gateway is named where it shows, and timed where it reports."""
    assert list(hops(headers)) == expected
