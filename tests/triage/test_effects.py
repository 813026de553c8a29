"""Is an effect, or what lies beside the incident, taken for its cause?

Each incident is made by hand; what happened in it leaves a trace that resembles another cause.
"""

from __future__ import annotations

import pytest

from llmtrace.triage.causes import RULES
from llmtrace.triage.causes.scoring import with_points
from llmtrace.triage.result import Point

from .hand_made import hosted, longer_outputs, lora_slots, rng, traffic_surge
from .incidents import AFTER, BEFORE, REPLICAS, Incident, quiet

SURE = ("confirmed", "likely")


def gives_up_early(waited: float) -> Incident:
    """A fifth cancel after so long; to cancel closes the connection, and the next one opens it."""
    made = quiet()
    made.gauges.clear()
    made.counters.clear()
    dice = rng()
    for i, row in enumerate(made.rows):
        row |= {"network_connect_s": 0.0, "version": "1"}
        later = row["start"] >= AFTER.start * 1e9
        if dice.random() < (0.2 if later else 0.1):
            row["network_connect_s"] = 0.08 if later else 0.02
            row["network_s"] += row["network_connect_s"]
        if later and i % 5 == 0:
            row |= {"outcome": "cancelled", "never_answered": True, "version": "2"}
            row |= {"network_s": 0.0, "gateway_s": 0.0, "queue_s": 0.0, "prefill_s": 0.0}
            row |= {"first_chunk_s": waited, "decode_s": 0.0}
            row.pop("finish_reason")
        elif later:
            row["version"] = "2"
    return made


def test_who_cancels_early_opens_connections_by_it() -> None:
    """Connecting takes a little longer where streams are cut off: it makes no client leave."""
    found = gives_up_early(0.05).findings()
    assert next(iter(found)) == "client_give_ups"
    assert found["client_give_ups"].status == "confirmed"
    assert found["client_cold"].status not in SURE


def transfers(after: float, late: float) -> Incident:
    """Engines count how long their transfers take; no request tells."""
    made = quiet()
    for replica in REPLICAS:
        made.counters["kv_transfer_time_count", replica] = lambda _: 2.0
        made.counters["kv_transfer_time_sum", replica] = lambda t: (
            2.0 * (after if t >= AFTER.start else 0.01)
        )
    for row in made.after():
        row["first_chunk_s"] += late
    return made


def test_transfers_between_engines_are_named_by_what_engines_count() -> None:
    """What each transfer takes longer is in the first chunk of its request."""
    found = transfers(0.2, 0.3).findings()
    assert next(iter(found)) == "disaggregated_kv"
    assert found["disaggregated_kv"].status in SURE


def test_transfers_that_are_a_small_part_of_the_wait_are_not_named() -> None:
    """They take three times as long, and that is a tenth of what is added."""
    assert transfers(0.03, 0.3).findings()["disaggregated_kv"].status not in SURE


def test_a_front_end_that_serves_a_surge_is_busy_by_it() -> None:
    """Without the surge the same figures are its own."""
    for made, named in ((traffic_surge(), False), (quiet(), True)):
        dice = rng()
        for row in made.after():
            more = float(dice.exponential(0.25))
            row["first_chunk_s"] += more
            row["first_chunk_frontend_s"] += more
        made.gauge("frontend_time", 0.24, 0.02)
        made.gauge("api_cpu", 0.97, 0.01)
        assert (made.findings(metric="ttft_s")["frontend_cpu"].status in SURE) == named


def test_what_is_not_streamed_comes_late_through_no_proxy() -> None:
    """A whole response is one chunk at its end, which a slow proxy's first chunk resembles."""
    for stream, named in ((False, False), (True, True)):
        made = quiet()
        made.forget_rows("gateway_s", "max_gap_s")
        for row in made.rows:
            row["stream"] = True
        for row in made.after():
            row |= {"stream": stream, "chunks": 1, "burst_chunks": 0}
            row["first_chunk_s"] += row["decode_s"]
            row["decode_s"] = 0.0
        found = made.findings(metric="ttft_s")
        proxies = {found[name].status for name in ("proxy_buffering", "gateway_overhead")}
        assert (found["streaming_off"].status in SURE) != named
        assert bool(proxies & {*SURE}) == named


def begins_in_a_halt(before_it: float) -> Incident:
    """One engine stands still for 17 s, from so long before the window after on."""
    made = quiet(rate=4.0)
    made.forget("sleep", "tokens_out")
    stop = AFTER.start - before_it
    for row in made.rows:
        row["replica"] = "vllm-0"
    for i, row in enumerate(list(made.rows)):
        if i < 40:  # in progress, or sent, just before it
            begun = stop - 3 + i * (3 + before_it) / 40
            made.rows.append({**row, "start": int(begun * 1e9)})
    made.rows.sort(key=lambda row: row["start"])
    for row in made.rows:
        t = row["start"] / 1e9
        if stop <= t < stop + 17:
            row["first_chunk_s"] += stop + 17 - t
        elif stop - 3 <= t < stop:
            row |= {"decode_s": 17 + stop - t, "max_gap_s": 17.0}
    return made


def test_a_window_that_begins_in_a_halt_has_it() -> None:
    """No sign of the window's own requests is older than the halt."""
    found = begins_in_a_halt(2.0).findings()
    assert found["engine_paused"].status in SURE


def test_requests_that_are_divided_otherwise_and_wait_nowhere_are_no_incident() -> None:
    """One replica gets more than its share, and no request takes longer."""
    made = quiet()
    for number, row in enumerate(made.after()):
        if number % 3:
            row["replica"] = REPLICAS[0]
    assert made.findings()["replica_imbalance"].status not in SURE


def traffic(*, up: bool, slowly: bool) -> Incident:
    """Make four times as many requests come, or a fourth: over both windows, or all at once."""
    made, dice = quiet(rate=8.0), rng()
    whole = AFTER.end - BEFORE.start
    kept = []
    for row in made.rows:
        t = row["start"] / 1e9
        part = (
            0.125 + 0.875 * (t - BEFORE.start) / whole
            if slowly
            else 0.25 + 0.75 * (t > AFTER.start)
        )
        kept += [row] * bool(dice.random() < (part if up else 1.125 - part))
    made.rows[:] = kept
    return made


@pytest.mark.parametrize(("up", "cause"), [(True, "traffic_surge"), (False, "traffic_lost")])
@pytest.mark.parametrize(("slowly", "status"), [(True, "possible"), (False, "likely")])
def test_traffic_that_changes_little_by_little_is_that_of_a_day(up, cause, slowly, status) -> None:
    """Where the windows meet, as many come after as before."""
    assert traffic(up=up, slowly=slowly).findings()[cause].status == status


@pytest.mark.parametrize(("metric", "stage"), [("ttft_s", "gateway_s"), ("tpot_s", "decode_s")])
def test_longer_answers_of_a_provider_are_no_cause_of_what_they_cannot_reach(metric, stage):
    """They keep no slot that others wait for, and share no batch, as far as is known."""
    made = hosted(longer_outputs())
    made.forget_rows("spec_drafted", "spec_accepted")
    for row in made.rows:
        if row["start"] < AFTER.start * 1e9 and row["start"] / 1e9 % 180 < 60:
            row |= {"output_tokens": 2 * row["output_tokens"], "decode_s": 2 * row["decode_s"]}
    for number, row in enumerate(made.after()):
        row[stage] *= 4 if number % 8 == 0 else 1
        row["gateway_s"] += (metric == "ttft_s") * 0.8

    found = made.findings(metric=metric)["longer_outputs"]

    assert found.status == "unknown"
    assert "it does not make" in found.against[0].text


def test_what_is_as_usual_explains_no_cause_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Responses are as long in every third minute before: it is adapters that lack a slot."""
    rule, less = RULES["lora_slots"], [Point("one that is less clear", -11)]
    monkeypatch.setitem(RULES, "lora_slots", lambda e: with_points(rule(e), less))
    made = lora_slots()
    for row in made.rows:
        t = row["start"] / 1e9
        if t >= AFTER.start or t % 180 < 60:
            row["output_tokens"] = row["chunks"] = int(row["output_tokens"] * 2)
            row["decode_s"] *= 2

    found = made.findings(metric="e2e_s")

    assert found["longer_outputs"].status not in SURE
    assert next(iter(found)) == "lora_slots"
    assert found["lora_slots"].status in SURE
