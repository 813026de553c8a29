"""The stage of a request that is unusual for such a request, and what the engine did meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.core.stages import Network, Reported, Timeline
from llmtrace.dataset.explain_request import HOUR_NS, MIN_PEERS, as_json, as_lines, explain
from llmtrace.testing import make_row
from tests.strategies import requests

MS = 1_000_000
NS = 1_000 * MS
START = 1_790_000_000 * NS
COMMON = {"model": "tiny", "route": "/chat", "prompt_tokens": 100, "output_tokens": 50}


def request(queue_ms=10, decode_ms=200, **fields):
    """Make a request whose stages are all known; what its queue takes makes it longer."""
    timeline = Timeline(
        e2e=(100 + queue_ms + decode_ms) * MS,
        ttft=(100 + queue_ms) * MS,
        network=Network(send=MS, rtt=MS),
        gateway=Reported(12 * MS, "server_timing"),
        queue=Reported(queue_ms * MS, "engine_inband"),
        prefill=Reported(50 * MS, "engine_inband"),
    )
    return make_row(timeline=timeline, **{"start": START, **COMMON, **fields})


def peers(count=100, **fields):
    """Make requests of the hour before, whose queue took 1 ms, 2 ms, and so on."""
    return [
        request(number, **{"start": START - number * NS, **fields})
        for number in range(1, count + 1)
    ]


def sample(signal, ago_s, value, instance="engine:8000"):
    """Make a sample as the collector's API has it, so long before the request began."""
    return {"t": START / NS - ago_s, "instance": instance, "signal": signal, "value": value}


@pytest.fixture
def late():
    """Return a request that waited 300 ms in the queue."""
    return request(300)


def test_the_unusual_stage_is_named(late):
    """By how much it is over the median of its peers, and how many of them took less."""
    explanation = explain(late, peers())
    unusual = explanation.unusual

    assert unusual is not None
    assert (unusual.name, unusual.took_s, unusual.median_s) == ("queue", 0.3, 0.0505)
    assert unusual.p95_s == 0.095  # of 1 ms to 100 ms: by nearest rank, as everywhere
    assert (unusual.rank, unusual.peers) == (1.0, 100)
    assert "Unusual: queue, 300.0 ms where 50.5 ms is usual: 249.5 ms more" in as_lines(
        explanation
    )


def test_a_request_like_the_others_is_not_unusual():
    """Nothing stands out of the middle of its peers."""
    explanation = explain(request(50), peers())

    assert explanation.unusual is None
    assert as_lines(explanation)[1].startswith("Nothing unusual")


def test_a_rare_stage_of_no_effect_is_not_unusual():
    """The slowest queue of all is none of a request's trouble if it is 2 % of it."""
    explanation = explain(request(130, 9_000), [request(10, 9_000, start=START - NS)] * 50)
    queue = next(one for one in explanation.compared if one.name == "queue")

    assert (queue.rank, queue.excess_s) == (1.0, pytest.approx(0.12))
    assert explanation.unusual is None


def test_too_few_peers_say_nothing(late):
    """What is usual is not known from a handful."""
    explanation = explain(late, peers(MIN_PEERS - 1))

    assert explanation.unusual is None
    assert as_lines(explanation)[1] == (
        "Cannot say what is usual: 19 such requests in the hour before, and 20 are needed"
    )


@pytest.mark.parametrize(
    "other",
    [
        {"model": "large"},
        {"route": "/other"},
        {"operation": "embeddings"},
        {"outcome": "error"},
        {"start": START + NS},
        {"start": START - HOUR_NS - 1},
    ],
)
def test_only_the_same_work_of_the_hour_before_counts(late, other):
    """Another model, route or operation, a failure, and another time are no peers."""
    assert explain(late, [replace(row, **other) for row in peers()]).peers == 0


def test_peers_are_of_the_same_size_where_there_are_enough(late):
    """A prompt four times as long is other work, unless there is nothing else to compare with."""
    long = peers(prompt_tokens=400)

    assert explain(late, [*peers(30), *long]).peers == 30
    assert explain(late, [*peers(10), *long]).peers == 110


def test_a_long_response_is_not_an_unusual_decode():
    """Decode is compared for as many tokens, and that few are of the same size is said."""
    usual = peers(30)
    long = request(10, 10 * 200, output_tokens=500)
    explanation = explain(long, [*usual, replace(usual[0], output_tokens=None)])
    decode = next(one for one in explanation.compared if one.name == "decode")

    assert explanation.unusual is None
    assert (decode.median_s, decode.peers) == (pytest.approx(2.0), 30)
    lines = as_lines(explanation)
    assert lines[0].endswith("  prompt tokens 100  output tokens 500")
    assert any("(0 of them known to be of its size; decode for as many" in line for line in lines)

    slow = explain(request(10, 20 * 200, output_tokens=500), usual)
    assert slow.unusual is not None
    assert slow.unusual.name == "decode"


def test_what_the_engine_did(late):
    """Its signals during the request, beside their median in the hour before."""
    late = replace(late, replica="engine:8000")
    samples = [
        *(sample("waiting", ago, 0.0) for ago in range(60, 600, 5)),
        sample("waiting", 2, 14.0),
        sample("kv_usage", 30, 0.61),
        sample("kv_usage", 0, 0.97),
        sample("preemptions", 5, 100.0),
        sample("preemptions", -2, 103.0),
        sample("waiting", 2, 99.0, "engine:8001"),
    ]
    lines = as_lines(explain(late, peers(), samples))

    assert (
        "Engine engine:8000: waiting 14 (usually 0), KV cache in use 97% (usually 61%), "
        "preemptions 3"
    ) in lines
    assert len(lines) <= 10


def test_an_engine_without_samples_is_not_guessed(late):
    """No sample is no figure."""
    assert "Engine: no samples of those seconds" in as_lines(explain(late, peers()))


@given(requests, st.lists(requests, max_size=5))
def test_any_request_can_be_explained(row, others):
    """Ten lines or so of whatever there is, and JSON of the same."""
    explanation = explain(row, others)

    assert len(as_lines(explanation)) <= 12
    assert as_json(explanation)["peers"] == explanation.peers
    assert all(0 <= one.rank <= 1 for one in explanation.compared)
