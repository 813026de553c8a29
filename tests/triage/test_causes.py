"""Does every rule know its cause, a near miss of it, and what it cannot tell?

The incidents are made by hand, by mechanism, and owe nothing to the simulator.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llmtrace.dataset.case import Window
from llmtrace.triage.causes import RULES
from llmtrace.triage.causes.scoring import moves
from llmtrace.triage.evidence.gone_engines import vanished
from llmtrace.triage.result import CAUSES, NAMED

from . import hand_made
from .incidents import AFTER, BEFORE, TTFT, Incident, quiet

SURE = {"confirmed", "likely"}
Made = Callable[[], Incident]


POSITIVE: dict[str, Made] = {name: getattr(hand_made, name) for name in CAUSES}
NEAR: dict[str, Made] = {name: getattr(hand_made, f"{name}_near") for name in CAUSES}
# What these are seen in, outcomes and numbers of requests, is in any rows.
ALWAYS_KNOWN = ("midstream_errors", "client_give_ups", "traffic_lost", "traffic_surge")
MISSING: dict[str, Made] = {
    name: getattr(hand_made, f"{name}_missing") for name in CAUSES if name not in ALWAYS_KNOWN
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_is_named_first(cause):
    """The textbook incident of a cause puts it on top, with its evidence and what to do."""
    found = POSITIVE[cause]().findings()
    first = next(iter(found.values()))

    assert first.id == cause, report(found)
    assert first.status in SURE, report(found)
    assert first.evidence
    assert first.action


@pytest.mark.parametrize("cause", CAUSES)
def test_a_near_miss_is_not_taken_for_it(cause):
    """What only resembles a cause does not name it with confidence."""
    found = NEAR[cause]().findings()

    assert found[cause].status not in SURE, report(found)


@pytest.mark.parametrize("cause", CAUSES)
def test_rules_take_windows_in_any_order_and_place(cause):
    """Where nothing is before an incident, it is compared with what came after it."""
    alone = Window(AFTER.end + 3600, AFTER.end + 3660)
    for before, after in ((AFTER, BEFORE), (alone, AFTER), (BEFORE, alone), (AFTER, AFTER)):
        made = POSITIVE[cause]()
        made.dead["vllm-0"] = Window(BEFORE.start, AFTER.start)  # it comes later

        assert set(made.findings(before=before, after=after)) == set(RULES)


def test_an_engine_that_comes_later_has_not_vanished():
    """Before its first sample it was not there."""
    made = quiet()
    made.dead["vllm-0"] = Window(BEFORE.start, AFTER.start)

    assert vanished(made.evidence(before=AFTER, after=BEFORE)) == {}


@pytest.mark.parametrize("cause", CAUSES)
def test_no_line_that_reads_the_same_before_and_after_has_points(cause):
    """Whatever the incident, and whatever rule says it."""
    for made in (POSITIVE, NEAR, MISSING):
        found = made[cause]().findings() if cause in made else {}
        points = [point for one in found.values() for point in one.evidence if point.points]

        assert [point.text for point in points if not moves(point.text)] == []


@pytest.mark.parametrize("seen", [0, 3])
def test_a_replica_that_is_gone_is_named_by_what_it_no_longer_gets(seen):
    """Its samples stop, its requests go elsewhere; what it broke had begun before the window."""
    made = quiet()
    made.dead["vllm-1"] = Window(AFTER.start - 20, AFTER.end + 100)
    cut = [row for row in made.rows if row["replica"] == "vllm-1" and row not in made.after()]
    for row in cut[-seen:] if seen else ():
        row |= {"start": int((AFTER.start - 101) * 1e9), "outcome": "truncated"}
        row["decode_s"] = 85.0
    for row in made.after():
        row["replica"] = "vllm-0" if row["replica"] == "vllm-1" else row["replica"]
        row["prefill_s"] *= 2.0

    found = made.findings()

    assert next(iter(found)) == "engine_down", report(found)
    assert found["engine_down"].status == ("confirmed" if seen else "likely"), report(found)
    assert any("→ 0.0 %" in point.text for point in found["engine_down"].evidence)
    assert found["queue_saturation"].status not in SURE


def test_the_gpu_that_fell_is_named_and_no_typical_one():
    """One of three: the figures, and what to drain, are its own."""
    found = hand_made.gpu_throttle().findings()["gpu_throttle"]

    assert "SM clock, MHz on vllm-1 p50 1,9" in found.evidence[1].text
    assert found.action.startswith("Reroute: drain vllm-1,")


def test_a_client_that_reads_its_first_chunks_late_is_busy():
    """However much slower it makes the rest: that is no other's wait for the first chunk."""
    made = quiet()
    for row in made.rows:
        row |= {"client_lag_s": 0.0}
    for row in made.after():
        row["first_chunk_s"] += 0.5
        row |= {"client_lag_s": 0.45, "late_by_s": 0.45}
        row["decode_s"] *= 1.4
    for row in made.after():
        first = sum(row.get(stage, 0.0) for stage in TTFT)
        row["arrived_by_s"] = first - row.pop("late_by_s")

    found = made.findings(metric="ttft_s")

    assert found["busy_client"].status in SURE, report(found)


def test_connections_that_take_long_to_make_are_the_network():
    """Round trips and sending are as ever: the phases that moved are named, and no machine is."""
    made = quiet()
    for row in made.rows:
        row |= {"network_send_s": 0.0003, "network_tls_s": 0.0}
    for row in made.after():
        row["network_tls_s"] = 0.8
        row["network_s"] += 0.8

    found = made.findings()

    assert next(iter(found)) == "network_path", report(found)
    assert any("; TLS p50 0 ms → 800 ms" in one.text for one in found["network_path"].evidence)


def test_drafts_that_are_not_made_are_named():
    """A drafter that finds nothing to go by drafts little, and most of it is accepted."""
    made = hand_made.low_spec_acceptance()
    made.counter("spec_drafted", 40.0)
    made.counter("spec_accepted", 30.0)
    for row in made.rows:
        row.pop("spec_drafted", None), row.pop("spec_accepted", None)

    found = made.findings()

    assert next(iter(found)) == "low_spec_acceptance", report(found)


def test_a_front_end_is_named_where_the_queue_is_counted_from_it():
    """SGLang counts a request as waiting from when the front end has it: that wait is `queue`."""
    made = hand_made.frontend_cpu()
    for row in made.rows:
        row["queue_s"] += row["first_chunk_s"]
        row["first_chunk_s"] = 0.0

    found = made.findings()

    assert next(iter(found)) == "frontend_cpu", report(found)


def test_responses_that_stood_still_together_prove_a_pause():
    """No engine says that it slept; all that was in progress stopped and went on at once."""
    made = hand_made.engine_paused()
    made.forget("sleep", "tokens_out")
    for row in made.rows:
        row["replica"] = "vllm-0"

    found = made.findings()

    assert next(iter(found)) == "engine_paused", report(found)
    assert found["engine_paused"].status == "confirmed", report(found)


@pytest.mark.parametrize("shrinks", [True, False])
def test_prefixes_that_a_smaller_cache_lost_are_its_effect(shrinks):
    """The same tokens fill more of it, or the prompts share no start: one cause, one effect.

    Prefixes are missed from the first request on either way, also while there is room.
    """
    made = hand_made.kv_exhaustion()
    for row in made.rows:
        row["cached_tokens"] = 0.5 * row["prompt_tokens"]
    for row in made.after():
        row["cached_tokens"] = 0.0
    if not shrinks:  # as many run as before, and each holds what it shared
        made.gauge("kv_usage", 0.97, 0.0)
        made.gauge("running", 60.0, 0.0)
    found = made.findings()

    first = "kv_exhaustion" if shrinks else None
    assert shrinks == (next(iter(found)) == first), report(found)


@pytest.mark.parametrize("cause", MISSING)
def test_what_is_not_reported_leaves_it_unknown(cause):
    """Without the data it rests on, a cause is unknown, and says what would settle it."""
    found = MISSING[cause]().findings()

    assert found[cause].status == "unknown", report(found)
    assert found[cause].missing


@pytest.mark.parametrize(
    ("made", "cause"),
    [
        (hand_made.kv_transfer_by_fetches, "kv_transfer"),
        (hand_made.lora_slots_by_slots, "lora_slots"),
    ],
)
def test_the_engines_own_figures_prove_it(made, cause):
    """Where an engine reports fetches or slots, they settle it without a gauge of deferrals."""
    found = made().findings()

    assert next(iter(found)) == cause, report(found)
    assert found[cause].status in SURE, report(found)


def test_a_gateway_that_tells_nothing_is_named_by_what_it_is_not():
    """Time on the way that neither the engine nor bursts explain is likely the gateway's."""
    found = hand_made.gateway_overhead_by_exclusion().findings()

    assert next(iter(found)) == "gateway_overhead", report(found)
    assert found["gateway_overhead"].status == "likely"
    assert found["gateway_overhead"].missing == ()


def test_an_engine_that_dies_is_seen_by_its_requests_alone():
    """Cut together, and refused from then on: no signal is needed for that."""
    found = hand_made.engine_down_by_rows().findings()

    assert next(iter(found)) == "engine_down", report(found)
    assert found["engine_down"].status in SURE


def test_a_timer_that_is_seen_late_is_a_timer():
    """A busy host notices later that a stream was cut, never earlier."""
    found = hand_made.idle_timeout_seen_late().findings()

    assert next(iter(found)) == "idle_timeout", report(found)
    assert found["idle_timeout"].status in SURE
    assert found["midstream_errors"].status not in SURE


def test_a_wait_in_one_s_own_pool_is_no_proxy_that_gathers_chunks():
    """However fast and close together the chunks come that are waited for."""
    found = hand_made.client_gate_and_fewer_at_once().findings()

    assert next(iter(found)) == "client_gate", report(found)
    assert found["proxy_buffering"].status == "ruled_out"


def power_capped(clock: float) -> Incident:
    """Return an incident in which every GPU is at its power limit, and its clock that low."""
    made = quiet()
    made.gauge("gpu_sm_clock_mhz", clock, 20.0)
    made.gauge("gpu_throttle", 4.0)
    return made


def test_a_gpu_that_computes_more_is_at_its_power_limit():
    """Prompts ten times as long lower an H200's clock by a fifth: a consequence."""
    made = power_capped(1600.0)
    for row in made.after():
        row["prompt_tokens"] *= 10
        row["prefill_s"] *= 10
        row["decode_s"] *= 2

    found = made.findings()

    assert next(iter(found)) == "long_prompts", report(found)
    assert found["gpu_throttle"].status not in SURE


def test_a_gpu_is_shared_where_its_clock_explains_little():
    """The same work takes three times as long, and the clock fell by a tenth."""
    made = power_capped(1780.0)
    for row in made.after():
        row["prefill_s"] *= 3
        row["decode_s"] *= 3

    found = made.findings()

    assert next(iter(found)) == "gpu_throttle", report(found)
    assert found["gpu_throttle"].status == "likely"
    assert "another program" in " ".join(one.text for one in found["gpu_throttle"].evidence)
    assert "pmon" in found["gpu_throttle"].action


@pytest.mark.parametrize(("slower", "named"), [(1.2, True), (1.0, False)])
def test_another_program_shows_in_the_memory_of_a_gpu(slower, named):
    """Its clock is at its maximum, and the same work takes longer or does not."""
    made = hand_made.quiet()
    for replica in hand_made.REPLICAS:
        made.gauges["gpu_memory_used", replica] = lambda t, u: 43e9 + 1e7 * u + (
            0.9e9 if t >= hand_made.AFTER.start + 20 else 0.0)  # fmt: skip
    for row in made.after():
        row["prefill_s"] *= slower
        row["decode_s"] *= slower

    found = made.findings()["gpu_throttle"]

    assert (found.status == "confirmed") == named
    assert any("43.0 → 43.9 GB" in one.text for one in found.evidence) == named
    assert ("pmon" in found.action) == named


def test_a_front_end_that_hardly_answers_is_seen_in_few_samples():
    """Two figures that are a thousand times what they ever were need no eight."""
    found = hand_made.frontend_cpu_hardly_sampled().findings()

    assert next(iter(found)) == "frontend_cpu", report(found)


def test_a_process_that_loaded_while_another_served_began_when_it_took_over():
    """Its start is a minute earlier, and under its name requests were served by the one before."""
    made = hand_made.quiet()
    loaded = hand_made.AFTER.start
    made.gauges["started", "vllm-2"] = lambda t, _: loaded - 60 if t >= loaded else 1.6e9
    for row in made.after():
        age = row["start"] / 1e9 - loaded
        if row["replica"] == "vllm-2" and age < 110:
            row["first_chunk_s"] += 4.0 * (1 - age / 120)

    assert made.findings()["cold_start"].status in NAMED


@pytest.mark.parametrize("seed", range(6))
def test_a_quiet_day_names_nothing(seed):
    """Nothing is wrong, and no cause is said to be likely."""
    found = quiet(seed).findings()

    assert not [one.id for one in found.values() if one.status in SURE], report(found)


def test_every_cause_of_the_contract_has_a_rule():
    """The rules are those of the contract, and no others."""
    assert sorted(RULES) == sorted(CAUSES)


def report(found) -> str:
    """Say what was found, for a failure's message."""
    lines = []
    for one in list(found.values())[:5]:
        lines.append(f"{one.status} {one.id} {one.score}")
        lines += [f"    {p.points:+} {p.text}" for p in (*one.evidence, *one.against)]
        lines += [f"    ? {text}" for text in one.missing]
    return "\n" + "\n".join(lines)


def test_a_full_cache_is_said_with_what_fits_into_it():
    """How many requests of now fit, how many of before; nothing where its size is not known."""
    made = hand_made.kv_exhaustion()
    for row in made.rows:
        row["prompt_tokens"], row["output_tokens"] = 1000, 200
    for row in made.after():
        row["prompt_tokens"] = 4600
    unknown = made.findings()["kv_exhaustion"]
    made.facts["vllm-1"] |= {"kv_cache_blocks": 6000, "block_size": 16}
    found = made.findings()["kv_exhaustion"]

    [said] = [one for one in found.evidence if "holds" in one.text]
    assert said.points == 0
    assert said.text == (
        "the KV cache of vllm-1 holds 96,000 tokens: 20 requests of these lengths (mean 4,800 "
        "tokens, p95 4,800), 80 of those before (mean 1,200; prompts are 3,600 longer now); "
        "18 ran and 9 waited"
    )
    assert (found.status, found.score) == (unknown.status, unknown.score)
    assert not any("holds" in one.text for one in unknown.evidence)
