"""Are causes that look alike distinguished by what only one of them does?

Each incident is made by hand, after one that a real vLLM had.
"""

from __future__ import annotations

import numpy as np
import pytest

from llmtrace.triage.causes.ended_streams import midstream_errors
from llmtrace.triage.causes.network import network_path, reader_away
from llmtrace.triage.evidence.engine_halts import in_halts
from llmtrace.triage.evidence.inside_engines import slow_front_end

from .hand_made import head_of_line, proxy_buffering, slow_queue
from .incidents import AFTER, REPLICAS, Incident, quiet

SURE = ("confirmed", "likely")
HALTS = (AFTER.start + 30, AFTER.start + 100, AFTER.start + 160)
HALT_S = 6.0


def blocked_loop() -> Incident:
    """A loop is blocked in each response: chunks pile up, and others' wait to be noticed."""
    made = quiet()
    dice = np.random.default_rng(1)
    for row in made.rows:
        row |= {"client_lag_s": 0.0, "held_before_s": 0.0}
    for row in made.after():
        lag = float(dice.exponential(0.5))
        row["first_chunk_s"] += lag
        row["unattributed_s"] += 0.6  # held before the first chunk
        row |= {"client_lag_s": lag, "held_before_s": 0.6, "render_s": 0.6}
        row["decode_s"] -= min(0.6 + lag, 0.9 * row["decode_s"])  # what came meanwhile is there
        row["burst_chunks"] = int(0.8 * row["chunks"])
    return made


def halted(*, long_ones: bool = False) -> Incident:
    """Engines halt three times between responses; none is in progress then."""
    made = quiet(rate=6.0)
    for row in made.rows:
        row |= {"output_tokens": 4, "decode_s": 0.05, "chunks": 4}
    for row in made.rows[::15] if long_ones else ():
        row |= {"prompt_tokens": 2_000, "cached_tokens": 0}
    for row in made.after():
        t = row["start"] / 1e9
        begin = next((one for one in HALTS if one <= t < one + HALT_S), None)
        if begin is not None:
            row["first_chunk_s"] += begin + HALT_S - t
    made.forget("sleep", "tokens_out")
    return made


def cut_at_once(*, started: bool = True) -> Incident:
    """A hop dies: all streams through it break at one instant, and no engine does."""
    made = quiet()
    dies = AFTER.start + 60
    for row in made.after():
        t = row["start"] / 1e9
        if t < dies < t + 2.0:
            row |= {"outcome": "error", "never_answered": True, "first_chunk_s": 0.0}
            spent = sum(row[f"{one}_s"] for one in ("network", "gateway", "queue", "prefill"))
            row["unattributed_s"] = max(dies - t - spent, 0.0)
            row.pop("finish_reason")
    if not started:
        made.forget("started")
    return made


def test_a_blocked_loop_is_no_proxy():
    """Chunks came at once, because they were not read before."""
    found = blocked_loop().findings(metric="ttft_s")

    assert next(iter(found)) == "busy_client"
    assert found["busy_client"].status == "confirmed"
    assert found["proxy_buffering"].status not in SURE


def test_a_proxy_that_gathers_is_no_blocked_loop():
    """The client is free: it reads each burst as it comes."""
    made = proxy_buffering()
    for row in made.rows:
        row |= {"client_lag_s": 0.0, "held_before_s": 0.0}
    found = made.findings()

    assert next(iter(found)) == "proxy_buffering"
    assert found["proxy_buffering"].status == "confirmed"
    assert found["busy_client"].status not in SURE
    assert reader_away(made.evidence()) < 0.1


def test_a_lag_that_a_slow_engine_brings_about_is_not_its_cause():
    """Where chunks come late, each is read a little late as well."""
    made = quiet()
    for row in made.rows:
        row["client_lag_s"] = 0.001
    for row in made.after():
        row |= {"client_lag_s": 0.3, "decode_s": 2 * row["decode_s"]}

    assert made.findings(metric="tpot_s")["busy_client"].status not in SURE


def test_halts_without_any_stream_are_told_by_the_slow_requests():
    """Most of the slow ones came while an engine stood still."""
    made = halted()
    slow, every = in_halts(made.evidence())

    assert slow > 0.5 > every
    assert next(iter(made.findings())) == "engine_paused"


def test_a_long_prompt_that_waits_itself_holds_nobody_up():
    """It is computed at the end of a halt, as all others are."""
    found = halted(long_ones=True).findings()

    assert next(iter(found)) == "engine_paused"
    assert found["head_of_line"].status not in SURE


def test_streams_that_break_at_one_instant_are_cut_by_a_hop():
    """Every engine goes on, so that it is none of them."""
    found = cut_at_once().findings()
    cause = found["midstream_errors"]

    assert next(iter(found)) == "midstream_errors"
    assert cause.status == "confirmed"
    assert "every engine went on" in " ".join(point.text for point in cause.evidence)


def test_that_no_engine_died_is_not_taken_for_granted():
    """Where nothing says when engines started, one of them may have."""
    assert midstream_errors(cut_at_once(started=False).evidence()).status != "confirmed"


def test_a_machine_without_time_to_connect_is_no_longer_way():
    """A round trip takes as long as ever."""
    made = quiet()
    for row in made.after():
        row["network_connect_s"] = 1.5
        row["network_s"] += 1.5

    assert network_path(made.evidence()).status not in SURE


def test_connections_that_are_not_kept_take_a_round_trip_more():
    """Each request connects anew, and that takes no longer than it did."""
    made = quiet()
    for row in made.rows[::10]:
        row["network_connect_s"] = row["network_rtt_s"]
    for row in made.after():
        row["network_connect_s"] = row["network_rtt_s"]
        row["network_s"] += 3 * row["network_rtt_s"]

    against = [point.text for point in network_path(made.evidence()).against]
    assert not any("round trip" in text for text in against)


def test_few_samples_of_a_front_end_are_decided_by_the_status_line():
    """It comes before any token is computed: only the front end can make it late."""
    late, early = quiet(), quiet()
    for made in (late, early):
        for row in made.rows:
            row["answered_s"] = 0.01
        made.forget_rows("first_chunk_frontend_s")
        for replica in REPLICAS[1:]:
            del made.gauges["frontend_time", replica]
        was = made.gauges["frontend_time", REPLICAS[0]]
        made.gauges["frontend_time", REPLICAS[0]] = lambda t, u, was=was: (
            (0.003 if t % 25 else 0.1) if t >= AFTER.start else was(t, u)
        )
    for row in late.after():
        row["answered_s"] = 0.04

    assert slow_front_end(late.evidence())
    assert not slow_front_end(early.evidence())


@pytest.mark.parametrize(("slow", "status"), [("vllm-1", "confirmed"), ("vllm-2", "possible")])
def test_a_replica_that_gets_more_is_to_blame_for_its_own_waits_alone(slow, status):
    """A new tenant's requests all go to one replica, which has room for them."""
    made = quiet(rate=6.0)
    for number, row in enumerate(made.after()):
        if number % 2:
            row["replica"] = "vllm-1"
    slow_queue(made, 1.5, slow)

    assert made.findings()["replica_imbalance"].status == status


@pytest.mark.parametrize(("longer", "proved"), [(0.0, True), (0.4, False)])
def test_prompts_that_got_longer_by_and_large_prove_no_few_that_block(longer, proved):
    """Short ones wait for long ones then, too; that some are very long is not the matter."""
    made = head_of_line()
    dice = np.random.default_rng(3)
    for row in made.after():
        if dice.random() < longer:
            row["prompt_tokens"] = 2 * max(row["prompt_tokens"], 1600)

    found = made.findings(metric="ttft_s")["head_of_line"]

    assert (found.status == "confirmed") == proved


@pytest.mark.parametrize("dies", [False, True])
def test_errors_while_every_engine_goes_on_are_of_what_answers_before_them(dies):
    """A gateway at its own limit says 503 as well; an engine that was restarted explains it."""
    made = quiet()
    for row in list(made.after())[::5]:
        row |= {"outcome": "error", "http_status": 503, "never_answered": True}
        row |= {"queue_s": 0.0, "prefill_s": 0.0, "first_chunk_s": 0.0}
        row.pop("finish_reason")
    if dies:
        started = AFTER.start + 30
        made.gauges["started", "vllm-1"] = lambda t, _: started if t >= started else 1.6e9
    found = made.findings()

    assert next(iter(found)) == ("engine_down" if dies else "provider_errors")
    assert (found["provider_errors"].status in SURE) is not dies
    assert "what answers before the engines" in found["provider_errors"].action


def waits_for_a_slot() -> Incident:
    """Requests wait in their client before they are sent."""
    made, dice = quiet(), np.random.default_rng(7)
    for row in made.rows:
        row["client_s"] = 0.0
    for row in made.after():
        row["client_s"] = float(dice.exponential(1.5))
        row["unattributed_s"] += row["client_s"]
    return made


def test_a_wait_for_a_semaphore_is_not_everything_else_that_got_slower():
    """It is in no stage of the network, and all of what was added."""
    found = waits_for_a_slot().findings(metric="ttft_s")

    assert next(iter(found)) == "client_gate"
    assert found["client_gate"].status == "confirmed"
    assert not any("got slower too" in point.text for point in found["client_gate"].against)


@pytest.mark.parametrize(("queues", "named"), [(["vllm-1"], True), (REPLICAS, False)])
def test_a_larger_share_counts_sooner_where_only_that_replica_has_a_queue(queues, named):
    """A share of 31 % and then 49 % of 120 requests may be chance, if all replicas queue."""
    made = quiet(rate=0.6)
    for row in made.rows:
        row["queue_s"] = 0.0
    for number, row in enumerate(made.after()):
        if number % 4 == 0:
            row["replica"] = "vllm-1"
    for number, row in enumerate(row for row in made.after() if row["replica"] in queues):
        row["queue_s"] = 3.0 * (number % 3 == 0)

    found = made.findings(metric="ttft_s")["replica_imbalance"]

    assert (found.status in SURE) is named
