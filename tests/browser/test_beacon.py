"""Can anybody's bytes be read as a beacon, and nothing but sense come out?"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.browser import Beacon, read_beacon
from llmtrace.browser.beacon import MAX_BYTES
from llmtrace.core.browser_timing import IN_BEACON, IN_JSON, ON_WIRE, Browser, flatten, name_of
from llmtrace.core.errors import DataError
from llmtrace.semconv.attributes import BROWSER
from tests.strategies import browsers, hexes

IDS = {"trace_id": "1" * 32, "span_id": "2" * 16}
DAY_MS = 86_400_000

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=80)
    | st.sampled_from([10**400, -1, 0.5, "fetch", "success", "1" * 32, "2" * 16, DAY_MS + 1]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
NAMES = [name_of(field.name, IN_BEACON) for field in fields(Browser)]


def beacon(**report: Any) -> bytes:
    """Make the body of a beacon that is right but for what is given."""
    return json.dumps({**IDS, "e2e_ms": 1500, **report}).encode()


def test_a_beacon_is_read():
    """Milliseconds become nanoseconds, and what is not reported stays unknown."""
    read = read_beacon(beacon(ttft_ms=300.25, chunks=7, outcome="success", age_ms=40))

    assert read == Beacon(
        **IDS,
        browser=Browser(e2e_ns=1_500_000_000, ttft_ns=300_250_000, chunks=7, outcome="success"),
        age_ns=40_000_000,
    )


@given(browsers, hexes(16), hexes(8))
def test_what_a_page_can_tell_is_read(browser, trace_id, span_id):
    """Every figure comes through, to the microsecond that the script rounds to."""
    rounded = replace(
        browser,
        **{
            f.name: value // 1000 * 1000
            for f in fields(Browser)
            if f.name.endswith("_ns") and (value := getattr(browser, f.name)) is not None
        },
    )
    body = json.dumps(
        {"trace_id": trace_id, "span_id": span_id, **flatten(rounded, IN_BEACON)}
    ).encode()

    assert read_beacon(body) == Beacon(trace_id=trace_id, span_id=span_id, browser=rounded)


def test_unknown_names_are_ignored():
    """A later script may report more; and only the server knows what the server measured."""
    more = {"v": 9, "colour": [[{"deep": None}]], "app_e2e_ms": 1, "inconsistent": "all"}

    assert read_beacon(beacon(**more)) == read_beacon(beacon())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff",
        b'{"e2e_ms": NaN}',
        b"[" * MAX_BYTES,
        b'{"a":' * 700,
        b"1" * MAX_BYTES,
        b" " * (MAX_BYTES + 1),
        beacon(e2e_ms=None),
        beacon(e2e_ms=-1),
        beacon(e2e_ms=True),
        beacon(e2e_ms="1500"),
        beacon(e2e_ms=DAY_MS + 1),
        beacon(e2e_ms=10**400),
        b'{"e2e_ms": 1e999}',
        beacon(ttft_ms=[1]),
        beacon(chunks=1.5),
        beacon(chunks=2**60),
        beacon(trace_id="0" * 32),
        beacon(trace_id="1" * 31),
        beacon(trace_id=["1" * 32]),
        beacon(span_id="G" * 16),
        beacon(trace_id="1" * 32 + "\n"),
        beacon(kind="carrier pigeon"),
        beacon(kind=7),
        beacon(outcome="perfect"),
        beacon(error_type="<script>"),
        beacon(error_type="x" * 65),
        beacon(protocol={}),
        beacon(age_ms="late"),
        beacon(age_ms=-5),
    ],
)
def test_what_is_no_beacon_is_refused(body):
    """The refusal says what is wrong, and repeats nothing of what was sent."""
    with pytest.raises(DataError) as refused:
        read_beacon(body)

    assert len(str(refused.value)) < 200
    assert "pigeon" not in str(refused.value)
    assert "script>" not in str(refused.value)


@given(st.binary(max_size=2 * MAX_BYTES))
def test_no_bytes_raise_anything_else(body):
    """Arbitrary bytes are read or rejected."""
    with suppress(DataError):
        read_beacon(body)


@given(st.dictionaries(st.sampled_from([*NAMES, *IDS, "age_ms", "v", "x"]), anything))
def test_any_report_makes_sense_or_is_rejected(report):
    """Any JSON under any name is rejected, or comes out within bounds."""
    try:
        read = read_beacon(json.dumps({**IDS, **report}).encode())
    except DataError:
        return

    for field in fields(Browser):
        value = getattr(read.browser, field.name)
        if isinstance(value, str):
            assert len(value) <= 64
        elif value is not None:
            assert isinstance(value, int)
            assert 0 <= value <= max(DAY_MS * 10**6, 2**53)
    assert (len(read.trace_id), len(read.span_id)) == (32, 16)


def test_every_figure_has_a_name_of_its_own_and_is_documented():
    """No two figures share a name anywhere, and the table has all of them."""
    names = [field.name for field in fields(Browser)]

    for where in (IN_BEACON, IN_JSON, ON_WIRE):
        assert len({name_of(name, where) for name in names}) == len(names)
    assert [line.field for line in BROWSER] == [f"browser.{name}" for name in names]
