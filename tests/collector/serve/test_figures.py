"""Are figures that the store computes those that Python computes of the same rows?"""

from __future__ import annotations

import random
import time
from dataclasses import replace
from functools import partial

import pytest

from llmtrace.budget import DEFAULT, Budget
from llmtrace.core.stages import STAGES, Reported, Timeline
from llmtrace.dataset.summary import summarise
from llmtrace.testing import make_row
from llmtrace_collector.serve import live_queries
from llmtrace_collector.serve.live_model import lines
from llmtrace_collector.store import open_store, read
from tests.collector.collecting import as_otlp
from tests.collector.store.sent import delimited

_MS = 1_000_000
_S = 1_000 * _MS
NOW = time.time_ns() // (60 * _S) * 60 * _S


def rows():
    """Make rows of ten minutes: some without an engine's figures, some that failed."""
    chance = random.Random(7)
    made = []
    for number in range(100):
        reported = number % 4 != 0
        queue, prefill = chance.randrange(1, 400) * _MS, chance.randrange(20, 300) * _MS
        ttft = queue + prefill + chance.randrange(5, 60) * _MS
        timeline = Timeline(
            e2e=ttft + chance.randrange(100, 1_500) * _MS,
            ttft=ttft,
            queue=Reported(queue, "engine_inband") if reported else None,
            prefill=Reported(prefill, "engine_inband") if reported else None,
        )
        row = make_row(
            timeline=timeline,
            model="llama-3" if number % 2 else "other",
            output_tokens=chance.randrange(2, 50),
            last_content_ns=timeline.e2e,
            outcome="timeout" if number % 10 == 9 else "success",
        )
        end = NOW - (number * 6 + 1) * _S
        made.append(
            replace(row, trace_id=f"{number + 1:032x}", span_id=f"{number + 1:016x}",
                    start=end - timeline.e2e)
        )  # fmt: skip
    return made


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store with those rows, joined."""
    opened = open_store(tmp_path_factory.mktemp("figures"))
    opened.insert_otlp(delimited([as_otlp(rows())]), "one")
    opened.join(time.time_ns() + _MS)
    yield opened
    opened.close()


def within(since_s, until_s=0, model=None):
    """Return the rows that were over between so many seconds ago and so many."""
    return [
        row
        for row in rows()
        if NOW - since_s * _S <= row.start + row.e2e_ns < NOW - until_s * _S
        and (model is None or row.model == model)
    ]


@pytest.mark.parametrize("seconds", [300, 600, 20])
def test_stages_now_are_a_summary_of_the_rows(store, seconds):
    """Count, percentiles, shares, verdicts and sources, as `llmtrace.dataset.summary` has them."""
    outcomes, counted = live_queries.counted(store, NOW - seconds * _S, NOW, DEFAULT)
    expected = summarise(within(seconds), DEFAULT)

    assert outcomes == expected.outcomes
    found = {line.name: line for group in lines(counted, DEFAULT) for line in group}
    assert found.keys() == {line.name for line in (*expected.stages, *expected.metrics)}
    for known in (*expected.stages, *expected.metrics):
        line = found[known.name]
        assert (line.known, line.limit_s) == (known.known, known.limit_s)
        assert line.verdict == known.verdict
        assert line.p50_s == pytest.approx(known.p50_s, abs=1e-9)
        assert line.high_s == pytest.approx(known.high_s, abs=1e-9)
        if known.share is not None and line.name in STAGES:
            assert line.share == pytest.approx(known.share)
        assert set(line.sources) == set(known.sources)


def test_each_minute_has_its_own(store):
    """A request belongs to the minute it was over in; what is not reported is `None`."""
    found = live_queries.minutes(store, NOW, DEFAULT)

    assert found.t == tuple(NOW // _S - 60 * back for back in range(10, 0, -1))
    for place, t in enumerate(found.t):
        ago = NOW // _S - t
        expected = summarise(within(ago, ago - 60), DEFAULT)
        for line in (*expected.stages, *expected.metrics):
            assert found.high_s[line.name][place] == pytest.approx(line.high_s, abs=1e-9)
        assert found.high_s["gateway"][place] is None


def test_a_budget_is_held_against_those_it_is_for(store):
    """By patterns of models, as everywhere."""
    budget = Budget(name="llama", total_s=1.0, model=("llama-*",))
    outcomes, _ = live_queries.counted(store, NOW - 600 * _S, NOW, budget)

    assert sum(outcomes.values()) == len(within(600, model="llama-3"))
    stray = Budget(name="none", route=("chat", "a?[bc]"))
    assert live_queries.counted(store, NOW - 600 * _S, NOW, stray) == ({}, {})


def test_the_slowest(store):
    """Whatever became of them, longest first."""
    found = live_queries.slowest(store, NOW - 600 * _S, NOW, DEFAULT, 5)
    expected = sorted(within(600), key=lambda row: -row.e2e_ns)[:5]

    assert [one.trace_id for one in found] == [row.trace_id for row in expected]
    assert [one.e2e_s for one in found] == [row.e2e_s for row in expected]
    assert found[0].stages["decode"] == expected[0].stages.decode / _S
    slow = read.slowest(store, NOW - 700 * _S, NOW, by="queue", limit=3)
    queues = sorted((row.stages.queue or 0 for row in rows()), reverse=True)
    assert [round(row["queue_s"] * _S) for row in slow] == queues[:3]


def test_percentiles_a_step_at_a_time(store):
    """One step over everything is a summary of everything."""
    [point] = read.stage_percentiles(store, NOW - 700 * _S, NOW, step_s=2 * NOW // _S)
    expected = summarise(rows(), DEFAULT)

    assert point["requests"] == expected.outcomes
    for line in (*expected.stages, *expected.metrics):
        reported = point["stages"][line.name]
        assert reported["known"] == line.known
        assert reported["p50_s"] == pytest.approx(line.p50_s, abs=1e-9)
        assert reported["p95_s"] == pytest.approx(line.high_s, abs=1e-9)


def test_percentiles_of_some_stages_are_those_of_all(store):
    """Asking for fewer changes nothing of those."""
    ask = partial(read.stage_percentiles, store, NOW - 700 * _S, NOW)

    few = ask(of=("queue", "ttft"))

    assert [point["requests"] for point in few] == [point["requests"] for point in ask()]
    for point, whole in zip(few, ask(), strict=True):
        assert point["stages"] == {name: whole["stages"][name] for name in ("queue", "ttft")}


def test_the_sources_of_a_stage(store):
    """Three of four rows have an engine's figures."""
    found = read.coverage(store, NOW - 700 * _S, NOW)

    assert found["requests"] == 100
    assert found["stages"]["queue"] == {"known": 75, "sources": {"engine_inband": 75}}
    assert found["stages"]["gateway"] == {"known": 0, "sources": {}}
    assert found["reported_by"] == {"row": 100}
