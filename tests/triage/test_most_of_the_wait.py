"""Is a cause named only for what it adds, and kept apart from what makes everything slower?

Each incident is made by hand, by mechanism.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from llmtrace.triage.evidence.changes import shift
from llmtrace.triage.named_causes import with_proof
from llmtrace.triage.result import NO_BOUNDS, Change, Finding, Point, Side
from llmtrace.triage.verdict import Judged

from . import hand_made
from .incidents import Incident, quiet
from .test_seldom_seen import seldom_paused

SURE = ("confirmed", "likely")
USUAL = Side(window=None, n=100, requests=100, p50=1.0, p95=2.0, p95_ci=NO_BOUNDS)
MOVED = Change(
    metric="ttft", before=USUAL, after=replace(USUAL, p50=2.0, p95=4.0),
    delta_s=2.0, share_above=0.5, share_above_ci=NO_BOUNDS, p_value=1e-9, significant=True,
)  # fmt: skip


def with_long_ones(*, slower: float = 1.0, also: float = 0.0) -> Incident:
    """Long prompts come all the time; after, all is slower, and all wait for something else."""
    made = quiet(rate=4.0)
    for row in made.rows:
        row["prefill_s"] = 0.02 + 0.00005 * (row["prompt_tokens"] - row["cached_tokens"])
    longs = [row for number, row in enumerate(made.rows) if number % 40 == 0]
    for one in longs:
        one |= {"prompt_tokens": 12_000, "cached_tokens": 0, "prefill_s": 0.6}
    for row in made.after():
        row["prefill_s"] *= slower
        row["decode_s"] *= slower
        row["first_chunk_s"] += also
    for one in longs:
        since, until = one["start"] / 1e9, one["start"] / 1e9 + one["prefill_s"]
        for row in made.rows:
            if row["replica"] == one["replica"] and since < row["start"] / 1e9 < until:
                row["first_chunk_s"] += until - row["start"] / 1e9
    return made


@pytest.mark.parametrize(("slower", "also"), [(1.0, 1.5), (3.0, 1.0), (3.0, 0.0)])
def test_long_prompts_as_ever_block_nobody_more_than_all_are_slower(slower, also):
    """Who meets one waits longer than others did before, because all do."""
    found = with_long_ones(slower=slower, also=also).findings(metric="ttft_s")

    assert found["head_of_line"].status not in SURE


def test_chunks_that_all_come_at_a_slower_pace_are_no_halt():
    """A provider that is slower sends each group of tokens later: no response stands still."""
    made = quiet()
    dice = np.random.default_rng(1)
    for row in made.rows:
        row["max_gap_s"] = 0.35 + 0.01 * float(dice.random())
    for row in made.after():
        row["max_gap_s"] *= 2.5
        row["decode_s"] *= 2.6
    made.forget("sleep", "tokens_out")
    made.forget_rows("replica")

    assert made.findings()["engine_paused"].status not in SURE


@pytest.mark.parametrize(("longest_before", "named"), [(0.3, True), (5.5, False)])
def test_a_halt_is_longer_than_responses_wait_for_chunks_on_any_day(longest_before, named):
    """Where steps take seconds, nothing comes out for seconds."""
    made = seldom_paused()
    for row in made.rows[:100:20]:
        row["max_gap_s"] = longest_before
    status = made.findings(metric="ttft_s")["engine_paused"].status

    assert (status in SURE) is named


def test_a_clock_that_fell_in_most_of_the_few_samples_fell():
    """Fourteen samples alike, and then two thirds of 35 at less than half: that is no chance."""
    before = np.full(14, 1410.0)
    after = np.array([1410.0] * 12 + [540.0] * 23)
    found = shift(before, np.arange(14.0), after, 20 + np.arange(35.0))

    assert found is not None
    assert found.fell(0.0, 0.08)


def test_a_clock_that_dips_as_often_as_before_did_not_fall():
    """Its middle is as it was."""
    dips = np.where(np.arange(40) % 8 == 0, 900.0, 1410.0)
    found = shift(dips, np.arange(40.0), dips, 50 + np.arange(40.0))

    assert found is not None
    assert not found.fell(0.0, 0.08)


@pytest.mark.parametrize(
    ("cause", "few", "verdict"),
    [
        ("streaming_off", True, "regression"),
        ("response_cache_misses", True, "regression"),
        ("gpu_throttle", True, "not_enough_data"),
        ("gpu_throttle", False, "regression"),
        ("head_of_line", False, "not_enough_data"),
        ("queue_saturation", False, "not_enough_data"),
    ],
)
def test_what_is_counted_needs_few_requests_and_work_that_varies_is_no_fault(cause, few, verdict):
    """Proof stands for what no p95 shows, unless it is what happens on any day."""
    one = Finding(
        id=cause, status="confirmed", score=16, evidence=(Point("counted", 10),), against=(),
        missing=(), action="", runbook="",
    )  # fmt: skip

    judged = with_proof(Judged("not_enough_data", "few"), [one], MOVED, few=few, beside=False)
    assert judged.verdict == verdict


def finding(cause: str, status: str) -> Finding:
    """Return a cause with one line of evidence."""
    score = {"confirmed": 16, "likely": 9, "possible": 3}[status]
    return Finding(id=cause, status=status, score=score, evidence=(Point(f"{cause} it is", 10),))


@pytest.mark.parametrize("verdict", ["regression", "mixed", "improvement"])
@pytest.mark.parametrize(
    ("others", "beside", "by_work"),
    [
        ((), False, True),
        ((("queue_saturation", "possible"),), False, True),
        ((("longer_outputs", "likely"),), False, True),
        ((("gpu_throttle", "likely"),), False, False),
        ((), True, False),
    ],
)
def test_other_work_that_is_all_there_is_to_a_change_is_the_verdict(
    verdict, others, beside, by_work
):
    """Unless something else is as well supported, more is wrong, or it got quicker."""
    found = [finding("long_prompts", "confirmed"), *(finding(*one) for one in others)]
    judged = with_proof(Judged(verdict, "slower"), found, MOVED, few=False, beside=beside)

    if by_work and verdict != "improvement":
        assert judged.verdict == "workload"
        assert judged.reason == "ttft p95 2,000 → 4,000 ms: long_prompts it is."
    else:
        assert judged == Judged(verdict, "slower")


@pytest.mark.parametrize(("slow", "named"), [(2.0, True), (0.0, False)])
def test_fewer_responses_from_the_cache_are_seen_where_a_metric_moved_for_certain(slow, named):
    """Of 200 requests 70 % were hits and 55 % are: alone, as much may be chance."""
    made = quiet(rate=1.0)
    for number, row in enumerate(made.rows):
        hit = number % 20 < (14 if number < 200 else 11)
        row["cache_hit"] = hit
        row["decode_s"] = 0.001 if hit else 1.0 + row["decode_s"] + slow * (number >= 200)
    found = made.findings(metric="e2e_s", risen=frozenset({"e2e_s"} if slow else ()))

    assert (found["response_cache_misses"].status not in ("ruled_out", "unknown")) is named


def test_few_requests_that_are_sent_again_are_refused():
    """Eight of 80 are sent again after a status, and none was before."""
    made = quiet(rate=0.4)
    for row in list(made.after())[::10]:
        row |= {"attempts": 2, "retry_s": 1.5, "gateway_s": row["gateway_s"] + 1.5}
    found = made.findings(metric="ttft_s")["rate_limit_retries"]

    assert found.status in SURE


@pytest.mark.parametrize(("longest", "status"), [(2.5, "confirmed"), (0.0, "likely")])
def test_silence_from_the_start_is_a_timer_of_silence_if_others_last_longer(longest, status):
    """Nothing had come of what is cut: a deadline would cut whole responses as well."""
    made = quiet()
    for number, row in enumerate(made.after()):
        if number % 10 == 0:
            row |= {"outcome": "error", "http_status": 504, "never_answered": True}
            row.pop("finish_reason")
            row["queue_s"] += 2.0 - row["prefill_s"] - row["first_chunk_s"] - row["queue_s"]
        else:
            row["decode_s"] = longest or min(row["decode_s"], 1.0)
    found = made.findings()["idle_timeout"]

    assert found.status == status


def test_a_front_end_that_takes_its_time_passes_chunks_on_in_bursts_too():
    """What the engine's front end holds is there before any proxy could gather it."""
    made = hand_made.proxy_buffering()
    for row in made.after():
        row["first_chunk_frontend_s"] = row["first_chunk_s"] - 0.01
    found = made.findings()

    assert found["proxy_buffering"].status not in SURE
    assert found["frontend_cpu"].score > found["proxy_buffering"].score
