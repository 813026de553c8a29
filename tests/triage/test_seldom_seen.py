"""Is a cause named that is felt now and then, or at a time when nothing was read?

Each incident is made by hand, with few requests or few samples.
"""

from __future__ import annotations

import numpy as np
import pytest

from llmtrace.triage.evidence import engine_halts
from llmtrace.triage.evidence.engine_halts import Gap, engine_gaps, usual_gap_s

from .hand_made import report
from .incidents import AFTER, BEFORE, REPLICAS, Incident, quiet

SURE = ("confirmed", "likely")


def seldom_paused(replicas: int = 1, *, halts: bool = True) -> Incident:
    """Engines stand still for 6 s every 25 s, and two or three requests come meanwhile."""
    made = quiet(rate=0.6)
    for i, row in enumerate(made.rows):
        row["replica"] = REPLICAS[i % replicas]
        row |= {"output_tokens": 20, "chunks": 20, "decode_s": 0.4}
    for row in made.after():
        waited = (row["start"] / 1e9 - AFTER.start - 10) % 25
        if waited < 6 and halts:
            row["first_chunk_s"] += 6 - waited
        elif waited > 24 and halts:
            row |= {"decode_s": 6.5, "max_gap_s": 6.2}
        elif not halts and row["start"] % 4 == 0:
            row["first_chunk_s"] += 3.0
    made.forget("sleep", "tokens_out")
    return made


def waits_for_blocks(seconds: float) -> Incident:
    """KV blocks come from another tier, and so few wait for them that no gauge meets one."""
    made = quiet()
    made.forget_rows("model")
    for replica in REPLICAS:
        made.counters["external_prefix_queries", replica] = lambda _: 500.0
        made.facts[replica]["kv_connector"] = "OffloadingConnector"
    made.gauge("running", 8.0, 1.0)
    for row in made.after():
        row["queue_s"] += seconds
    return made


def deferred(*, models: int = 1, fetches: bool = False) -> Incident:
    """Requests wait though there are seats; the engine says no more than that it defers them."""
    made = quiet()
    report(made, "waiting_deferred", 0.0, 1.0)
    report(made, "waiting", 0.0, 1.0)
    for replica in REPLICAS:
        queries = 500.0 if fetches else 0.0
        made.counters["external_prefix_queries", replica] = lambda _, queries=queries: queries
    for i, row in enumerate(made.rows):
        row["model"] = f"m{i % models}"
    for row in made.after():
        row["queue_s"] += 0.3
    return made


def test_halts_are_seen_together_though_few_requests_come_in_each():
    """Two or three requests wait in each of eight halts: all are answered at its end."""
    found = seldom_paused().findings(metric="ttft_s")

    assert next(iter(found)) == "engine_paused"
    assert found["engine_paused"].status in SURE
    assert any("times, nothing came out" in one.text for one in found["engine_paused"].evidence)


def test_as_many_slow_requests_one_by_one_are_no_halts():
    """They take as long, and others are answered meanwhile."""
    found = seldom_paused(halts=False).findings(metric="ttft_s")

    assert found["engine_paused"].status not in SURE


def stand_still(made: Incident, begin: float, seconds: float, *, all_of_them: bool = True) -> None:
    """Let no engine answer for a while; some responses in progress go on unless it is `all`."""
    for i, row in enumerate(made.rows):
        since = row["start"] / 1e9 - begin
        if 0 <= since < seconds:
            row["first_chunk_s"] += seconds - since
        elif -3 < since < 0:
            still = all_of_them or i % 2
            row |= {"decode_s": seconds + 3.5, "max_gap_s": seconds if still else 0.1}


def test_a_halt_is_held_against_the_longest_before():
    """Also if responses went on in most gaps that were nearly as long."""
    made = quiet(rate=4.0)
    stand_still(made, BEFORE.start + 30, 5.0)
    for begin in (70, 110, 150):
        stand_still(made, BEFORE.start + begin, 3.0, all_of_them=False)
    stand_still(made, AFTER.start + 100, 6.0)

    before, _ = engine_gaps(evidence := made.evidence())

    assert not before.whole
    assert usual_gap_s(evidence) == before.seconds > 2


def test_a_gap_before_counts_if_nothing_shows_that_responses_went_on(monkeypatch):
    """Too few were in progress in it to know: as long a gap after is no halt then."""
    gap = Gap(
        None, 0.0, 2.0, seconds=2.0, arrivals=2, streams=1, stalled=0, bunched=2, prompt=None
    )
    monkeypatch.setattr(engine_halts, "_gaps_before", lambda _: iter([gap]))

    assert gap.whole is None
    assert usual_gap_s(quiet().evidence()) == 2


@pytest.mark.parametrize(("seconds", "status"), [(0.03, "likely"), (0.8, "ruled_out")])
def test_a_gauge_that_hardly_meets_a_request_does_not_deny_what_each_says(seconds, status):
    """A wait of 30 ms is in one of hundreds of samples; one of a second would be in many."""
    assert waits_for_blocks(seconds).findings()["kv_transfer"].status == status


def test_what_is_deferred_for_nothing_else_waits_for_a_grammar():
    """No blocks are fetched, and there is one model: of three reasons one is left."""
    found = deferred().findings(metric="ttft_s")

    assert next(iter(found)) == "grammar_compilation"
    assert found["grammar_compilation"].status == "likely"


@pytest.mark.parametrize("more", [{"models": 2}, {"fetches": True}])
def test_what_may_be_deferred_for_something_else_is_left_open(more):
    """Adapters that wait for a slot, or blocks of another tier, look the same."""
    found = deferred(**more).findings(metric="ttft_s")

    assert found["grammar_compilation"].status == "unknown"
    assert found["grammar_compilation"].missing


def test_a_loop_that_is_blocked_now_and_then_is_busy():
    """Few requests meet it, and wait long: their mean says so, and no median or p95 does."""
    made = quiet(rate=4.0)
    dice = np.random.default_rng(3)
    for row in made.rows:
        row["client_lag_s"] = float(dice.exponential(0.002)) if dice.random() < 0.3 else 0.0
    for i, row in enumerate(made.after()):
        if i % 25 == 0:
            row["client_lag_s"] = 6.0
            row["first_chunk_s"] += 6.0

    assert made.findings(coarse=True)["busy_client"].status in SURE


def test_a_metric_that_rose_did_so_for_the_rules_too():
    """Too few requests for their own test, and enough for that of the verdict."""
    made = quiet(rate=0.15)
    for row in made.after():
        row["first_chunk_s"] += 0.03
    evidence = made.evidence(metric="ttft_s")
    known = made.evidence(metric="ttft_s", risen=frozenset({"ttft_s"}))

    assert evidence.up("ttft_s") is False
    assert known.up("ttft_s") is True
    assert "ttft_s" in known.moved
