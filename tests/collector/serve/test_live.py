"""Is what is shown now what the store counted, held against the budget as rows are?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.budget import DEFAULT, Budget
from llmtrace.stats.quantiles import interval
from llmtrace_collector.config.schema import Address
from llmtrace_collector.scrape.scraper import TargetState
from llmtrace_collector.scrape.targets import Target
from llmtrace_collector.serve.engine_status import engine_lines, gpu_lines
from llmtrace_collector.serve.how_to_send import Places, how_to_send
from llmtrace_collector.serve.live_model import Counted, at_most, lines, problems, verdict
from llmtrace_collector.signals.interval import engine_intervals
from llmtrace_collector.signals.normalise import Normaliser
from llmtrace_collector.signals.profile import builtin_profiles
from tests.collector import pages


def state(url: str, *texts: str) -> TargetState:
    """Return the state of a target that said these pages, one after another."""
    made = TargetState(Target(url), Normaliser(builtin_profiles()))
    for text in texts:
        reading = made.normaliser.read(text)
        made.intervals = engine_intervals(made.reading, reading) if made.reading else ()
        made.reading, made.up = reading, True
        made.pages += 1
    return made


@given(st.integers(1, 400), st.data(), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_a_verdict_from_counts_is_that_from_values(n, data, objective):
    """Knowing how many are within says the same as holding the limit against the interval."""
    within = data.draw(st.integers(0, n))
    bounds = interval([float(place) for place in range(1, n + 1)], objective)
    limit = within + 0.5
    expected = "unclear"
    if bounds.low is not None and bounds.low > limit:
        expected = "over"
    elif bounds.high is not None and bounds.high <= limit:
        expected = "within"

    assert verdict(n, within, objective) == expected


@pytest.mark.parametrize("within", [9_400, 9_450, 9_465, 9_500, 9_535, 9_550, 9_600])
def test_a_verdict_of_very_many(within):
    """Above some thousand the normal distribution stands in, and agrees."""
    bounds = interval([float(place) for place in range(1, 10_001)], 0.95)
    limit = within + 0.5
    expected = "over" if bounds.low > limit else "within" if bounds.high <= limit else "unclear"

    assert verdict(10_000, within, 0.95) == expected


def test_chances_rise_to_one():
    """Of nothing at most -1, of all n always."""
    assert at_most(10, -1, 0.5) == 0
    assert at_most(10, 10, 0.5) == 1
    assert at_most(2, 1, 0.5) == pytest.approx(0.75)


def test_what_has_no_source_is_not_reported():
    """Unknown is `None`, with no verdict; and `unattributed` is there only if there is any."""
    stages, metrics = lines({"e2e": Counted(10, 1e9, 2e9, 10, 1e10)}, DEFAULT)

    assert [line.name for line in stages][-1] == "render"
    assert {(line.known, line.p50_s, line.verdict, line.share) for line in stages} == {
        (0, None, None, None)
    }
    assert {line.name: line.p50_s for line in metrics} == {"ttft": None, "tpot": None, "e2e": 1.0}


def test_shares_are_of_the_whole_wait():
    """Stages that fill the wait fill the column."""
    stages, metrics = lines(
        {
            "queue": Counted(4, 1e9, 1e9, 0, 1e9),
            "decode": Counted(4, 3e9, 3e9, 0, 3e9),
            "e2e": Counted(4, 4e9, 4e9, 4, 4e9),
        },
        Budget(total_s=5.0),
    )

    assert {line.name: line.share for line in stages if line.known} == {
        "queue": 0.25, "decode": 0.75,
    }  # fmt: skip
    assert {line.share for line in metrics} == {None}
    assert metrics[-1].limit_s == 5.0


def test_engines_of_every_kind():
    """An engine's replicas each, a gateway, one that is down, one not read yet, none known."""
    text = pages.scrape("vllm-0.32-metrics-dp2.txt")
    down = state("http://d:1/metrics")
    down.up, down.problem = False, "http://d:1/metrics: Connection refused"
    found = engine_lines(
        [
            state("http://a:1/metrics", text),
            state("http://b:1/metrics", pages.LITELLM),
            down,
            state("http://c:1/metrics"),
            state("http://e:1/metrics", "nothing_known 1\n"),
            state("http://f:1/metrics", pages.DCGM),
        ]
    )

    assert found[0].instance == "d:1"
    assert found[0].problem == "Connection refused"
    of_a = [line for line in found if line.instance == "a:1"]
    assert [(line.engine, line.replica) for line in of_a] == [("vllm", "0"), ("vllm", "1")]
    assert all(line.kv_usage is not None and line.running is not None for line in of_a)
    assert [(line.engine, line.up) for line in found if line.instance == "b:1"] == [
        ("litellm", True)
    ]
    assert [line.up for line in found if line.instance == "c:1"] == [None]
    assert [(line.engine, line.up) for line in found if line.instance == "e:1"] == [(None, True)]
    assert [line for line in found if line.instance == "f:1"] == []


def test_an_engine_between_two_readings():
    """What requests took in between stands beside what the engine holds now."""
    [line] = engine_lines(
        [state("http://a:1/metrics", pages.VLLM_0_6, pages.scrape("vllm-0.32-metrics.txt"))]
    )

    assert line.running == 0
    assert line.queue_s == pytest.approx(0.8647010 / 62)


def test_gpus_of_exporters_and_of_this_machine():
    """One line each, whatever the source."""
    [*found] = gpu_lines([state("http://f:1/metrics", pages.DCGM)], (), "here")

    assert found
    assert all(line.gpu != "" for line in found)
    assert any(line.power_w is not None for line in found)


def test_how_to_send_names_what_senders_need():
    """A token and a certificate, where they are required; over gRPC where there is no HTTP."""
    at = Address("127.0.0.1", 4318)
    start = "export OTEL_EXPORTER_OTLP_"
    assert how_to_send(Places(otlp_http=at)) == f"{start}ENDPOINT=http://127.0.0.1:4318"
    required = Places(otlp_grpc=at, tls=True, token=True, client_certificate=True)
    assert how_to_send(required).replace(start, "").split("\n") == [
        "ENDPOINT=https://127.0.0.1:4318", "PROTOCOL=grpc", "HEADERS=authorization=Bearer%20TOKEN",
        "CLIENT_CERTIFICATE=FILE", "CLIENT_KEY=FILE",
    ]  # fmt: skip
    assert "nothing is received" in how_to_send(Places())


def test_problems_in_words():
    """The store, the backlog and engines that are gone; nothing when all is well."""
    down = engine_lines([state(f"http://h{place}:1/metrics") for place in range(5)])
    gone = [type(line)(instance=line.instance, up=False) for line in down]

    assert problems([], None, 0.0, 30.0) == ()
    assert problems(gone, "insert: full", 99.0, 30.0) == (
        "the store does not take what came, and rows are 99 s behind: insert: full",
        "not read: h0:1, h1:1, h2:1 and 2 more",
    )
    assert problems([], None, 99.0, 30.0) == (
        "rows are 99 s behind: more comes than the store takes",
    )
