"""Is a cause named that few requests, one kind of them, or one stage of theirs shows?

Each incident is made by hand, with what only resembles it beside it.
"""

from __future__ import annotations

import pytest

from .hand_made import gpu_throttle, grammar_compilation, hosted, lora_slots, prefix_cache_collapse
from .incidents import AFTER, BEFORE, REPLICAS, Incident, quiet

NAMED = ("confirmed", "likely", "possible")


def turns(*, one_by_one: bool) -> Incident:
    """Seven turns before and six after among hundreds of requests, each with four tools."""
    made = quiet()
    for window, count in ((BEFORE, 7), (AFTER, 6)):
        inside = [row for row in made.rows if window.start <= row["start"] / 1e9 < window.end]
        for number, row in enumerate(inside[:: len(inside) // count][:count]):
            wall = 0.12 + 0.01 * number
            late = window is AFTER
            row |= {"tool_calls": 4, "tool_critical_path_s": wall, "tool_wall_s": wall}
            if late and one_by_one:
                row["tool_wall_s"] = 3 * wall
            elif late:
                row |= {"tool_critical_path_s": 3 * wall, "tool_wall_s": 3 * wall}
            row["render_s"] += row["tool_wall_s"]
    return made


def cut(count: int) -> Incident:
    """Of 400 requests to a hosted API before none, of 40 after some are cut at one instant."""
    made = hosted(quiet(after_rate=0.2))
    for row in [*made.after()][10 : 10 + count]:
        row |= {"outcome": "truncated", "error_type": "RemoteProtocolError"}
        row["decode_s"] = AFTER.start + 60 - row["start"] / 1e9
        row["finish_reason"] = None
    return made


def kinds(*, stopped: str | None) -> Incident:
    """One tenant's requests stop, and another sends half as many; or all send half."""
    made = quiet()
    kept = []
    for number, row in enumerate(made.rows):
        late = row["start"] >= AFTER.start * 1e9
        fewer = row["tenant"] == "t3" or stopped is None
        if not late or not (row["tenant"] == stopped or (fewer and number // 4 % 2)):
            kept.append(row)
    made.rows[:] = kept
    return made


def one_chunk(times: float) -> Incident:
    """Answers that come in one chunk, so without any decode, get longer."""
    made = quiet()
    for number, row in enumerate(made.rows):
        longer = times if row["start"] >= AFTER.start * 1e9 else 1.0
        row["output_tokens"] = tokens = int(row["output_tokens"] * longer)
        if number % 3:
            row |= {"chunks": 1, "decode_s": 0.0, "first_chunk_s": 0.012 + 0.02 * tokens}
            row["whole"] = True
    return made


def loaded_by_others(share: float) -> Incident:
    """One engine runs four times as many, at as many rows' requests, and makes so many tokens."""
    made = quiet()
    made.forget("gpu_sm_clock_mhz", "gpu_throttle", "gpu_power_w", "gpu_temp_c")
    made.gauge("running", 32.0, 1.0, "vllm-1")
    made.counter("tokens_out", 500.0 * share, "vllm-1")
    for row in made.after():
        if row["replica"] == "vllm-1":
            row["decode_s"] *= 1.8
    return made


@pytest.mark.parametrize("one_by_one", [True, False])
def test_six_turns_show_tools_that_run_one_after_another(one_by_one):
    """Each of them says so by itself; tools that are slow themselves are none."""
    found = turns(one_by_one=one_by_one).findings(metric="e2e_s", risen=frozenset({"e2e_s"}))

    assert (found["serial_tools"].status in NAMED) is one_by_one


@pytest.mark.parametrize(("count", "named"), [(4, True), (1, False)])
def test_few_broken_streams_of_a_hosted_api(count, named):
    """Four of forty after none of four hundred are enough, and no engine is seen to die."""
    found = cut(count).findings()

    assert (found["midstream_errors"].status in NAMED) is named


def test_a_kind_that_stopped_is_lost_whatever_others_do():
    """It need not account for most of the change."""
    found = kinds(stopped="t0").findings()["traffic_lost"]

    assert found.status in NAMED
    assert found.group == {"tenant": "t0"}
    assert kinds(stopped=None).findings()["traffic_lost"].group == {}


@pytest.mark.parametrize(("times", "named"), [(2.0, True), (1.0, False)])
def test_answers_in_one_chunk_that_get_longer(times, named):
    """Their time end to end shows it, for they have no decode."""
    found = one_chunk(times).findings(metric="e2e_s")

    assert (found["longer_outputs"].status in NAMED) is named


@pytest.mark.parametrize(("share", "named"), [(2.5, True), (1.0, False)])
def test_others_who_use_one_engine_make_it_produce_more(share, named):
    """A slow engine runs as many at a time, and makes no more tokens."""
    found = loaded_by_others(share).findings(metric="tpot_s")

    assert (found["replica_imbalance"].status in NAMED) is named


def test_a_slow_replica_is_measured_by_its_own_requests():
    """Without signals of a GPU, prompts and steps of one of three engines are compared."""
    made = quiet()
    made.forget("gpu_sm_clock_mhz", "gpu_throttle", "gpu_power_w", "gpu_temp_c")
    for i, row in enumerate(made.rows):
        row["replica"] = REPLICAS[i % 3]
        running = 4 + i // 7 % 9
        row["decode_s"] *= 0.5 + running / 8
        if row["start"] >= AFTER.start * 1e9 and row["replica"] == "vllm-1":
            row["prefill_s"] *= 2
            row["decode_s"] *= 2
    lines = made.findings(metric="tpot_s")["gpu_throttle"].evidence

    assert any("prefill at the same length: 2" in one.text for one in lines)
    assert gpu_throttle().findings()["gpu_throttle"].status == "confirmed"


def test_a_model_whose_requests_wait_for_grammars_waits_for_no_adapter():
    """Another model on the same engines goes on as before, as beside an adapter."""
    made = grammar_compilation()
    for i, row in enumerate(made.rows):
        row["model"] = ("base", "other")[i % 2]
        if row["start"] >= AFTER.start * 1e9:
            row["first_chunk_s"] -= 1.5
            row["queue_s"] += 1.5 if i % 2 else 0.0
    found = made.findings()

    assert found["lora_slots"].status not in NAMED
    assert next(iter(found)) == "grammar_compilation"


def test_more_requests_of_a_kind_that_is_never_streamed():
    """Fewer are streamed of all, and as many as before of each kind."""
    made = quiet(after_rate=4.0)
    for i, row in enumerate(made.rows):
        late = row["start"] >= AFTER.start * 1e9
        row["tenant"] = "batch" if i % (2 if late else 8) == 0 else "people"
        row["stream"] = row["tenant"] == "people"
        row["whole"] = not row["stream"]
        if row["whole"]:
            row["first_chunk_s"] += row["decode_s"]

    assert made.findings()["streaming_off"].status not in NAMED


def test_a_longer_path_beside_slower_engines_is_a_cause_of_its_own():
    """No engine makes a network slower, however much it is slower itself."""
    made = gpu_throttle()
    for row in made.after():
        row["network_s"] += 0.4
        row["network_rtt_s"] += 0.4
    found = made.findings(metric="ttft_s")

    assert {"gpu_throttle", "network_path"} <= {
        name for name, one in found.items() if one.status in NAMED
    }


@pytest.mark.parametrize("farther", [True, False])
def test_more_requests_from_far_away_are_no_longer_path(farther):
    """Of each region round trips take as long as before, or those of the far one longer."""
    made = quiet()
    for i, row in enumerate(made.rows):
        late = row["start"] >= AFTER.start * 1e9
        far = i % 4 == 0 or (late and i % 4 < 3)
        row["region"] = "sydney" if far else "dublin"
        delay = (0.8 if far and late and farther else 0.4) if far else 0.0
        row["network_s"] += delay
        row["network_rtt_s"] += delay

    assert (made.findings()["network_path"].status in NAMED) == farther


def test_a_cache_that_fails_beside_a_slow_proxy_makes_little_of_the_wait():
    """Prompts are computed anew, which takes a tenth of what the path adds."""
    made = prefix_cache_collapse()
    for row in made.after():
        row["first_chunk_s"] += 10 * row["prefill_s"]
    found = made.findings(metric="ttft_s")

    assert found["prefix_cache_collapse"].status not in ("confirmed", "likely")
    assert any(
        "of what the metric grew by" in p.text for p in found["prefix_cache_collapse"].against
    )


def test_a_silence_begins_with_the_status_line():
    """A hop gives streams 0.6 s of silence, and their headers came at once or after a while."""
    made = quiet()
    for row in made.rows:
        row["answered_s"] = row["network_s"] + 0.004
    for number, row in enumerate([*made.after()][::4]):
        row["answered_s"] += 0.03 * (number % 17)
        for name in ("queue_s", "prefill_s", "first_chunk_s", "finish_reason", "max_gap_s"):
            row.pop(name)
        row |= {"outcome": "truncated", "never_answered": True, "gateway_s": 0.0}
        row["unattributed_s"] = row["answered_s"] + 0.6 - row["network_s"]
    found = made.findings()

    assert found["idle_timeout"].status == "confirmed"
    assert any("nothing for 600 ms" in one.text for one in found["idle_timeout"].evidence)


@pytest.mark.parametrize("late", [True, False])
def test_rendering_that_others_wait_for_is_the_clients_own_work(late):
    """Each consumer computes for 0.2 s: on the event loop, or where no other waits for it."""
    made = quiet()
    for row in made.rows:
        row["client_lag_s"] = 0.002
    for row in made.after():
        row["render_s"] = row.get("render_s", 0.0) + 0.2
        row["first_chunk_s"] += 0.45
        if late:
            row["client_lag_s"] = 0.1
    found = made.findings(metric="render_s")["busy_client"]

    assert (found.status in NAMED) == late


@pytest.mark.parametrize(("slots", "cause"), [(2, "grammar_compilation"), (1, "lora_slots")])
def test_no_request_waits_for_an_adapter_where_each_has_a_slot(slots, cause):
    """Two models, of which the requests of one wait; the other is deferred for its grammars."""
    made = lora_slots()
    for row in made.rows:
        row["route"] = "/form" if row["model"] == "adapter-b" else "/chat"
        if row["model"] == "base":
            row["model"] = "adapter-a"
    for row in made.after():
        row["queue_s"] = 1.5 if row["model"] == "adapter-b" else 0.01
    made.facts |= {name: {"max_loras": slots} for name in REPLICAS}

    found = made.findings(metric="ttft_s")

    assert next(iter(found)) == cause


@pytest.mark.parametrize(("lag_s", "named"), [(0.5, True), (0.0, False)])
def test_few_waits_for_the_client_count_where_they_are_what_the_wait_grew_by(lag_s, named):
    """A loop that is blocked now and then: one of eight of a hundred requests is read late."""
    made = quiet(rate=0.5)
    for row in made.rows:
        row |= {"client_lag_s": 0.003}
    for number, row in enumerate(made.after()):
        if number % 8 == 0:
            row["client_lag_s"] += lag_s * (1 + number % 3)
            row["first_chunk_s"] += 0.5 * (1 + number % 3)

    assert (made.findings(metric="ttft_s")["busy_client"].status in NAMED) is named
