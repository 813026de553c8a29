"""Are causes named by what engines count of all requests, where no request says it of itself?

Each incident is made by hand: rows without an engine's stages, beside its sums and counts.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from llmtrace.dataset.columns import Words

from . import hand_made
from .incidents import AFTER, REPLICAS, Incident, quiet

SURE = ("confirmed", "likely")
ENDED = 0.7  # requests a second of each engine
USUAL = {"queue": 0.01, "prefill": 0.1, "ttft": 0.13}  # means, seconds


def count(made: Incident, **means: float) -> None:
    """Have engines count the usual means, and these from the window after on."""
    for replica in REPLICAS:
        for name, usual in USUAL.items():
            mean = means.get(name, usual)
            made.counters[f"{name}_count", replica] = lambda _: ENDED
            made.counters[f"{name}_sum", replica] = lambda t, usual=usual, mean=mean: (
                ENDED * (mean if t >= AFTER.start else usual)
            )


def late(stage: str, seconds: float) -> Incident:
    """The first chunk is late, and no request says how long it was in a queue or in prefill."""
    made = quiet()
    made.forget("frontend_time", "api_cpu")
    made.forget_rows("first_chunk_frontend_s")
    hand_made.not_divided(made, "queue_s", "prefill_s", "gateway_s")
    dice = hand_made.rng()
    for row in made.after():
        row[stage] += float(dice.exponential(seconds))
    return made


def test_engines_means_speak_for_requests_without_a_queue():
    """What is not divided is in the queue then, and in nothing that engines count beside it."""
    made = late("unattributed_s", 1.5)
    count(made, queue=1.5, ttft=1.6)
    made.gauge("waiting", 14.0, 2.0)
    made.gauge("running", 64.0)

    evidence = made.evidence(metric="ttft_s")
    found = made.findings(metric="ttft_s")

    assert (evidence.stage_rose("queue"), evidence.stage_rose("prefill")) == (True, False)
    assert evidence.stage_share("queue") > 0.8
    assert evidence.stage_share("unattributed") < 0.2
    assert next(iter(found)) == "queue_saturation"
    assert "(engines' means)" in found["queue_saturation"].evidence[0].text


def test_what_requests_say_themselves_is_not_asked_of_engines():
    """A mean of all that ended between two scrapes is the rougher figure."""
    made = quiet()
    count(made, queue=5.0)

    queue = made.evidence().row("queue_s")

    assert (queue.source, queue.after_mean < 0.1) == ("", True)


@pytest.mark.parametrize(("ttft", "cause"), [(0.13, "gateway_overhead"), (0.63, "frontend_cpu")])
def test_what_engines_see_of_a_wait_is_theirs(ttft, cause):
    """They count time to the first token from when a request is with them: a gateway is before."""
    made = late("first_chunk_s", 0.5)
    count(made, ttft=ttft)
    found = made.findings(metric="ttft_s")

    assert next(iter(found)) == cause
    assert found[cause].status == "likely"
    other = {"gateway_overhead", "frontend_cpu"} - {cause}
    assert found[other.pop()].status not in SURE


def test_a_gateway_is_named_without_one_stage_of_an_engine():
    """It is in what requests leave undivided, and no engine sees it."""
    made = late("unattributed_s", 0.3)
    hand_made.not_divided(made, "first_chunk_s")
    count(made)

    assert next(iter(made.findings(metric="ttft_s"))) == "gateway_overhead"


def test_a_front_end_is_not_what_engines_count_as_queue():
    """They see the wait, and where it is."""
    made = late("first_chunk_s", 0.5)
    count(made, ttft=0.63, queue=0.5)

    assert made.findings(metric="ttft_s")["frontend_cpu"].status not in SURE


def test_requests_in_progress_stand_in_for_the_gauge_of_running_ones():
    """Twice as many come, and more than that are there at a time."""
    made = hand_made.batch_size()
    made.forget("running")
    found = made.findings(metric="tpot_s")

    assert next(iter(found)) == "batch_size"
    assert any("requests in progress p50" in one.text for one in found["batch_size"].evidence)


@pytest.mark.parametrize("cause", ["head_of_line", "engine_paused"])
def test_what_lies_within_an_engine_is_open_where_none_is_seen(cause):
    """Times alone would fit: who runs that engine may know."""
    one = getattr(hand_made, cause)()
    for row in one.rows:
        row["replica"] = "vllm-0"
    one.forget_rows("spec_drafted", "spec_accepted")
    found = hand_made.hosted(one).findings()[cause]

    assert found.status == "unknown"
    assert "signals of the engine" in found.missing


def test_names_of_signals_without_a_sample_show_no_engine():
    """A store knows the names of all its signals, of whatever engines; nor do GPUs alone."""
    evidence = hand_made.batch_size_missing().evidence()
    named = replace(evidence.signals, signal=Words(np.empty(0, np.int32), ("running",)))

    assert not replace(evidence, signals=named).sees_engines


def test_an_engine_is_seen_by_its_gpu():
    """An exporter of GPUs is read, and no page of an engine."""
    made = hand_made.gpu_throttle()
    gauges = {key: of for key, of in made.gauges.items() if key[0].startswith("gpu_")}
    hand_made.hosted(made).gauges |= gauges
    for row in made.after():
        row["decode_s"] *= 1.9

    assert made.findings()["gpu_throttle"].status == "confirmed"


@pytest.mark.parametrize("cause", ["low_spec_acceptance", "disaggregated_kv"])
def test_an_engine_is_seen_by_what_its_requests_say_of_it(cause):
    """Drafts and transfers are figures of an engine, as queue and prefill are."""
    assert hand_made.hosted(getattr(hand_made, cause)()).findings()[cause].status in SURE


def slower(prefill: float = 1.9, decode: float = 1.9) -> Incident:
    """All that an engine computes takes so many times as long, and no GPU is seen."""
    made = quiet()
    made.forget("gpu_sm_clock_mhz", "gpu_throttle", "gpu_temp_c", "gpu_power_w", "sleep")
    for row in made.after():
        row["prefill_s"] *= prefill
        row["decode_s"] *= decode
    return made


def test_a_gpu_that_is_not_seen_may_be_what_makes_all_work_slower():
    """Tokens of prompts and steps of a batch, of the same lengths and sizes; nothing says why."""
    found = slower().findings()

    assert next(iter(found)) == "gpu_throttle"
    assert found["gpu_throttle"].status == "possible"
    assert any("no GPU is seen" in one.text for one in found["gpu_throttle"].against)


def test_an_engine_that_says_it_is_awake_is_not_paused():
    """VLLM always reports whether it sleeps: that it does not explains nothing."""
    made = slower()
    hand_made.report(made, "sleep", 0.0, 0.0)

    assert made.findings()["gpu_throttle"].status == "possible"


@pytest.mark.parametrize("other", ["prefill alone", "steps alone", "a start", "no cache known"])
def test_a_gpu_that_is_not_seen_is_not_blamed_for_what_else_explains_it(other):
    """Either alone, an engine that has just started, prompts that are perhaps no longer cached."""
    made = slower(prefill=1.0 + 0.9 * (other != "steps alone"),
                  decode=1.0 + 0.9 * (other != "prefill alone"))  # fmt: skip
    if other == "a start":
        for replica in REPLICAS:
            made.gauges["started", replica] = lambda _t, _u: AFTER.start - 5
    if other == "no cache known":
        made.forget_rows("cached_tokens")
        made.forget("prefix_hits", "prefix_queries")

    assert made.findings()["gpu_throttle"].status == "unknown"


def test_more_load_is_no_queue_where_engines_count_none_of_the_time():
    """The first chunk is late, and engines deliver theirs as early as ever."""
    made = late("unattributed_s", 1.5)
    made.rows += [{**row, "request_id": f"{row['request_id']}-2", "start": row["start"] + 10**8}
                  for row in made.after()]  # fmt: skip
    made.gauge("waiting", 1.0, 0.5)
    made.gauge("running", 64.0)
    counted, silent = made, replace(made, counters=dict(made.counters))
    count(counted)
    counted.forget("queue_sum", "queue_count", "prefill_sum", "prefill_count")

    found = [one.findings(metric="ttft_s")["queue_saturation"] for one in (silent, counted)]

    assert [one.status in SURE for one in found] == [True, False]
