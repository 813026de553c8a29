"""Are causes named where little is known, and none by what says nothing?

Each incident is made by hand, after one of another simulator's that was called wrongly.
"""

from __future__ import annotations

import numpy as np
import pytest

from . import hand_made
from .incidents import AFTER, REPLICAS, quiet

SURE = ("confirmed", "likely")


def test_a_queue_that_few_samples_meet_is_seen():
    """A gauge that is mostly 0 says how often it is not."""
    made = quiet()
    made.gauge("waiting", 0.0)
    made.gauge("running", 8.0)
    for replica in REPLICAS:
        made.gauges["waiting", replica] = lambda t, u: float(t >= AFTER.start and u > 1.2)
        made.facts[replica] = {**made.facts.get(replica, {}), "max_num_seqs": 8}
    for row in list(made.after())[::5]:
        row["unattributed_s"] += 1.5
    made.forget_rows("queue_s")

    assert made.findings(metric="ttft_s")["queue_saturation"].status == "confirmed"


def test_longer_prompts_of_which_as_much_is_cached_are_no_cache_that_broke():
    """The engines' counters say so as well as the requests do."""
    made = hand_made.long_prompts()
    made.counter("prefix_queries", 5000.0)
    made.forget_rows("cached_tokens")

    assert made.findings()["prefix_cache_collapse"].status == "ruled_out"


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("broken", [True, False])
def test_another_mix_of_prefixes_is_no_cache_that_broke(named, broken):
    """Half as many requests have the long prefix, which each of them still finds; or does not."""
    made = quiet()
    for number, row in enumerate(made.rows):
        searches = number // 4 % 4 < (3 if row["start"] < AFTER.start * 1e9 else 1 + broken * 2)
        row["route"] = ("search" if searches else "chat") if named else None
        # Without a name for it, only lengths show that it is another kind of request.
        row["prompt_tokens"] = 2000 + number % 50 if searches else 5000 + number % 50
        row["cached_tokens"] = (0 if broken and row["start"] >= AFTER.start * 1e9 else
                                1800 if searches else 100)  # fmt: skip
        row["prefill_s"] = 0.02 + 0.0003 * (row["prompt_tokens"] - row["cached_tokens"])
    made.forget("prefix_hits", "prefix_queries")
    if not named:
        made.forget_rows("tenant", "model")

    status = made.findings(metric="ttft_s")["prefix_cache_collapse"].status
    assert status == ("confirmed" if broken else "ruled_out")


def test_a_cache_that_shrank_is_no_load():
    """More requests come, and a small part of what the cache used to hold fills it."""
    made = quiet(after_rate=2.6)
    hand_made.slow_queue(made, 2.0)
    made.gauge("kv_usage", 0.98, 0.01)
    made.gauge("waiting", 9.0, 1.0)

    found = made.findings()

    assert next(iter(found)) == "kv_exhaustion"
    assert found["queue_saturation"].status not in SURE


def test_processes_that_start_all_the_time_are_cold_all_the_time():
    """Those that wait open a connection; a pool that is too small opens none."""
    made = quiet()
    for row in made.rows:
        row |= {"version": "1", "client_s": 0.0, "network_connect_s": 0.0}
    for number, row in enumerate(made.after()):
        row["version"] = "2"
        if number % 5 == 0:
            row |= {"client_s": 0.7, "network_connect_s": 0.05, "network_tls_s": 0.5,
                    "network_s": row["network_s"] + 0.55}  # fmt: skip
            row["unattributed_s"] += 0.7

    assert next(iter(made.findings())) == "client_cold"


@pytest.mark.parametrize("together", [True, False])
def test_a_limit_of_a_client_makes_requests_wait_while_many_are_in_progress(together):
    """What makes as many wait at any time is none, though they wait in the client as well."""
    made = quiet(rate=4.0)
    dice = np.random.default_rng(5)
    made.rows += [
        {**row, "start": row["start"] + 7_000_000 * n}
        for row in made.after() if (row["start"] / 1e9 - AFTER.start) % 20 < 4
        for n in (1, 2, 3)
    ]  # fmt: skip
    for row in made.rows:
        row |= {"client": "web", "client_s": 0.0}
    for row in made.after():
        crowded = (row["start"] / 1e9 - AFTER.start) % 20 < 4
        if crowded if together else dice.random() < 0.5:
            row["client_s"] = 1.0 + float(dice.random())
            row["unattributed_s"] += row["client_s"]

    status = made.findings(metric="ttft_s")["client_gate"].status
    assert (status == "confirmed") is together


def test_where_every_request_connects_none_is_left_to_compare_with():
    """Connections that are no longer kept are no process that starts."""
    made = quiet()
    for row in made.rows:
        row |= {"version": "1", "client_s": 0.0, "network_connect_s": 0.0}
    for row in made.after():
        row |= {"version": "2", "client_s": 0.7, "network_connect_s": 0.05}
        row["network_s"] += 0.05
        row["unattributed_s"] += 0.7

    assert made.findings()["client_cold"].status != "confirmed"


def test_as_many_chunks_as_ever_do_not_rule_a_buffer_out():
    """What came at once is not counted; the first came late, and the last when it ever did."""
    made = hand_made.proxy_buffering()
    made.forget_rows("burst_chunks")

    assert made.findings(metric="ttft_s")["proxy_buffering"].status == "likely"


def test_responses_that_stood_still_for_the_same_time_show_a_pause():
    """Too few requests come while an engine sleeps to see that none is answered."""
    made = quiet(rate=0.4)
    dice = np.random.default_rng(1)
    for row in made.rows:
        row["max_gap_s"] = 0.05 + 0.02 * float(dice.random())
    for row in list(made.after())[::3]:
        row["max_gap_s"] = 5.0 + 0.1 * float(dice.random())
        row["decode_s"] += 5.0
    made.forget("sleep", "tokens_out")
    made.forget_rows("replica")

    cause = made.findings()["engine_paused"]

    assert cause.status in SURE
    assert any("responses stood still for 5.0" in point.text for point in cause.evidence)


@pytest.mark.parametrize(("coarse", "status"), [(True, "confirmed"), (False, "ruled_out")])
def test_a_wait_that_may_be_chance_rules_nothing_out_where_little_would_be_seen(coarse, status):
    """Streams are off for half: how late the first content is takes more requests to see."""
    made = quiet(rate=0.3)
    for row in made.rows:
        row["stream"] = 1
    for row in list(made.after())[::2]:
        row["stream"] = 0
        row["first_chunk_s"] += 0.05

    found = made.findings(metric="ttft_s", coarse=coarse)

    assert found["streaming_off"].status == status
