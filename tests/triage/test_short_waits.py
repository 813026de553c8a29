"""Are causes named that last for less than the time between two samples of a gauge?

Each incident is made by hand, after one that a real vLLM had.
"""

from __future__ import annotations

import numpy as np
import pytest

from llmtrace.dataset.case import Event, Window
from llmtrace.triage.causes import causes
from llmtrace.triage.evidence.engine_halts import stalled_together
from llmtrace.triage.pipeline import triage
from llmtrace.triage.result import NAMED

from .incidents import AFTER, BEFORE, Incident, quiet
from .test_given_windows import QUICK, case_of, hosted, named
from .test_others_work import others_answers

SURE = ("confirmed", "likely")
LENGTHS = (2.7, 3.9, 2.1, 4.8, 3.3)  # of halts, one every 16 s


def on_one_engine(rate: float) -> Incident:
    """Return requests to one engine alone."""
    made = quiet(rate=rate)
    for row in made.rows:
        row["replica"] = "vllm-0"
    for kept in (made.gauges, made.counters):
        for key in [key for key in kept if key[1] != "vllm-0"]:
            del kept[key]  # type: ignore[attr-defined]
    return made


def bursts_of_others(rate: float = 2.0, *, served: float = 12.0) -> Incident:
    """Another team fills all seats for 0.9 s of every 4 s: who comes then waits for its end."""
    made = on_one_engine(rate)
    made.forget("sleep")
    for row in made.rows:
        row |= {"output_tokens": 20, "decode_s": 0.2, "chunks": 20}
    for row in made.after():
        at = (row["start"] / 1e9 - AFTER.start) % 4
        row["queue_s"] += max(0.9 - at, 0.0)
    met = [AFTER.start + 40, AFTER.start + 120]
    for name, level in (("waiting", 3.0), ("waiting_deferred", 0.0)):
        made.gauges[name, "vllm-0"] = lambda t, _u, level=level: level if t in met else 0.0
    made.counters["e2e_count", "vllm-0"] = lambda t: served if t >= AFTER.start else rate
    made.counters["tokens_out", "vllm-0"] = lambda t: 1_500.0 if t >= AFTER.start else 300.0
    made.counters["external_prefix_queries", "vllm-0"] = lambda _t: 0.0
    return made


def stalled(*, together: bool) -> Incident:
    """One of three engines halts now and then, or single responses of it stand still as long."""
    made = quiet(rate=4.0)
    dice = np.random.default_rng(1)
    for number in range(12):
        seconds = LENGTHS[number % len(LENGTHS)]
        for row in made.after():
            first = row["start"] / 1e9 + row["network_s"] + row["prefill_s"]
            at = AFTER.start + 10 + 16 * number
            if row["replica"] == "vllm-1" and first < at < first + row["decode_s"]:
                gap = seconds if together else float(dice.uniform(1.0, 9.0))
                row["max_gap_s"] = gap + 0.02
                row["decode_s"] += gap
    made.forget("sleep", "tokens_out")
    return made


def two_documents(count: int) -> Incident:
    """A few requests come with a prompt that takes 5 s, and all others wait for it meanwhile."""
    made = on_one_engine(2.0)
    rows = sorted(made.after(), key=lambda row: row["start"])
    documents = [rows[8 + 24 * number] for number in range(count)]
    for one in documents:
        one |= {"prompt_tokens": 20_000, "cached_tokens": 0, "prefill_s": 5.0}
        since = one["start"] / 1e9
        for row in rows:
            if row is not one and since < row["start"] / 1e9 < since + 5.0:
                row["first_chunk_s"] += since + 5.0 - row["start"] / 1e9
    return made


def slower_engine(*, api_cpu: float) -> Incident:
    """Prefill and steps take twice as long; who comes waits for the running step for longer."""
    made = quiet()
    made.forget("gpu_sm_clock_mhz", "gpu_throttle", "gpu_temp_c", "gpu_power_w")
    for row in made.after():
        row["prefill_s"] *= 2.0
        row["decode_s"] *= 2.0
        row["first_chunk_s"] += 0.2
        row["first_chunk_frontend_s"] += 0.2
    made.gauge("frontend_time", 0.2, 0.01)
    made.gauge("api_cpu", api_cpu, 0.01)
    return made


def test_bursts_of_others_that_gauges_hardly_meet_are_a_queue():
    """Each request reports how long it waited; the two waits that were read are for capacity."""
    found = bursts_of_others().findings(metric="ttft_s")

    assert next(iter(found)) == "queue_saturation"
    assert found["queue_saturation"].status in SURE
    assert found["lora_slots"].status not in SURE


def test_an_engine_that_serves_others_need_not_have_stopped():
    """None of these requests was in progress: what came out meanwhile is in no row."""
    made = bursts_of_others(4.0)
    alone = bursts_of_others(4.0, served=4.0)
    for one in (made, alone):
        for row in one.after():
            row["first_chunk_s"] += row["queue_s"]
            row["queue_s"] = 0.0
    alone.counters["tokens_out", "vllm-0"] = lambda _t: 300.0
    found, without = (one.findings(metric="ttft_s")["engine_paused"] for one in (made, alone))

    assert found.status not in NAMED
    assert without.status in NAMED


@pytest.mark.parametrize("together", [True, False])
def test_responses_that_stand_still_together_show_an_engine_that_halts(together):
    """So short a halt that hardly a request comes in it, each of another length."""
    made = stalled(together=together)
    found = made.findings(metric="e2e_s")["engine_paused"]

    assert (stalled_together(made.evidence()) is not None) is together
    assert (found.status in SURE) is together


@pytest.mark.parametrize(("count", "named"), [(1, False), (2, True)])
def test_two_far_longer_prompts_are_enough_to_hold_others_up(count, named):
    """What one of them delays may be slow by chance."""
    evidence = two_documents(count).evidence(
        after=Window(AFTER.start, AFTER.start + 26), metric="ttft_s"
    )
    found = {one.id: one for one in causes(evidence)}

    assert (found["head_of_line"].status in SURE) is named


def test_others_tokens_show_a_larger_batch_where_few_samples_do_not():
    """A counter misses nothing between two samples."""
    made = others_answers()
    made.gauge("running", 20.0, 30.0)
    few = made.evidence(
        before=Window(BEFORE.start, BEFORE.start + 15),
        after=Window(AFTER.start, AFTER.start + 15), metric="tpot_s",
    )  # fmt: skip
    found = causes(few)

    assert not few.gauge("running").rose(0.0, 0.2)
    assert (found[0].id, found[0].status) == ("batch_size", "likely")


@pytest.mark.parametrize(("api_cpu", "front_end"), [(0.3, False), (0.97, True)])
def test_a_front_end_that_is_no_busier_waits_for_slower_steps(api_cpu, front_end):
    """A new request waits for the running step, before the engine sees it."""
    found = slower_engine(api_cpu=api_cpu).findings(metric="ttft_s")

    assert (found["frontend_cpu"].status in SURE) is front_end
    assert (next(iter(found)) == "gpu_throttle") is not front_end


def test_fewer_requests_make_none_slower():
    """They are as well supported, and something else got slower."""
    made = slower_engine(api_cpu=0.3)
    made.rows = [row for i, row in enumerate(made.rows)
                 if i % 7 not in (0, 3) or row["start"] < AFTER.start * 1e9]  # fmt: skip
    found = [*made.findings(metric="ttft_s").values()]

    assert found[0].id == "gpu_throttle"


def test_a_wait_that_lasts_through_a_given_window_is_no_start():
    """One at a time since a release; the recording goes on after the window."""
    made = quiet()
    for row in made.rows:
        row |= {"client_s": 0.002, "network_client_wait_s": 0.0, "network_dns_s": 0.0}
    dice = np.random.default_rng(1)
    for row in made.after():
        wait, lookup = 0.6 * float(dice.random()), 0.2 * float(dice.random())
        row |= {"network_client_wait_s": wait, "network_dns_s": lookup}
        row["network_s"] += wait + lookup
    made.events.append(Event(AFTER.start - 10, "deploy", "chat 4.0.1"))
    shorter = made.evidence(after=Window(AFTER.start, AFTER.end - 60), metric="ttft_s")
    found = causes(shorter)

    assert not shorter.ongoing
    assert found[0].id == "client_gate"


def test_time_without_requests_between_windows_is_no_cause_of_slower_ones():
    """Nothing was recorded then; that latency rose for an unknown reason stays the answer."""
    rows = hosted(100)
    later = [row | {"ttft_s": 1.4 * row["ttft_s"], "e2e_s": row["e2e_s"] + 0.3}
             for row in hosted(100, seed=2, start=rows[-1]["start"] / 1e9 + 600)]  # fmt: skip
    begin = rows[0]["start"] / 1e9
    case = case_of([*rows, *later], Window(begin, begin + 198), Window(begin + 800, begin + 1000))
    result = triage(case, QUICK)

    assert "traffic_lost" not in [cause for cause, _ in named(result)]


@pytest.mark.parametrize("stopped", [True, False])
def test_hits_that_left_with_their_sender_are_no_misses(stopped):
    """One of four tenants alone is served from a response cache; others name no cache at all."""
    made = quiet()
    for row in made.rows:
        late = row["start"] >= AFTER.start * 1e9
        if row["tenant"] == "t0":
            row["cache_hit"] = not late
            row.pop("model")
        if row.get("cache_hit"):
            row |= {"queue_s": 0.0, "prefill_s": 0.001, "first_chunk_s": 0.001, "decode_s": 0.002}
    if stopped:
        made.rows = [row for row in made.rows
                     if row["tenant"] != "t0" or row["start"] < AFTER.start * 1e9]  # fmt: skip
    found = next(iter(made.findings(metric="e2e_s").values()))

    assert found.id == ("traffic_lost" if stopped else "response_cache_misses")


@pytest.mark.parametrize(("slower", "named"), [(1.37, True), (1.2, False)])
def test_prompts_and_steps_that_both_take_longer_count_together(slower, named):
    """Neither takes far longer, and no GPU is seen."""
    made = quiet(rate=4.0)
    made.forget("gpu_sm_clock_mhz", "gpu_throttle", "gpu_temp_c", "gpu_power_w")
    for row in made.after():
        row["prefill_s"] *= slower
        row["decode_s"] *= slower
    found = made.findings(metric="tpot_s")

    assert (found["gpu_throttle"].status in NAMED) is named


@pytest.mark.parametrize(("times", "named"), [(4.0, True), (1.0, False)])
def test_slower_steps_are_surer_where_others_get_more_tokens(times, named):
    """So few requests that their time per token alone is not beyond chance."""
    made = others_answers(times)
    dice = np.random.default_rng(3)
    for row in made.rows:
        row["decode_s"] *= float(dice.lognormal(0.0, 0.75))
    evidence = made.evidence(
        before=Window(BEFORE.start, BEFORE.start + 35),
        after=Window(AFTER.start, AFTER.start + 35), metric="tpot_s",
    )  # fmt: skip

    assert not evidence.row("tpot_s").rose(evidence.floor("tpot_s"))
    assert bool(evidence.up("tpot_s")) is named
