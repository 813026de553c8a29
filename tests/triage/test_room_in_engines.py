"""Is what requests wait for distinguished from a lack of room, and from what fills it?

Each incident is made by hand: slots of the batch, of adapters, and the KV cache.
"""

from __future__ import annotations

import pytest

from . import hand_made
from .incidents import AFTER, BEFORE, REPLICAS, Incident, quiet

SURE = ("confirmed", "likely")


def wait(models: int, *, full: bool = False) -> Incident:
    """Requests queue, for one of so many models where there were two; a batch holds 64."""
    made = quiet()
    hand_made.slow_queue(made, 1.0)
    made.forget("waiting_deferred")
    made.gauge("waiting", 4.0, 1.0)
    if full:
        made.gauge("running", 64.0)
    for number, row in enumerate(made.rows):
        row["model"] = f"adapter-{number % (models if row in made.after() else 2)}"
    return made


def preempted(kv_usage: float) -> Incident:
    """Requests are preempted, while the KV cache is this full at most."""
    made = quiet()
    hand_made.slow_queue(made, 0.3)
    made.gauge("kv_usage", kv_usage, 0.01)
    made.counter("preemptions", 0.3)
    return made


def filled(made: Incident) -> Incident:
    """Fill the KV cache by what requests have become, as many of them as before."""
    hand_made.slow_queue(made, 0.6)
    made.gauge("kv_usage", 0.98, 0.005)
    made.gauge("waiting", 4.0, 1.0)
    made.gauge("running", 20.0, 1.0)
    made.counter("preemptions", 0.1)
    return made


def fewer_hits(*, before_too: bool) -> Incident:
    """Prefix hits fall, or are as few as they were twice before; prefill takes longer."""
    made = quiet()
    made.forget_rows("cached_tokens")
    for replica in REPLICAS:
        made.counters["prefix_hits", replica] = lambda t: (
            900.0 if t >= AFTER.start or (before_too and (t - BEFORE.start) // 33 % 3 == 1)
            else 1250.0
        )  # fmt: skip
    for row in made.after():
        row["prefill_s"] *= 1.5
    return made


def test_more_models_in_demand_than_before_wait_for_a_slot_each():
    """The batch has room, so that it is none of its slots."""
    found = wait(models=6).findings(metric="ttft_s")

    assert next(iter(found)) == "lora_slots"
    assert found["lora_slots"].status in SURE
    assert found["kv_transfer"].status not in SURE


@pytest.mark.parametrize(("models", "full"), [(2, False), (6, True)])
def test_as_many_models_as_before_or_a_full_batch_are_no_lack_of_slots_for_adapters(models, full):
    """Either explains it otherwise."""
    found = wait(models, full=full).findings(metric="ttft_s")

    assert found["lora_slots"].status not in SURE


@pytest.mark.parametrize(("full", "status"), [(False, "unknown"), (True, "confirmed")])
def test_requests_that_wait_though_a_batch_has_room_are_no_saturation(full, status):
    """Whatever they wait for, it is no slot."""
    found = wait(2, full=full).findings(metric="ttft_s")["queue_saturation"]

    assert found.status == status
    assert any("though there is room" in one.text for one in found.against) is not full


@pytest.mark.parametrize(("kv_usage", "status"), [(0.3, "ruled_out"), (0.7, "confirmed")])
def test_preemptions_in_an_empty_cache_are_no_exhaustion(kv_usage, status):
    """They make room in it: what had enough was preempted for something else."""
    assert preempted(kv_usage).findings()["kv_exhaustion"].status == status


@pytest.mark.parametrize("work", ["long_prompts", "longer_outputs"])
def test_a_cache_that_longer_requests_fill_is_the_workloads(work):
    """It is as large as ever: a full one is what they make of it."""
    found = filled(getattr(hand_made, work)()).findings()

    assert next(iter(found)) == work
    assert found["kv_exhaustion"].status == "possible"
    assert any(f"follow from {work}" in one.text for one in found["kv_exhaustion"].against)


def test_a_cache_that_shrank_is_not_filled_by_longer_requests():
    """Prompts are longer as well, and far less than what used to fit fills it now."""
    made = filled(hand_made.long_prompts())
    made.gauge("running", 2.0, 0.2)

    assert made.findings()["kv_exhaustion"].status == "confirmed"


@pytest.mark.parametrize("before_too", [True, False])
def test_prefix_hits_fall_only_beyond_stretches_before(before_too):
    """Prompts differ from hour to hour: as few hits as now and then before are none of a cache."""
    found = fewer_hits(before_too=before_too).findings(metric="ttft_s")["prefix_cache_collapse"]

    assert (found.status == "confirmed") is not before_too


def test_lengths_are_those_of_requests_that_an_engine_computed():
    """A response cache answered the short ones, and no longer does: no prompt got longer."""
    made = quiet()
    for number, row in enumerate(made.rows):
        row["cache_hit"] = number % 10 < (1 if row in made.after() else 6)
        if row["cache_hit"]:
            row |= {"prompt_tokens": 100, "cached_tokens": 0, "output_tokens": 20, "chunks": 20,
                    "queue_s": 0.0, "prefill_s": 0.001, "first_chunk_s": 0.001,
                    "decode_s": 0.002}  # fmt: skip
    found = made.findings()

    assert next(iter(found)) == "response_cache_misses"
    assert {found[one].status for one in ("long_prompts", "longer_outputs")} == {"ruled_out"}
