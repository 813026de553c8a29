"""Are questions understood, and those that mean nothing refused in words?"""

from __future__ import annotations

import json

import pytest

from llmtrace_collector.serve import query_params
from llmtrace_collector.serve.events import read_events
from llmtrace_collector.serve.query_params import Between, QueryParamError
from llmtrace_collector.store import Event

NOW = 1_795_000_000.0
S = 1_000_000_000


def test_times_of_every_kind():
    """Unix seconds, ISO 8601, and how long ago; the last hour by default."""
    end = round(NOW * S)

    assert query_params.between({}, NOW) == Between(end - 3600 * S, end)
    assert query_params.between({"start": "-15m"}, NOW) == Between(end - 900 * S, end)
    assert query_params.between({"start": "100", "end": "200.5"}, NOW) == Between(
        100 * S, 200_500_000_000
    )
    iso = query_params.between(
        {"start": "2026-11-21T14:00:00+00:00", "end": "2026-11-21T15:00Z"}, NOW
    )
    assert iso.end_ns - iso.start_ns == 3600 * S
    assert query_params.between({"end": "-1h"}, NOW) == Between(end - 7200 * S, end - 3600 * S)
    assert query_params.moment(None, "at", NOW) == end


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"start": "soon"}, "start: 'soon' is not a time: write unix seconds"),
        ({"start": "nan"}, "is not a time"),
        ({"start": "1e300"}, "is not a time"),
        ({"start": "-99999999999d"}, "is not a time"),
        ({"start": "0001-01-01"}, "is not a time"),
        ({"start": "200", "end": "100"}, "start is not before end"),
        ({"start": "0"}, "more than 400 days"),
    ],
)
def test_times_that_are_none(given, words):
    """They say what would do."""
    with pytest.raises(QueryParamError, match=words):
        query_params.between(given, NOW)


def test_a_parameter_that_means_nothing():
    """A misspelt filter would answer with everything."""
    with pytest.raises(QueryParamError, match="no such parameter: modle; there are end, model"):
        query_params.known({"modle": "x"}, frozenset({"model", "end"}))


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", "", "11", "²", "9" * 30, "0" * 18 + "99"])
def test_numbers_that_are_none(text):
    """From 1 to the most."""
    with pytest.raises(QueryParamError, match=r"limit: .* is not a whole number from 1 to 10"):
        query_params.number({"limit": text}, "limit", 5, 10)

    assert query_params.number({"limit": "10"}, "limit", 5, 10) == 10
    assert query_params.number({}, "limit", 5, 10) == 5


def test_ids_and_places():
    """A trace id, and where a page of rows ended."""
    trace, span = "0123456789ABCDEF" * 2, "0123456789abcdef"
    after = f"17:{trace.lower()}:{span}"

    assert query_params.trace_id(trace) == trace.lower()
    assert query_params.cursor(after) == (17, trace.lower(), span)
    assert query_params.cursor(None) is None
    for wrong in ("", "abc", "x" * 32, trace + "0"):
        with pytest.raises(QueryParamError):
            query_params.trace_id(wrong)
    with pytest.raises(QueryParamError, match="after: write start:trace_id:span_id"):
        query_params.cursor("17:")


def test_filters_are_short():
    """Longer than any value there is."""
    assert query_params.texts({"model": "m", "other": "x"}, frozenset({"model"})) == {"model": "m"}
    with pytest.raises(QueryParamError, match="model: longer than 256"):
        query_params.texts({"model": "m" * 257}, frozenset({"model"}))


def test_events_one_or_several():
    """With their own time, or now."""
    one = {"kind": "deploy", "text": "v2.3"}
    two = {**one, "t": 100.5, "instance": "a:1", "labels": {"service": "shop"}}

    assert read_events(json.dumps(one).encode(), 7) == [Event(7, "deploy", "v2.3")]
    assert read_events(json.dumps([one, two]).encode(), 7)[1] == Event(
        100_500_000_000, "deploy", "v2.3", "a:1", {"service": "shop"}
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "the body is not JSON"),
        (b"\xff", "the body is not JSON"),
        (b"[" * 5_000, "the body is not JSON"),
        (b"[]", "send 1 to 1000 events"),
        (json.dumps([{}] * 1_001).encode(), "send 1 to 1000 events"),
        (b"[1]", "event 0: must be an object with some of instance, kind"),
        (b'{"kind": "a", "text": "b", "x": 1}', "event 0: must be an object"),
        (b'{"kind": "", "text": "b"}', "event 0: kind must be a text of 1 to 200"),
        (b'{"kind": "a"}', "event 0: text must be a text of 1 to 2000"),
        (b'{"kind": "a", "text": "b", "t": true}', "t must be unix seconds"),
        (b'{"kind": "a", "text": "b", "t": 1e300}', "t must be unix seconds"),
        (b'{"kind": "a", "text": "b", "t": NaN}', "t must be unix seconds"),
        (b'{"kind": "a", "text": "b", "labels": [1]}', "labels must be an object"),
        (b'{"kind": "a", "text": "b", "labels": {"c": 1}}', "labels.c must be a text"),
    ],
)
def test_events_that_are_none(body, words):
    """Which one, and why."""
    with pytest.raises(QueryParamError, match=words):
        read_events(body, 7)
