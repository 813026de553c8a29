"""Does the engine model schedule, admit, preempt and take time as it says? In virtual time."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmtrace.core.errors import ConfigError, DataError
from llmtrace.simulator.engine.scheduler import (
    EngineConfig,
    EngineState,
    Figures,
    Request,
    abort,
    complete,
    kv_usage,
    schedule,
    simulate,
    submit,
)

STEADY = EngineConfig(jitter=0.0)
SMALL = EngineConfig(
    max_num_seqs=3,
    max_num_batched_tokens=32,
    max_model_len=128,
    kv_capacity_tokens=160,
    block_size=8,
)


def at_once(count: int, prompt: int = 1000, output: int = 100) -> list[Request]:
    """Return requests that all arrive at once."""
    return [Request(f"r{n}", prompt, output) for n in range(count)]


def served(config: EngineConfig, requested: list[Request]) -> dict[str, Figures]:
    """Serve requests in virtual time; return the figures by request id."""
    return {figures.request.request_id: figures for figures in simulate(config, requested)}


@pytest.mark.parametrize("prompt", [300, 1000, 2500])
def test_light_load_resembles_a_mid_size_model(prompt: int) -> None:
    """Alone on the engine, a prompt waits 30 to 300 ms and a token 7 to 15 ms."""
    [figures] = simulate(EngineConfig(), [Request("a", prompt, 100)])

    assert 0.03 < figures.ttft_s < 0.3
    assert figures.tpot_s is not None
    assert 0.007 < figures.tpot_s < 0.015


def test_queueing_appears_with_the_eighth_client() -> None:
    """Four at once do not queue for a slot; eight do, and sixteen wait seconds."""
    longest = {
        count: max(f.queue_s for f in simulate(STEADY, at_once(count))) for count in (4, 8, 16)
    }

    assert longest[4] < 0.25
    assert 0.5 < longest[8] < longest[16]


def test_long_prompts_cost_more_than_their_share() -> None:
    """Prefill grows faster than the prompt, because of attention."""
    wide = replace(STEADY, max_num_batched_tokens=16_384)
    short, long = (next(simulate(wide, [Request("a", n, 1)])).prefill_s for n in (1000, 8000))

    assert long - wide.base_s > 8.5 * (short - wide.base_s)


def test_prompt_is_prefilled_in_chunks_while_others_decode() -> None:
    """A long prompt takes several steps, and a running answer gets a token in each of them."""
    state = submit(STEADY, EngineState(), Request("talker", 100, 50), 0.0)
    state, step = schedule(STEADY, state, 0.0)
    assert step is not None
    state, _ = complete(state, step, 0.1)
    state = submit(STEADY, state, Request("long", 5000, 1), 0.1)

    seen = []
    for number in range(3):
        state, step = schedule(STEADY, state, 0.2 + number)
        assert step is not None
        state, tokens = complete(state, step, 0.3 + number)
        seen.append((step.work["long"], [token.request.request_id for token in tokens]))

    assert seen == [
        (2047, ["talker"]),
        (2047, ["talker"]),
        (906, ["talker", "long"]),
    ]


def test_a_full_engine_makes_newcomers_wait_for_a_slot() -> None:
    """With two slots the third request is scheduled when the first one finishes."""
    two = replace(STEADY, max_num_seqs=2)
    requested = [Request("a", 100, 20), Request("b", 100, 40), Request("c", 100, 20)]

    figures = served(two, requested)

    assert figures["c"].scheduled_s == figures["a"].finished_s
    assert figures["b"].queue_s == 0


def test_a_full_kv_cache_makes_newcomers_wait() -> None:
    """A slot is free, but the second prompt does not fit beside the first."""
    tight = replace(SMALL, max_num_batched_tokens=128)
    state = submit(tight, EngineState(), Request("a", 90, 10), 0.0)
    state = submit(tight, state, Request("b", 80, 10), 0.0)

    state, _ = schedule(tight, state, 0.0)

    assert [s.request.request_id for s in state.running] == ["a"]
    assert [s.request.request_id for s in state.waiting] == ["b"]
    assert kv_usage(tight, state) == 96 / 160


def test_the_youngest_gives_way_when_the_cache_overflows() -> None:
    """Two answers outgrow the cache: the younger is preempted, starts again and still ends."""
    roomy = replace(SMALL, max_num_batched_tokens=128)
    requested = [Request("old", 70, 50), Request("young", 70, 50)]

    figures = served(roomy, requested)

    assert figures["old"].preemptions == 0
    assert figures["young"].preemptions == 1
    assert figures["young"].finished_s > figures["old"].finished_s
    assert figures["young"].first_token_s < figures["old"].finished_s


def test_cached_prefix_is_not_computed_again() -> None:
    """A hit share saves prefill, in whole blocks, and never the last prompt token."""
    cold = next(simulate(STEADY, [Request("a", 1000, 1)]))
    warm = next(simulate(replace(STEADY, prefix_hit_share=0.8), [Request("a", 1000, 1)]))
    whole = next(simulate(STEADY, [Request("a", 1024, 1, cached_tokens=1024)]))

    assert (cold.cached_tokens, warm.cached_tokens, whole.cached_tokens) == (0, 800, 1008)
    assert warm.prefill_s < 0.4 * cold.prefill_s


def test_waiting_for_a_running_step_is_not_queue_time() -> None:
    """Who arrives during a long step waits unseen by queue and prefill, as in a real engine."""
    requested = [Request("long", 2000, 1), Request("late", 100, 1, arrived_s=0.01)]

    late = served(STEADY, requested)["late"]

    assert late.queue_s == 0
    assert late.ttft_s - late.prefill_s > 0.1


def test_same_seed_same_history() -> None:
    """Jitter is drawn by seed: the same seed repeats every figure, another does not."""
    requested = at_once(5)
    first = list(simulate(EngineConfig(seed=1), requested))

    assert first == list(simulate(EngineConfig(seed=1), requested))
    assert first != list(simulate(EngineConfig(seed=2), requested))


def test_schedule_is_a_pure_function() -> None:
    """Scheduling the same state twice gives the same step and leaves the state alone."""
    state = submit(SMALL, EngineState(), Request("a", 40, 4), 0.0)
    before = repr(state)

    assert schedule(SMALL, state, 0.0) == schedule(SMALL, state, 0.0)
    assert before == repr(state)


def test_nothing_to_do_is_no_step() -> None:
    """An idle engine has no next step."""
    assert schedule(STEADY, EngineState(), 0.0) == (EngineState(), None)


def test_aborted_request_makes_no_token() -> None:
    """A request aborted while its step runs is gone when the step ends, and so is its room."""
    state = submit(STEADY, EngineState(), Request("a", 100, 5), 0.0)
    state = submit(STEADY, state, Request("b", 100, 5), 0.0)
    state, step = schedule(STEADY, state, 0.0)
    assert step is not None

    state, tokens = complete(abort(state, "a"), step, 0.1)

    assert [token.request.request_id for token in tokens] == ["b"]
    assert [s.request.request_id for s in state.running] == ["b"]
    assert abort(abort(state, "b"), "unknown") == EngineState(steps=1)


def test_figures_come_from_the_clock_handed_in() -> None:
    """A step that overran its plan is booked at the time it really ended."""
    state = submit(STEADY, EngineState(), Request("a", 100, 2, arrived_s=9.0), 10.0)
    for ended_s in (12.5, 13.5):
        state, step = schedule(STEADY, state, ended_s - 1)
        assert step is not None
        state, tokens = complete(state, step, ended_s)

    [token] = tokens
    figures = token.figures
    assert figures is not None
    assert (
        figures.queue_s,
        figures.prefill_s,
        figures.decode_s,
        figures.ttft_s,
    ) == (1.5, 1.0, 1.0, 3.5)
    assert token.gap_s == figures.tpot_s == 1.0


def test_answer_of_one_token_has_no_tpot() -> None:
    """One token has no gap: its time a token is unknown, not 0."""
    assert next(simulate(STEADY, [Request("a", 10, 1)])).tpot_s is None


@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 60), st.floats(0, 0.5)),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([0.0, 0.5]),
)
@settings(max_examples=60, deadline=None)
def test_every_request_is_served_once_and_in_order(
    requested: list[tuple[int, int, float]], hit_share: float
) -> None:
    """Whatever comes: all is served once, in order of time, within slots, budget and cache."""
    config = replace(SMALL, prefix_hit_share=hit_share)
    requests = [Request(f"r{n}", *ask) for n, ask in enumerate(requested)]
    pending = sorted(requests, key=attrgetter("arrived_s"))
    order = [request.request_id for request in pending]
    state, now_s = EngineState(), 0.0
    made: Counter[str] = Counter()
    figures: list[Figures] = []
    while pending or state.waiting or state.running:
        while pending and (pending[0].arrived_s <= now_s or not (state.waiting or state.running)):
            now_s = max(now_s, pending[0].arrived_s)
            state = submit(config, state, pending.pop(0), now_s)
        state, step = schedule(config, state, now_s)
        assert step is not None
        assert 0 < sum(step.work.values()) <= config.max_num_batched_tokens
        assert len(state.running) <= config.max_num_seqs
        assert 0 < kv_usage(config, state) <= 1
        now_s += step.duration_s
        state, tokens = complete(state, step, now_s)
        made.update(token.request.request_id for token in tokens)
        figures += [token.figures for token in tokens if token.figures]

    assert made == {f"r{n}": output for n, (_, output, _) in enumerate(requested)}
    assert len(figures) == len(requested)
    for f in figures:
        moments = (f.request.arrived_s, f.queued_s, f.scheduled_s, f.first_token_s, f.finished_s)
        assert moments == tuple(sorted(moments))
    scheduled = {f.request.request_id: f.scheduled_s for f in figures}
    assert [scheduled[name] for name in order] == sorted(scheduled.values())


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_num_seqs": 0},
        {"prefill_token_s": -1.0},
        {"base_s": 0.0},
        {"prefix_hit_share": 1.5},
        {"jitter": 2.0},
        {"max_num_batched_tokens": 2},
        {"kv_capacity_tokens": 1000},
    ],
)
def test_impossible_engines_are_refused(wrong: dict[str, Any]) -> None:
    """A configuration that could never serve is refused, and the message names the setting."""
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        replace(EngineConfig(), **wrong)


@pytest.mark.parametrize("tokens", [(0, 1), (1, 0), (16_384, 1)])
def test_impossible_requests_are_refused(tokens: tuple[int, int]) -> None:
    """An empty request, and one longer than the model holds, never enter the queue."""
    with pytest.raises(DataError, match="'a'"):
        submit(STEADY, EngineState(), Request("a", *tokens), 0.0)


def test_the_model_needs_no_server_packages() -> None:
    """Importing the engine imports neither the web framework nor the metrics client."""
    code = (
        "import sys, llmtrace.simulator.engine.scheduler, llmtrace.simulator.engine.metrics\n"
        "import llmtrace.simulator.api.reply_plan\n"
        "print([n for n in ('starlette', 'uvicorn', 'prometheus_client') if n in sys.modules])"
    )

    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
