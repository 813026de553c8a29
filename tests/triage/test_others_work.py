"""Are causes named whose work no row tells of, because others use the same engines?

Each incident is made by hand: engines count more than these requests are.
"""

from __future__ import annotations

import pytest

from llmtrace.dataset.case import Window

from .incidents import AFTER, EVERY_S, REPLICAS, Incident, quiet

SURE = ("confirmed", "likely")
ALL = 2.0 / len(REPLICAS)  # requests a second of each engine, which rows tell of


def others_answers(times: float = 4.0) -> Incident:
    """Another team has long responses made by the same engines: the batch is larger."""
    made = quiet()
    made.counter("tokens_out", 500.0 * times)
    made.gauge("running", 40.0, 2.0)
    for row in made.after():
        row["decode_s"] *= 1.8
    return made


def others_prompts(every_s: float = 12.0, held_s: float = 4.0) -> Incident:
    """Another team sends a document now and then, and all requests wait for it meanwhile."""
    made = quiet(rate=4.0)
    for row in made.rows:
        row["replica"] = "vllm-0"
    for name in ("tokens_in", "e2e_count", "running", "started"):
        for replica in REPLICAS[1:]:
            made.counters.pop((name, replica), None), made.gauges.pop((name, replica), None)
    made.counters["tokens_in", "vllm-0"] = lambda t: 9_000.0 if t >= AFTER.start else 3_300.0
    made.counters["e2e_count", "vllm-0"] = lambda _: 4.0
    for row in made.after():
        waited = (row["start"] / 1e9 - AFTER.start) % every_s
        row["first_chunk_s"] += max(held_s - waited, 0.0)
    made.forget("sleep", "tokens_out")
    return made


def test_others_responses_are_a_larger_batch():
    """No more requests come; the engines make tokens that none of them has."""
    found = others_answers().findings(metric="tpot_s")

    assert next(iter(found)) == "batch_size"
    assert found["batch_size"].status in SURE
    assert any("of them by these requests" in one.text for one in found["batch_size"].evidence)


def test_others_responses_are_no_longer_ones_of_these():
    """However much longer these happen to be: they are a small part of what is made."""
    made = others_answers()
    for row in made.after():
        row["output_tokens"] = row["chunks"] = int(row["output_tokens"] * 1.3)
        row["decode_s"] *= 1.3

    found = made.findings(metric="tpot_s")

    assert found["longer_outputs"].status not in SURE
    assert found["batch_size"].status in SURE


@pytest.mark.parametrize("counted", ["tokens_out", "spec_accepted"])
def test_what_rows_tell_of_is_no_work_of_others(counted):
    """As many more tokens as these requests have, or none at all."""
    made = quiet()
    made.counter(counted, 4 * {"tokens_out": 500.0, "spec_accepted": 280.0}[counted])
    for row in made.after():
        row["output_tokens"] *= 4

    assert made.evidence().other_clients("tokens_out") is None


def test_an_engine_that_was_not_read_says_nothing_of_others():
    """What it counted meanwhile may be of any time."""
    made = others_answers()
    assert made.evidence().other_clients("tokens_out") is not None
    made.dead["vllm-1"] = Window(AFTER.start + 60, AFTER.start + 120)

    assert made.evidence().other_clients("tokens_out") is None


def test_rows_of_a_cache_are_no_part_of_what_engines_count():
    """A response cache that is lost: the engines make what it had, and no other's responses."""
    made = quiet()
    made.counter("tokens_out", 2_000.0)
    for i, row in enumerate(made.rows):
        row["cache_hit"] = row["start"] < AFTER.start * 1e9 and i % 4 != 0

    assert made.evidence().other_clients("tokens_out") is None


def test_seats_that_others_take_are_a_queue_and_no_drafts():
    """The ratio of accepted drafts is theirs as well; all seats are taken, and more is made."""
    made = others_answers()
    made.counter("spec_accepted", 300.0)
    made.counter("spec_drafted", 1_200.0)
    made.gauge("running", 64.0)
    made.gauge("waiting", 9.0, 1.0)
    for row in made.rows:
        row.pop("spec_drafted"), row.pop("spec_accepted")
    for row in made.after():
        row["queue_s"] += 2.0

    found = made.findings(metric="ttft_s")

    assert next(iter(found)) == "queue_saturation"
    assert found["queue_saturation"].status in SURE
    assert found["low_spec_acceptance"].status == "unknown"


def test_others_documents_hold_these_up():
    """All engines go on, with prompts of others: no pause."""
    made = others_prompts()
    found = made.findings(metric="ttft_s")

    assert next(iter(found)) == "head_of_line"
    assert found["head_of_line"].status in SURE
    assert found["engine_paused"].status not in SURE


@pytest.mark.parametrize(
    ("tokens", "at_once", "named"), [(6_000, 1, True), (6_000, 40, False), (0, 0, False)]
)
def test_a_long_prompt_shows_between_two_scrapes(tokens, at_once, named):
    """Others' prompts are a small part of all tokens; short ones may be as many together."""
    made = quiet(rate=4.0)
    for row in made.rows:
        row["replica"] = "vllm-0"
    for name in ("tokens_in", "tokens_out"):
        for replica in REPLICAS[1:]:
            made.counters.pop((name, replica))
    made.forget("sleep", "tokens_out")
    answered = sorted((row["start"] / 1e9 + 0.2, row["prompt_tokens"]) for row in made.rows)

    def counted(t: float, *, of_rows: bool) -> float:
        mine = [prompt if of_rows else 1 for at, prompt in answered if t - EVERY_S < at <= t]
        theirs = (tokens if of_rows else at_once) * (
            t >= AFTER.start and int(t / EVERY_S) % 4 == 0
        )
        return (sum(mine) + theirs) / EVERY_S

    made.counters["tokens_in", "vllm-0"] = lambda t: counted(t, of_rows=True)
    made.counters["ttft_count", "vllm-0"] = lambda t: counted(t, of_rows=False)
    for row in made.after():
        if int(row["start"] / 1e9 / EVERY_S) % 4 == 0:
            row["first_chunk_s"] += 0.5
    found = made.findings(metric="ttft_s")["head_of_line"]

    assert (found.status in SURE) == named


def test_as_many_prompt_tokens_in_many_more_requests_are_no_documents():
    """They have ordinary lengths: the engine counts who ended."""
    made = others_prompts()
    made.counters["e2e_count", "vllm-0"] = lambda t: 24.0 if t >= AFTER.start else 4.0

    assert made.findings(metric="ttft_s")["head_of_line"].status not in SURE


@pytest.mark.parametrize(("named", "parts"), [(True, (2.0, 0.0, 0.0)), (False, (0.7, 0.7, 0.7))])
def test_engines_count_how_requests_are_divided(named, parts):
    """No row names its engine: what each of them counts says which one gets more."""
    made = quiet()
    made.forget_rows("replica")
    for replica, after in zip(REPLICAS, parts, strict=True):
        made.counters["e2e_count", replica] = lambda t, after=after: (
            after if t >= AFTER.start else ALL
        )
    for row in made.after():
        row["queue_s"] += 0.5

    found = made.findings(metric="ttft_s")["replica_imbalance"]

    assert (found.status in SURE) == named


def test_a_share_that_is_even_again_is_no_imbalance():
    """A replica that had less than the others gets as much as they do."""
    made = quiet()
    for i, row in enumerate(made.rows):
        few = row["start"] < AFTER.start * 1e9 and i % 4
        if few and row["replica"] == "vllm-1":
            row["replica"] = REPLICAS[2 * (i % 2)]
    for row in made.after():
        row["prefill_s"] *= 2

    assert made.findings()["replica_imbalance"].status not in SURE


@pytest.mark.parametrize(("ended", "few"), [(2.0, 0.0), (3.0, 0.0), (2.0, 0.15)])
def test_deferred_requests_may_wait_for_an_adapter_that_others_want(ended, few):
    """Rows are of one adapter: of others, an engine's count or a few rows tell."""
    made = quiet()
    for number, row in enumerate(made.rows):
        late = row["start"] >= AFTER.start * 1e9
        row["model"] = "claims" if not late or number % 100 >= 100 * few else "letters"
        row["queue_s"] = 0.01 + (1.5 if late and number % 3 == 0 else 0.0)
    made.gauge("waiting", 6.0)
    made.gauge("waiting_deferred", 6.0)
    for replica in REPLICAS:
        made.counters["e2e_count", replica] = lambda t: (ended if t >= AFTER.start else 2.0) / 3
        made.counters["external_prefix_queries", replica] = lambda _: 0.0
    for facts in made.facts.values():
        facts.pop("kv_connector", None)
    found = made.findings(metric="ttft_s")
    others = ended > 2 or few > 0

    assert (found["lora_slots"].status in ("likely", "confirmed")) == others
    assert (found["grammar_compilation"].status == "likely") == (not others)
