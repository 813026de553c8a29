"""Does triage hold on a log of requests as others keep it: no stages, engines or traces?

Made after logs whose author had read the docs only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
import pytest

from llmtrace.dataset.case import Case, signals_from
from llmtrace.dataset.columns import from_dicts
from llmtrace.dataset.rows_in_order import evenly_weighted, in_order
from llmtrace.triage.evidence.changes import shift
from llmtrace.triage.pipeline import Settings, triage
from llmtrace.triage.report.next_steps import next_steps, would_settle
from llmtrace.triage.result import SURE, Result
from llmtrace.triage.windows.search_rows import search_elsewhere, search_rows

START: Final = 1_795_780_800  # of four hours
ONSET: Final = START + 8400
COUNT: Final = 4000
QUICK: Final = Settings(bootstrap=0)
Row = dict[str, Any]
Rows = list[Row]
Change = Callable[[dict[str, Any], np.random.Generator], None]


def log_of(change: Change, *, seed: int = 1) -> Rows:
    """Return the requests of four hours, of which those after the onset are changed."""
    dice = np.random.default_rng(seed)
    rows = []
    for seconds in np.sort(dice.uniform(0, 14_400, COUNT)):
        row = {
            "start": round((START + seconds) * 1000) * 10**6,
            "model": str(dice.choice(["big", "big", "mini"])),
            "tenant": str(dice.choice(["acme", "globex", "initech", "umbrella"])),
            "replica": f"llm-{dice.integers(4)}",
            "outcome": "success",
            "prompt_tokens": int(dice.lognormal(6.5, 0.9)),
            "output_tokens": int(dice.lognormal(5.0, 0.7)) + 1,
            "version": "1.4.0",
            "slower": 1.0,
        }
        if seconds >= ONSET - START:
            change(row, dice)
        first = (0.15 + row["prompt_tokens"] * 2e-4) * dice.lognormal(0.0, 0.3)
        row["ttft_s"] = round(first * row["slower"] + row.pop("later", 0.0), 4)
        row["e2e_s"] = round(row["ttft_s"] + row["output_tokens"] * 0.0123, 4)
        del row["slower"]
        rows.append(row)
    return rows


def slow_replica(row: dict[str, Any], _dice: np.random.Generator) -> None:
    """One of four replicas takes three times as long."""
    row["slower"] = 3.0 if row["replica"] == "llm-2" else 1.0


def slow_model(row: dict[str, Any], _dice: np.random.Generator) -> None:
    """One of two models takes 60 % longer."""
    row["slower"] = 1.6 if row["model"] == "mini" else 1.0


def long_prompts(row: dict[str, Any], _dice: np.random.Generator) -> None:
    """One of four tenants sends prompts three times as long."""
    row["prompt_tokens"] *= 3 if row["tenant"] == "acme" else 1


def deployment(row: dict[str, Any], _dice: np.random.Generator) -> None:
    """A new version takes 0.4 s longer."""
    row |= {"version": "1.5.0", "later": 0.4}


def dies(row: dict[str, Any], dice: np.random.Generator) -> None:
    """One of four replicas fails for two minutes, and then gets nothing for half an hour."""
    since = row["start"] / 1e9 - ONSET
    if row["replica"] == "llm-2" and since < 120:
        row |= {"outcome": "error", "http_status": 502}
    elif row["replica"] == "llm-2" and since < 1800:
        row["replica"] = f"llm-{dice.choice([0, 1, 3])}"
    row["slower"] = 2.0 if since < 1800 else 1.0


def sent_again(row: dict[str, Any], dice: np.random.Generator) -> None:
    """One request in six is sent again after 0.8 s, whose first status is not logged."""
    if dice.random() < 1 / 6:
        row |= {"attempts": 2, "retry_s": 0.8, "later": 0.8}


def growing(row: dict[str, Any], dice: np.random.Generator) -> None:
    """Waits grow from nothing, in a straight line."""
    minutes = (row["start"] / 1e9 - ONSET) / 60
    row["later"] = min(8.0, 0.2 * minutes) * float(dice.uniform(0.0, 2.0))


def triaged(rows: Rows) -> Result:
    """Triage a log, of which no engine reports anything."""
    return triage(Case(rows=from_dicts(rows), signals=signals_from(())[0]), QUICK)


@cache
def result_of(change: Change) -> Result:
    """Triage a log."""
    return triaged(log_of(change))


def status_of(result: Result, cause: str) -> str:
    """Return the status of one cause."""
    return next(one.status for one in result.causes if one.id == cause)


def test_a_sample_by_duration_leans_to_no_replica():
    """All slow requests are kept, and a tenth of the others, each with its weight."""
    dice = np.random.default_rng(2)
    rows = []
    for row in log_of(slow_replica):
        weight = 1 if row["ttft_s"] >= 0.6 else 10
        if dice.random() * weight < 1:
            rows.append({**row, "weight": weight})
    result = triaged(rows)

    assert status_of(result, "replica_imbalance") not in {"confirmed", "likely", "possible"}
    assert result.cohorts[0].attributes == {"replica": "llm-2"}


@pytest.mark.parametrize("heavy", [1.0, 10.0])
def test_rows_of_even_weight_stand_for_as_many(heavy):
    """As many requests of each kind as the weights say, within chance."""
    kinds = ["a"] * 3000 + ["b"] * 300
    rows = from_dicts(
        {"start": START * 10**9 + i, "model": kind, "weight": 1.0 if kind == "a" else heavy}
        for i, kind in enumerate(kinds)
    )
    drawn = evenly_weighted(rows)
    (weight,) = np.unique(drawn.weights)

    assert weight == heavy
    assert weight * drawn.words["model"].where("a").sum() == pytest.approx(3000, rel=0.2)
    assert weight * drawn.words["model"].where("b").sum() == 300 * heavy


def test_a_slower_model_waits_for_no_adapter():
    """Nothing says that it waits in an engine; whom it concerns is said."""
    result = result_of(slow_model)

    assert status_of(result, "lora_slots") == "unknown"
    assert result.cohorts[0].attributes == {"model": "mini"}


@pytest.mark.parametrize("change", [slow_replica, slow_model, deployment, growing])
def test_the_onset_is_held(change):
    """Also if others hide it, and if a straight rise has a bent logarithm."""
    onset = result_of(change).onset

    assert onset is not None
    assert onset.earliest <= ONSET + onset.gap_s
    assert onset.latest >= ONSET - onset.gap_s
    assert abs(onset.best - ONSET) < (600 if change is growing else 120)


def test_who_sends_long_prompts_is_said():
    """With the cause, and with what to do."""
    first = result_of(long_prompts).causes[0]

    assert first.id == "long_prompts"
    assert first.group == {"tenant": "acme"}
    assert "the longer ones come from tenant=acme" in first.action


def test_a_deployment_as_it_began_comes_first():
    """It is what to look at, whatever is not reported."""
    assert next_steps(result_of(deployment))[0].startswith(
        "It began with a deployment (first request of version 1.5.0)"
    )
    assert not any("deployment" in text for text in next_steps(result_of(slow_model)))


def test_without_any_stage_that_is_what_is_missing():
    """Not three fields that only llmtrace's own rows have."""
    assert [text.partition(",")[0] for text in would_settle(result_of(deployment))] == [
        "the stages of each request"
    ]


def test_a_replica_that_fails_and_serves_nothing_afterwards_is_down():
    """The others get its share because it died, and no balancer prefers them."""
    rows = log_of(dies)
    failed = [row for row in rows if row["outcome"] == "error"]
    assert len(failed) >= 2

    found = triaged(rows)

    assert (found.causes[0].id, found.causes[0].status) == ("engine_down", "confirmed")
    assert "none is served for 1,8" in found.causes[0].evidence[1].text  # it came back
    assert status_of(found, "replica_imbalance") not in SURE
    assert status_of(found, "provider_errors") not in SURE


def test_retries_without_a_status_are_possibly_of_a_limit():
    """They came too soon for an attempt that was never answered, and no gateway is reported."""
    rows = [{"attempts": 1, "retry_s": 0.0, **row} for row in log_of(sent_again)]
    first = triaged(rows).causes[0]

    assert (first.id, first.status) == ("rate_limit_retries", "possible")
    assert not any("not reported" in one.text for one in first.evidence)


def test_a_log_of_chunks_gives_its_decode_too():
    """Of one chunk there is no time after it."""
    row = {"start": 1, "ttft_s": 0.5, "e2e_s": 2.5, "output_tokens": 21, "outcome": "success"}
    rows = from_dicts([{**row, "chunks": n} for n in (20, 1)])

    assert rows.numbers["decode_s"].tolist() == pytest.approx([2.0, np.nan], nan_ok=True)
    assert rows.numbers["tpot_s"].tolist() == pytest.approx([0.1, np.nan], nan_ok=True)


def test_the_order_of_rows_does_not_matter():
    """A database gives them in any order."""
    rows = log_of(slow_replica)
    dice = np.random.default_rng(3)
    shuffled = [rows[i] for i in dice.permutation(len(rows))]
    other = triaged(shuffled)

    assert other.causes == result_of(slow_replica).causes


def test_rows_that_are_there_twice_count_once():
    """Starts are in whole milliseconds, but two requests do not take as many microseconds."""
    rows = log_of(slow_replica)
    whole = [{**row, "ttft_s": 1.0, "e2e_s": 2.0} for row in rows]

    assert in_order(from_dicts(rows + rows[:500]))[1] >= 495
    assert in_order(from_dicts(whole + whole[:500]))[1] == 0


@pytest.mark.parametrize(("long", "beyond"), [(8, True), (2, False)])
def test_a_few_waits_far_longer_than_any_before_are_beyond_chance(long, beyond):
    """One request in seven waits for 0.4 s, where none had waited for 0.02 s."""
    dice = np.random.default_rng(4)
    before, after = (dice.lognormal(-5.5, 0.4, 58) for _ in range(2))
    after[[2, 5, 8, 11, 14, 17, 20, 50][:long]] = 0.4
    t = np.arange(58) * 0.45
    found = shift(before, t, after, t + 30, waits=True)

    assert found is not None
    assert found.mean_rose(0.01) is beyond
    assert not shift(before, t, after, t + 30).mean_rose(0.01)  # type: ignore[union-attr]


def drifting(row: Row, seconds: float) -> None:
    """Responses are longer for a while, and again, as the mix of a day varies."""
    if 600 <= seconds < 2400 or 4200 <= seconds < 12_600:
        row["output_tokens"] = round(1.5 * row["output_tokens"])


def not_streamed(row: Row, seconds: float) -> None:
    """In the last 15 minutes, a quarter of the requests are not streamed any more."""
    if seconds >= 13_500 and row["tenant"] == "acme":
        row |= {"stream": False, "first": None}


def stopped(row: Row, seconds: float) -> None:
    """In the last 20 minutes, one request in ten still comes."""
    row["gone"] = seconds >= 13_200 and row["start"] // 10**6 % 10 > 0


def stuck(row: Row, seconds: float) -> None:
    """For four minutes, requests wait for their end."""
    if 12_000 <= seconds < 12_240:
        row["later"] = 12_240 - seconds


@pytest.mark.parametrize(
    ("change", "cause", "since"),
    [(not_streamed, "streaming_off", 13_500), (stopped, "traffic_lost", 13_200),
     (stuck, None, 12_000)],
)  # fmt: skip
def test_what_is_surely_dated_is_found_beside_a_level_that_drifts(change, cause, since):
    """The longer stretch has more requests in it, and nothing that explains it."""
    rows = []
    for row in log_of(lambda _row, _dice: None):
        row["stream"] = True
        seconds = row["start"] / 1e9 - START
        drifting(row, seconds)
        change(row, seconds)
        row["ttft_s"] += row.pop("later", 0.0)
        row["e2e_s"] = row["ttft_s"] + row["output_tokens"] * 0.0123
        if row.pop("first", 0.0) is None:
            row["ttft_s"] = None
        if not row.pop("gone", False):
            rows.append(row)

    found = triaged(rows)

    assert found.onset is not None
    assert abs(found.onset.best - START - since) < 60
    if cause is not None:
        assert found.causes[0].id == cause


def test_of_many_requests_only_surely_dated_times_are_tried_beside_what_a_search_found():
    """Fixed splits and drifting levels explain something on any day."""
    rows = [{**row, "stream": True} for row in log_of(lambda _row, _dice: None)]
    for row in rows:
        not_streamed(row, row["start"] / 1e9 - START)
    case = Case(rows=from_dicts(rows), signals=signals_from(())[0])
    search = search_rows(case.rows, None, before=None, after=None, at=None, metric=None)

    found = [one.chosen for one in search_elsewhere(search, case, nothing=False)]

    assert {one.dated_by for one in found} == {"the requests' stream"}
    assert all(one.dated for one in found)
