"""Does a rule hold where a cause shows in another way than in its textbook incident?

Each was wrong, or unnamed, on incidents that others made.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from llmtrace.dataset.case import Event, Window
from llmtrace.triage.causes import causes
from llmtrace.triage.evidence import inside_engines
from llmtrace.triage.result import NAMED, SURE

from . import hand_made
from .incidents import AFTER, BEFORE, REPLICAS, TTFT, Incident, quiet


def _cut_where_long(made: Incident, limit_s: float, **ending: object) -> Incident:
    """End what would have taken longer than this."""
    for row in made.after():
        if row["decode_s"] > limit_s:
            row |= {"unattributed_s": limit_s, "never_answered": True, **ending}
            row.pop("finish_reason", None)
    return made


def test_a_deadline_that_about_as_many_exceeded_before_is_the_client_s_own() -> None:
    """Nothing hangs: those that time out are those that always took longer."""
    made = quiet()
    usual = float(np.percentile([row["decode_s"] for row in made.rows], 96))

    found = _cut_where_long(made, usual, outcome="timeout").findings()

    assert next(iter(found)) == "client_give_ups"
    assert found["provider_errors"].status not in SURE


def test_a_hop_that_allows_less_than_answers_always_took_is_an_idle_time_out() -> None:
    """Its 504 looks like one of the server's."""
    made = quiet()
    for row in made.rows:
        row["first_chunk_s"] += 4.0 if row["start"] % 7 == 0 else 0.0
    for row in made.after():
        if row["first_chunk_s"] > 3:
            row |= {"outcome": "error", "http_status": 504, "never_answered": True,
                    "first_chunk_s": 2.9, "decode_s": 0.0, "queue_s": 0.01,
                    "prefill_s": 0.1}  # fmt: skip
            row.pop("finish_reason", None)

    found = made.findings()

    assert next(iter(found)) == "idle_timeout"
    assert "waited longer before" in found["idle_timeout"].evidence[1].text


def test_what_is_left_when_an_engine_is_taken_away_gets_no_more_than_its_share() -> None:
    """There are fewer seats: that is no routing."""
    made = quiet()
    made.events.append(Event(AFTER.start - 1, "scale", "3 to 2 replicas"))
    for row in made.after():
        row["replica"] = "vllm-0" if row["replica"] == "vllm-2" else row["replica"]
        row["queue_s"] += 1.0

    assert made.findings()["replica_imbalance"].status not in NAMED


def test_an_engine_that_keeps_its_requests_longer_at_the_clock_it_had_stands_out() -> None:
    """It gets its share, and no GPU is slower: something else on its host is."""
    made = quiet()
    made.gauge("running", 30.0, 1.0, "vllm-1")
    for row in made.after():
        if row["replica"] == "vllm-1":
            row["prefill_s"] *= 3
            row["decode_s"] *= 3

    found = made.findings()

    assert next(iter(found)) == "replica_imbalance"


def test_an_engine_that_hardly_gets_requests_while_some_fail_is_down_without_signals() -> None:
    """The router has left it out."""
    made = quiet()
    made.gauges.clear()
    made.counters.clear()
    for i, row in enumerate(made.after()):
        if row["replica"] == "vllm-2":
            row["replica"] = "vllm-1"
        if i % 25 == 0:
            row |= {"outcome": "error", "http_status": 503, "never_answered": True,
                    "replica": "vllm-2", "decode_s": 0.0}  # fmt: skip
            row.pop("finish_reason", None)

    assert made.findings()["engine_down"].status in SURE


def test_a_route_that_stops_is_lost_however_its_requests_came() -> None:
    """They came in bursts, but always, and made a third of all: the number of all tells little."""
    made = quiet()
    _to_a_route(made, "/report", lambda t: 0.6 if int(t / 40) % 2 else 0.1)
    made.rows = [row for row in made.rows
                 if row["start"] < AFTER.start * 1e9 or row["route"] != "/report"]  # fmt: skip

    found = made.findings()

    assert next(iter(found)) == "traffic_lost"
    assert found["traffic_lost"].status in SURE
    assert found["traffic_lost"].group == {"route": "/report"}


def test_a_route_whose_own_requests_take_longer_is_not_lost() -> None:
    """Who waits sends fewer."""
    made = quiet()
    _to_a_route(made, "/report", lambda _t: 0.4)
    kept = []
    for number, row in enumerate(made.rows):
        if row["start"] >= AFTER.start * 1e9 and row["route"] == "/report":
            row["queue_s"] += 5.0
            if number % 4:
                continue
        kept.append(row)
    made.rows = kept

    found = made.findings(metric="ttft_s")

    assert found["traffic_lost"].status not in SURE


@pytest.mark.parametrize(("slower_s", "lost"), [(0.5, True), (16.0, False)])
def test_who_waits_sends_fewer_by_no_more_than_it_takes_longer(
    slower_s: float, lost: bool
) -> None:
    """A quarter of the requests come: none of those that wait a little longer kept the others."""
    made = quiet(after_rate=0.5)
    for row in made.after():
        row["queue_s"] += slower_s

    found = made.findings(metric="ttft_s")["traffic_lost"]

    assert (found.status in NAMED) is lost
    assert any("send fewer" in one.text for one in found.against) is not lost


def test_one_tenant_that_asks_four_times_as_much_is_a_surge_of_its_own() -> None:
    """All together are half as many again, for which the others wait."""
    made = quiet(after_rate=3.0)
    _to_a_route(made, "/batch", lambda t: 0.5 if t >= AFTER.start else 0.17)

    found = made.findings()

    assert next(iter(found)) == "traffic_surge"
    assert found["traffic_surge"].status == "confirmed"


@pytest.mark.parametrize("own", [True, False])
def test_who_is_overtaken_waits_for_a_grammar_of_its_own(own: bool) -> None:
    """There are seats and nothing stands still: later requests are let in before, or none is."""
    made = quiet(rate=6.0)
    for row in made.after():
        second = row["start"] / 1e9 % 10
        if own and row["tenant"] == "t0":
            row["queue_s"] += 0.9
        elif not own and second < 2:
            row["queue_s"] += 2 - second
    made.forget("lora_slots_used", "lora_slots", "kv_fetch", "waiting_deferred")
    made.counters |= {
        ("external_prefix_queries", one): lambda _t: 0.0 for one in ("vllm-0", "vllm-1", "vllm-2")
    }

    found = made.findings(metric="ttft_s")

    assert (next(iter(found)) == "grammar_compilation") is own
    assert (found["grammar_compilation"].status in NAMED) is own


def test_a_counter_is_compared_over_as_long() -> None:
    """As much is compiled a second as before; only the window is eight times as long."""
    made = hand_made.grammar_compilation()
    made.forget("waiting_grammar")
    for replica in ("vllm-0", "vllm-1", "vllm-2"):
        made.counters["grammar_compile_sum", replica] = lambda _t: 0.4
    before = Window(BEFORE.end - AFTER.seconds / 8, BEFORE.end)

    assert made.evidence(before=before).counted_in_equal_time("grammar_compile_sum") == (
        pytest.approx(3 * 0.4 * AFTER.seconds, rel=0.2), pytest.approx(
            3 * 0.4 * AFTER.seconds, rel=0.1))  # fmt: skip
    found = {one.id: one for one in causes(made.evidence(before=before))}
    assert found["grammar_compilation"].status not in SURE


def test_streams_that_break_at_one_age_while_they_deliver_are_cut_by_a_timer() -> None:
    """Their last chunk came just before: it is no silence that the timer waits for."""
    made = quiet()
    dice = np.random.default_rng(4)
    for row in made.after():
        if dice.random() < 0.1:
            ttft = sum(row[f"{one}_s"] for one in ("network", "gateway", "queue", "prefill",
                                                   "first_chunk"))  # fmt: skip
            age = 10.0 + float(dice.uniform(0, 0.05))
            row |= {"decode_s": age - ttft, "render_s": 0.0, "outcome": "truncated",
                    "last_content_s": age - 0.0001}  # fmt: skip
            row.pop("finish_reason")

    found = made.findings()

    assert next(iter(found)) == "idle_timeout"
    assert found["midstream_errors"].status not in SURE


def test_an_engine_that_may_run_fewer_since_its_restart_is_full_and_not_cold() -> None:
    """It ran ten at once before, and four now: that does not end when it is warm."""
    made = quiet()
    made.gauge("running", 4.0)
    made.gauge("waiting", 6.0, 1.0)
    for name in made.facts:
        made.facts[name]["max_num_seqs"] = 4
        made.gauges["started", name] = lambda t, _u: (
            AFTER.start - 1 if t >= AFTER.start else BEFORE.start - 9999
        )
    for key in [key for key in made.gauges if key[0] == "running"]:
        was = made.gauges[key]
        made.gauges[key] = lambda t, u, was=was: 10.0 if t < AFTER.start else was(t, u)
    for row in made.after():
        row["queue_s"] += 2.0 if row["start"] / 1e9 < AFTER.start + 0.6 * AFTER.seconds else 0.0

    found = made.findings(metric="ttft_s")

    assert next(iter(found)) == "queue_saturation"
    assert found["cold_start"].status not in SURE


def test_what_is_sent_again_after_no_answer_was_not_served() -> None:
    """The SDK tries again, so that no request fails: each of these has waited for it."""
    made = hand_made.hosted(quiet())
    dice = np.random.default_rng(5)
    for row in made.after():
        if dice.random() < 0.15:
            row |= {"attempts": 2, "retry_s": 3.0, "network_s": row["network_s"] + 3.0}

    found = made.findings(metric="ttft_s")

    assert next(iter(found)) == "provider_errors"


def test_a_key_that_the_provider_rejects_is_an_error_of_the_provider_s_own() -> None:
    """401 is neither a limit nor a fault of an engine."""
    made = hand_made.hosted(quiet())
    for i, row in enumerate(made.after()):
        if i % 4 == 0:
            row |= {"outcome": "error", "http_status": 401, "error_type": "authentication_error",
                    "never_answered": True}  # fmt: skip

    assert made.findings(metric="ttft_s")["provider_errors"].status == "confirmed"


@pytest.mark.parametrize("late", [True, False])
def test_a_wait_for_a_loop_that_reads_as_late_is_no_limit(late: bool) -> None:
    """The same loop sends and reads; a limit delays only what it keeps waiting."""
    made = hand_made.hosted(quiet())
    dice = np.random.default_rng(8)
    for row in made.rows:
        row |= {"client_s": 0.002, "client_lag_s": 0.002}
    for row in made.after():
        wait, lag = dice.uniform(0.0, 0.4, 2)
        row["client_s"] += wait
        row["unattributed_s"] += wait
        if late:
            row["client_lag_s"] += lag
            row["first_chunk_s"] += lag

    first = next(iter(made.findings(metric="ttft_s")))

    assert first == ("busy_client" if late else "client_gate")


@pytest.mark.parametrize("connects", [True, False])
def test_a_new_version_whose_requests_wait_on_open_connections_has_a_limit(
    connects: bool,
) -> None:
    """A process that starts has no connection; one whose pool is small reuses what it has."""
    made = hand_made.client_cold()
    for row in made.rows:
        row |= {"network_connect_s": 0.0, "network_tls_s": 0.0}
    slow = [row for row in made.after() if row["client_s"] > 0]
    for row in slow:
        row["network_connect_s"] = 0.02 if connects else 0.0
        row["network_s"] -= 0.48 if connects else 0.5

    found = made.findings(metric="ttft_s")

    assert (next(iter(found)) == "client_cold") is connects
    assert (found["client_cold"].status in NAMED) is connects
    assert not [one for one in found["client_cold"].evidence if "a limit" in one.text]


def test_where_engines_prefill_and_others_decode_transfers_are_between_them() -> None:
    """The engine that decodes defers requests until their blocks are there."""
    made = hand_made.kv_transfer()
    for replica, role in zip(REPLICAS, ("kv_producer", "kv_consumer", "kv_consumer"), strict=True):
        made.facts[replica]["kv_role"] = role
        made.counters["kv_transfer_time_count", replica] = lambda _: 1.0
        made.counters["kv_transfer_time_sum", replica] = lambda t: (
            0.9 if t >= AFTER.start else 0.02
        )

    found = made.findings(metric="ttft_s")

    assert next(iter(found)) == "disaggregated_kv"
    assert found["disaggregated_kv"].status in SURE
    assert found["kv_transfer"].status not in SURE


@pytest.mark.parametrize("connector", [True, False])
def test_what_is_deferred_without_a_connector_waits_for_a_grammar(connector: bool) -> None:
    """There is one model, so that none waits for an adapter."""
    made = hand_made.kv_transfer()
    for row in made.rows:
        row["model"] = "llama"
    for facts in made.facts.values():
        if not connector:
            del facts["kv_connector"]

    found = made.findings(metric="ttft_s")

    assert next(iter(found)) == ("kv_transfer" if connector else "grammar_compilation")


def test_tokens_take_longer_where_drafts_fail_and_no_other_program_is_needed() -> None:
    """Prompts take longer too, as more requests are there at a time; clocks are as ever."""
    made = quiet()
    made.counter("spec_accepted", 80.0)
    for row in made.after():
        row["decode_s"] *= 2.5
        row["prefill_s"] *= 1.7
        row["spec_accepted"] = int(0.4 * row["output_tokens"])

    found = made.findings(metric="tpot_s")

    assert next(iter(found)) == "low_spec_acceptance"
    assert found["gpu_throttle"].status not in SURE


def test_a_larger_batch_makes_no_few_requests_far_slower() -> None:
    """One in four takes three times as long, and the others less than their batch explains."""
    made = hand_made.batch_size()
    for number, row in enumerate(made.after()):
        row["decode_s"] *= 3.0 if number % 4 == 0 else 0.6

    assert made.findings(metric="tpot_s")["batch_size"].status not in SURE


def test_a_cache_that_is_hardly_used_is_not_full_whatever_its_tokens_take() -> None:
    """Requests wait for something else, and hold blocks meanwhile."""
    made = quiet()
    for replica in REPLICAS:
        made.gauges["kv_usage", replica] = lambda t, _u: 0.03 if t >= AFTER.start else 0.01
    hand_made.slow_queue(made, 1.0)

    assert made.findings(metric="ttft_s")["kv_exhaustion"].status == "ruled_out"


@pytest.mark.parametrize(("bursts", "possible"), [(False, True), (True, False)])
def test_what_is_left_after_the_prefill_may_be_the_front_end(bursts: bool, possible: bool) -> None:
    """Nothing reports its time; a proxy would let chunks come at once."""
    made = quiet()
    made.forget("frontend_time", "api_cpu")
    made.forget_rows("first_chunk_frontend_s")
    for row in made.after():
        row["first_chunk_s"] += 0.5
        row["burst_chunks"] += int(0.6 * row["chunks"]) if bursts else 0

    found = made.findings(metric="ttft_s")["frontend_cpu"]

    assert (found.status == "possible") is possible


def test_what_makes_no_first_token_later_is_not_explained_by_what_does() -> None:
    """Responses are longer, and the way is too: both are named."""
    made = quiet()
    for row in made.after():
        row["network_s"] += 0.4
        row["network_rtt_s"] += 0.4
        row |= {"output_tokens": 4 * row["output_tokens"], "decode_s": 4 * row["decode_s"]}

    found = made.findings(metric="ttft_s")

    assert next(iter(found)) == "network_path"
    assert found["longer_outputs"].status in NAMED


def test_longer_prompts_do_not_explain_that_nothing_streams() -> None:
    """How a response is sent is another change."""
    made = hand_made.streaming_off()
    for row in made.after():
        row["prompt_tokens"] *= 6
        row["prefill_s"] *= 6

    found = made.findings(metric="ttft_s")

    assert found["streaming_off"].status in NAMED
    assert not [one for one in found["streaming_off"].against if "explains" in one.text]


@pytest.mark.parametrize("full", [True, False])
def test_who_waits_while_all_slots_are_taken_waits_for_an_adapter(full: bool) -> None:
    """Rows do not name adapters, and slots are free whenever none waits."""
    made = quiet()
    hand_made.report(made, "lora_slots", 4.0, 4.0)
    for replica in REPLICAS:
        made.gauges["waiting", replica] = lambda t, _u: float(t >= AFTER.start and t % 20 < 10) * 3
        made.gauges["lora_slots_used", replica] = lambda t, _u: (
            4.0 if full and t >= AFTER.start and t % 20 < 10 else 2.0
        )
    made.forget("waiting_deferred")
    for row in made.after():
        row["queue_s"] += 2.0 if row["start"] / 1e9 % 20 < 10 else 0.0

    found = made.findings(metric="ttft_s")["lora_slots"]

    assert (found.status in SURE) is full


def test_what_a_response_cache_served_says_nothing_of_prefixes() -> None:
    """It reports the tokens of the response that it kept; those computed find as many as ever."""
    made = quiet()
    made.forget("prefix_hits", "prefix_queries")
    for number, row in enumerate(made.rows):
        share = 0.6 if row["start"] < AFTER.start * 1e9 else 0.1
        hit = (number * 7919) % 100 < 100 * share
        row |= {"cache_hit": float(hit), "cached_tokens": row["prompt_tokens"] if hit else 100}
        if hit:
            row |= {"decode_s": 0.001, "queue_s": 0.0, "prefill_s": 0.001}

    found = made.findings(metric="e2e_s")

    assert next(iter(found)) == "response_cache_misses"
    assert found["prefix_cache_collapse"].status not in NAMED


@pytest.mark.parametrize("alike", [True, False])
def test_a_few_that_all_left_at_one_age_had_a_deadline(alike: bool) -> None:
    """Who has enough leaves at any time, and eight of them are few."""
    made = quiet()
    for number, row in enumerate(list(made.after())[::40][:8]):
        row.update(dict.fromkeys((*TTFT, "decode_s", "render_s"), 0.0))
        row.update(outcome="timeout", never_answered=True,
                   unattributed_s=1.5 if alike else 0.5 + 0.2 * number)  # fmt: skip
        row.pop("finish_reason", None)

    found = made.findings()["client_give_ups"]

    assert (found.status in NAMED) is alike


def _to_a_route(made: Incident, route: str, share: Callable[[float], float]) -> None:
    """Give a route this share of the requests at a time, and another one the rest."""
    dice = np.random.default_rng(3)
    for row in made.rows:
        mine = dice.random() < share(row["start"] / 1e9)
        row["route"] = route if mine else "/chat"


@pytest.mark.parametrize("moves", [True, False])
def test_another_mix_of_routes_is_no_proof_that_a_prefix_is_lost(moves: bool) -> None:
    """Engines count fewer hits, and rows do not say whose: other routes have other prefixes."""
    made = hand_made.prefix_cache_collapse()
    made.forget_rows("cached_tokens")
    made.counter("prefix_hits", 700.0)
    for number, row in enumerate(made.rows):
        late = moves and row["start"] >= AFTER.start * 1e9
        row["route"] = "summarize" if number % (5 if late else 2) else "support"

    found = made.findings(metric="ttft_s")["prefix_cache_collapse"]

    assert (found.status in SURE) is not moves


@pytest.mark.parametrize("signal", ["gpu_xid", "gpu_xid_errors"])
def test_an_xid_error_of_which_nothing_was_reported_before_is_new(signal: str) -> None:
    """Exporters that report none until there is one; the clock stays as it was."""
    made = quiet()
    for row in made.after():
        row["prefill_s"] *= 3
        row["decode_s"] *= 3
    made.gauges[signal, "vllm-1"] = lambda _t, _u: 63.0
    made.only[signal, "vllm-1"] = AFTER

    found = made.findings()

    assert next(iter(found)) == "gpu_throttle"
    assert found["gpu_throttle"].status == "confirmed"


def test_an_engine_that_prefills_is_not_compared_with_one_that_decodes() -> None:
    """One of three runs and queues far more: it does what neither of the others does."""
    made = quiet()
    for signal, level in (("running", 40.0), ("waiting", 20.0)):
        made.gauge(signal, level, 1.0, "vllm-0")
    made.forget_rows("replica")
    for row in made.after():
        row["queue_s"] += 1.0
    alone = made.findings()["replica_imbalance"]
    for replica, role in zip(REPLICAS, ("kv_producer", "kv_consumer", "kv_consumer"), strict=True):
        made.facts[replica]["kv_role"] = role

    assert alone.status in NAMED
    assert made.findings()["replica_imbalance"].status not in NAMED


@pytest.mark.parametrize("more", [True, False])
def test_slow_name_servers_are_the_path_and_no_cold_clients(more: bool) -> None:
    """At as many lookups as before, that is: processes that start make more of them."""
    made = quiet()
    made.events.append(Event(AFTER.start + 5, "deploy", "certificates renewed"))
    for number, row in enumerate(made.rows):
        late = row["start"] >= AFTER.start * 1e9
        opens = number % (1 if late and more else 3) == 0
        dns = opens * (0.4 if late else 0.01)
        row["network_s"] += dns + 0.02 * opens
        row |= {"network_dns_s": dns, "network_connect_s": 0.02 * opens}
        row |= {"client_s": 0.001, "network_client_wait_s": 0.0}

    found = made.findings(metric="ttft_s")

    assert (found["client_cold"].status in SURE) is more
    assert more or next(iter(found)) == "network_path"


def test_a_gateway_that_gives_up_on_an_upstream_is_not_slow_itself() -> None:
    """Its own time of these requests is what it waited; of the others it is as before."""
    made = quiet()
    for number, row in enumerate(made.after()):
        if number % 3 == 0:
            row |= {"outcome": "error", "http_status": 504, "gateway_s": 15.0}

    assert made.findings()["gateway_overhead"].status not in NAMED


def test_a_cache_that_others_fill_did_not_shrink() -> None:
    """Prompts of which no row tells take room in it, as many as there are."""
    made = quiet()
    made.gauge("kv_usage", 0.7, 0.02)
    alone = inside_engines.cache_shrank(made.evidence())
    made.counters |= {("tokens_in", one): lambda t: 9e3 if t >= AFTER.start else 2e3
                      for one in REPLICAS}  # fmt: skip

    assert alone
    assert inside_engines.cache_shrank(made.evidence()) is None


@pytest.mark.parametrize("searched", [True, False])
def test_rows_alone_do_not_prove_a_lost_prefix_in_a_stretch_that_was_searched_for(
    searched: bool,
) -> None:
    """Of all stretches that there are, one has the fewest cached tokens."""
    made = hand_made.prefix_cache_collapse()
    made.forget("prefix_hits", "prefix_queries")

    found = made.findings(metric="ttft_s", searched=searched)["prefix_cache_collapse"]

    assert found.status == ("likely" if searched else "confirmed")


def test_as_many_long_prompts_as_before_block_no_more_than_before() -> None:
    """Short ones that come while one is computed are late, for another reason."""
    made = hand_made.head_of_line()
    usual = [row for row in made.rows if row["start"] < AFTER.start * 1e9]
    before = made.findings(metric="ttft_s")["head_of_line"]
    for row in usual[:: len(usual) // 12]:
        row |= {"prompt_tokens": 30_000, "cached_tokens": 0, "prefill_s": 8.0}

    assert before.status in SURE
    assert made.findings(metric="ttft_s")["head_of_line"].status not in SURE


def test_a_gateway_that_is_scraped_shows_no_engine() -> None:
    """Whether it can be reached, and what it counts, is nothing that an engine says."""
    made = hand_made.hosted(hand_made.head_of_line())
    made.forget_rows("spec_drafted", "spec_accepted", "first_chunk_frontend_s")
    made.gauges["up", "litellm:4000"] = lambda _t, _u: 1.0
    made.counters["gateway_requests", "litellm:4000"] = lambda _t: 3.0

    assert not made.evidence().sees_engines
    assert made.findings(metric="ttft_s")["head_of_line"].status not in NAMED


def test_what_makes_tokens_slower_comes_before_a_queue_that_does_not() -> None:
    """Both are so; asked for is the time per token."""
    made = hand_made.batch_size()
    made.gauge("waiting", 14.0, 2.0)
    made.gauge("running", 64.0)
    hand_made.slow_queue(made, 1.5)

    found = made.findings(metric="tpot_s", risen=frozenset({"tpot_s", "ttft_s"}))

    assert [*found][:2] == ["batch_size", "queue_saturation"]
    assert found["queue_saturation"].status in SURE


def test_of_two_proxies_one_may_report_nothing() -> None:
    """The first one's time is as before, and neither the engine nor its front end is slower."""
    made = hand_made.gateway_overhead_by_exclusion()
    for row in made.rows:
        row["gateway_s"] = 0.001

    found = made.findings(metric="ttft_s")

    assert next(iter(found)) == "gateway_overhead"
    assert "no gateway reports it" in found["gateway_overhead"].evidence[0].text
    assert [one.text for one in found["gateway_overhead"].against] == [
        "the gateway that reports its time is as fast as before"
    ]


def test_a_gpu_with_less_to_do_has_a_lower_clock_and_no_fault() -> None:
    """Its clock falls as it idles; the same clock under load is throttled."""
    found = {}
    for name, busy in (("idle", 0.1), ("under load", 0.9)):
        made = hand_made.gpu_throttle()
        made.forget("gpu_throttle")
        hand_made.report(made, "gpu_util", 0.9, busy)
        found[name] = made.findings()["gpu_throttle"].status
    assert found["under load"] == "confirmed"
    assert found["idle"] not in SURE


def test_what_no_cause_can_reach_is_not_laid_to_it() -> None:
    """Some adapters wait a little longer for a slot, and it is tokens that come slowly."""
    made = hand_made.lora_slots()
    for row in made.after():
        row["queue_s"] = min(row["queue_s"], 0.03)
        row["decode_s"] *= 2

    found = made.findings(metric="tpot_s")["lora_slots"]

    assert found.status not in SURE


def test_the_rest_of_the_time_is_unattributed_if_no_row_says_so() -> None:
    """The application measured its own wait, and nothing else is known of the request."""
    made = hand_made.hosted(hand_made.client_gate())
    made.forget_rows("gateway_s", "first_chunk_s", "unattributed_s")
    rows = made.evidence().after

    assert made.findings()["client_gate"].status in SURE
    assert np.isfinite(rows.number("unattributed_s")).all()


def test_requests_that_hang_at_a_provider_are_no_silent_streams() -> None:
    """The hop that gives up on them always does so after the same time; the others are as fast."""
    made = hand_made.hosted(quiet())
    made.forget_rows("spec_drafted", "spec_accepted")
    for number, row in enumerate(made.after()):
        if number % 10 == 0:
            row |= {"outcome": "error", "http_status": 504, "never_answered": True,
                    "unattributed_s": 60.0}  # fmt: skip
            row.pop("finish_reason")

    found = made.findings()

    assert next(iter(found)) == "provider_errors"
    assert found["provider_errors"].status == "confirmed"
    assert found["idle_timeout"].status == "possible"
