"""Is what engines report read as it is: seldom, as a ratio only, or with a gap between scrapes?"""

from __future__ import annotations

import numpy as np
import pytest

from llmtrace.dataset.case import Window
from llmtrace.triage.evidence import gone_engines
from llmtrace.triage.evidence.changes import shift, shift_of_samples
from llmtrace.triage.evidence.counter_ratios import ratio_of
from llmtrace.triage.evidence.signals import Series, moved
from llmtrace.triage.result import NAMED

from . import hand_made
from .incidents import AFTER, BEFORE, REPLICAS, quiet
from .test_engines_means import SURE, count, late

T = np.arange(0.0, 120.0, 15.0)
WINDOWS = Window(0.0, 90.0), Window(90.0, 120.0)


def test_two_samples_of_a_queue_show_it():
    """No request waited in six scrapes, and dozens do in the two since."""
    waiting = Series(T, np.array([0, 1, 0, 0, 2, 0, 61, 76.0]))
    found = moved({"vllm-0": waiting}, *WINDOWS)

    assert found.rose(0.0, 0.3)
    assert found.most()[1].after_mean == pytest.approx(68.5)


def test_two_samples_of_what_always_varies_show_nothing():
    """They are as high as some before."""
    running = Series(T, np.array([3, 9, 4, 7, 2, 8, 10, 9.0]))

    assert not moved({"vllm-0": running}, *WINDOWS).rose(0.0, 0.1)


@pytest.mark.parametrize("after", [1, 3, 7])
@pytest.mark.parametrize("memory", [0.0, 0.6])
def test_few_samples_seldom_rise_by_chance(memory, after):
    """In no more than one of a hundred gauges that remember what they were."""
    rng = np.random.default_rng(after)
    rose = 0
    for _ in range(500):
        steps = rng.normal(0, 1, 12 + after)
        for i in range(1, len(steps)):
            steps[i] = memory * steps[i - 1] + np.sqrt(1 - memory**2) * steps[i]
        values = 10 + 3 * steps
        rose += shift_of_samples(values[:12], values[12:]).rose(0.0, 0.1)

    assert rose <= 5


def test_other_engines_show_how_steady_a_gauge_is():
    """Five samples of one clock that fell are few; those of three before are eighteen."""
    t = np.arange(0.0, 165.0, 15.0)
    steady, fell = np.full(11, 1980.0), np.array([1980.0] * 6 + [720.0] + [540.0] * 4)
    windows = Window(0.0, 90.0), Window(90.0, 165.0)
    alone = moved({"gpu-2": Series(t, fell)}, *windows)
    among = moved({"gpu-0": Series(t, steady), "gpu-1": Series(t, steady),
                   "gpu-2": Series(t, fell)}, *windows)  # fmt: skip

    assert not alone.instances["gpu-2"].fell(0.0)
    assert among.instances["gpu-2"].fell(0.0)
    assert not among.instances["gpu-1"].fell(0.0)


@pytest.mark.parametrize("memory", [0.0, 0.6])
def test_few_samples_beside_those_of_others_seldom_rise_by_chance(memory):
    """Each engine's gauge wanders by itself."""
    rng = np.random.default_rng(7)
    rose = 0
    for _ in range(300):
        steps = rng.normal(0, 1, (3, 11))
        for i in range(1, 11):
            steps[:, i] = memory * steps[:, i - 1] + np.sqrt(1 - memory**2) * steps[:, i]
        values = 10 + 3 * steps
        rose += shift_of_samples(values[0, :6], values[0, 6:], values[1:, :6]).rose(0.0, 0.1)

    assert rose <= 3


def test_from_nothing_or_less_to_something_is_no_small_ratio():
    """What is left of an engine's time to first token, less its parts, may be below 0."""
    found = shift_of_samples(np.full(6, -0.1), np.full(5, 1.0))

    assert found.ratio == np.inf


def test_a_window_without_samples_says_nothing():
    """Nor does one that has three before it."""
    assert shift_of_samples(np.arange(3.0), np.ones(2)) is None
    assert shift_of_samples(np.arange(9.0), np.empty(0)) is None
    assert shift(np.arange(9.0), np.arange(9.0), np.ones(2), np.ones(2)) is None


def test_what_engines_count_and_neither_queue_nor_prefill_has_is_their_front_end():
    """The mean time to first token less the others'."""
    made = late("first_chunk_s", 0.5)
    count(made, ttft=0.63)
    front = made.evidence().gauge("frontend_time").fleet

    assert (front.before_mean, front.after_mean) == pytest.approx((0.02, 0.52), abs=0.02)


def test_a_transfer_of_blocks_is_no_front_end():
    """It is counted by itself where prefill and decode run apart."""
    made = late("first_chunk_s", 0.5)
    count(made, ttft=0.63)
    for replica in REPLICAS:
        made.counters["kv_transfer_time_count", replica] = lambda _: 0.7
        made.counters["kv_transfer_time_sum", replica] = lambda t: (
            0.7 * (0.5 if t >= AFTER.start else 0.0)
        )
    front = made.evidence().gauge("frontend_time").fleet
    found = made.findings(metric="ttft_s")

    assert front.after_mean == pytest.approx(0.02, abs=0.03)
    assert next(iter(found)) == "disaggregated_kv"


@pytest.mark.parametrize(
    ("name", "before", "after", "said"),
    [
        ("spec_accept_ratio", 0.7, 0.3, "draft tokens accepted 70 % → 30 %"),
        ("spec_accept_length", 2.9, 1.4, "draft tokens accepted 2.9 → 1.4"),
    ],
)
def test_drafts_are_told_by_the_ratio_that_some_engines_report(name, before, after, said):
    """SGLang has no counters of drafts, TensorRT-LLM the mean length of those accepted."""
    made = hand_made.low_spec_acceptance_missing()
    hand_made.report(made, name, before, after)
    found = made.findings(metric="tpot_s")
    shown = [one.text for one in found["low_spec_acceptance"].evidence]

    assert any(text.startswith(said) for text in shown), shown

    assert next(iter(found)) == "low_spec_acceptance"
    assert found["low_spec_acceptance"].status in SURE


def test_hits_are_told_by_the_ratio_that_some_engines_report():
    """As by their counters."""
    made = quiet()
    made.forget("prefix_hits", "prefix_queries")
    hand_made.report(made, "prefix_hit_ratio", 0.6, 0.2)
    ratio = ratio_of(made.evidence(), "prefix_hits", "prefix_queries")

    assert (ratio.before, ratio.after) == pytest.approx((0.6, 0.2))


@pytest.mark.parametrize("again", [False, True])
def test_a_gap_between_scrapes_is_no_restart(again):
    """Unless counters began anew."""
    made = quiet()
    gap = Window(AFTER.start + 60, AFTER.start + 160)
    made.dead["vllm-1"] = gap
    made.forget("started")
    evidence = made.evidence()
    if again:
        signals = evidence.signals
        later = signals.t >= gap.end
        mine = signals.instance.where("vllm-1") & later & ~signals.signal.where("running")
        signals.value[mine] *= 0.01

    assert bool(gone_engines.vanished(evidence)) is again


def test_loads_of_blocks_from_another_tier_are_what_requests_wait_for():
    """By the seconds that engines count for each request."""
    made = late("unattributed_s", 0.8)
    count(made, queue=0.8, ttft=0.93)
    for replica in REPLICAS:
        made.counters["kv_offload_load_time", replica] = lambda t: (
            0.6 if t >= AFTER.start else 0.01
        )
    found = made.findings(metric="ttft_s")

    assert next(iter(found)) == "kv_transfer"
    assert any("loading KV blocks takes" in one.text for one in found["kv_transfer"].evidence)


def test_a_new_job_that_no_cache_knows_is_no_miss_of_the_others():
    """With few requests before, too, kinds are compared with themselves, and new ones are new."""
    made = quiet(rate=100 / BEFORE.seconds, after_rate=250 / AFTER.seconds)
    for i, row in enumerate(made.rows):
        late = row["start"] >= AFTER.start * 1e9
        kinds = ["faq", "faq", "plan", "next", "say", *(["job", "job2"] * 4 if late else [])]
        row["route"] = kinds[i % len(kinds)]
        row["cache_hit"] = row["route"] == "faq"
        if row["cache_hit"]:
            row.update(queue_s=0.0, prefill_s=0.001, first_chunk_s=0.001, decode_s=0.002)
    found = made.findings(metric="e2e_s")

    assert found["response_cache_misses"].status not in NAMED


def test_misses_are_named_where_there_was_hardly_one_before():
    """Engines get what a cache served, and steps take longer: that is not their doing."""
    made = hand_made.batch_size()
    dice = hand_made.rng()
    for row in made.rows:
        row["cache_hit"] = row["start"] < AFTER.start * 1e9 and dice.random() < 0.97
        if row["cache_hit"]:
            row["replica"] = None
            for name in ("queue_s", "prefill_s", "decode_s"):
                row[name] = 0.0
    found = made.findings(metric="ttft_s")

    assert next(iter(found)) == "response_cache_misses"
    assert found["response_cache_misses"].status in SURE
