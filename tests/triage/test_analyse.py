"""Does a triage say what happened, in days whose truth is known?"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from llmtrace.core.errors import ConfigError
from llmtrace.dataset.case import Case, Window, no_signals, read_case, write_case
from llmtrace.dataset.columns import concatenate, empty, from_dicts
from llmtrace.dataset.rows_in_order import in_order
from llmtrace.triage.pipeline import Settings, triage
from llmtrace.triage.result import SURE, as_json
from tests.triage.days import START, Kind, day, requests

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / "on-call" / "triage-result.schema.json").read_text(
        "utf-8"
    )
)
QUICK = Settings(bootstrap=30)


def part(result, name):
    """Return one contribution."""
    return next(one for one in result.contributions if one.name == name)


def largest(result):
    """Return the name of the largest contribution."""
    return max(result.contributions, key=lambda one: abs(one.seconds)).name


def adds_up(result):
    """Return whether the contributions come to the change, in whole nanoseconds."""
    return sum(round(one.seconds * 1e9) for one in result.contributions) == round(
        result.delta_s * 1e9
    )


@cache
def queued():
    """A day on which a tenth of the requests began to queue."""
    return triage(day(after=Kind(queued_share=0.1)), QUICK)


def test_a_queue_that_got_longer_is_a_regression_of_the_queue():
    """And of nothing else."""
    result = queued()

    assert (result.verdict, result.metric) == ("regression", "ttft")
    assert largest(result) == "queue"
    assert part(result, "queue").significant
    assert not part(result, "mix").significant
    assert adds_up(result)


@pytest.mark.parametrize(
    ("kind", "metric", "stage"),
    [
        (Kind(prefill=1.8), "ttft", "prefill"),
        (Kind(network=12.0), "ttft", "network"),
        (Kind(decode=1.5), "tpot", "decode"),
    ],
)
def test_a_slower_stage_is_a_regression_of_that_stage(kind, metric, stage):
    """Whichever it is."""
    result = triage(day(after=kind), QUICK)

    assert (result.verdict, result.metric, largest(result)) == ("regression", metric, stage)
    assert adds_up(result)


@pytest.mark.parametrize(
    ("kind", "metric"),
    [(Kind(long_share=0.2), "ttft"), (Kind(prompts=2.0), "ttft"), (Kind(outputs=2.0), "e2e")],
)
def test_other_work_is_a_workload(kind, metric):
    """Nothing got slower: other things are asked for."""
    result = triage(day(after=kind), QUICK)

    assert (result.verdict, result.metric, largest(result)) == ("workload", metric, "mix")
    assert adds_up(result)


def test_other_work_and_a_slower_stage_are_both_told():
    """More long prompts, and a longer way: no engine is shared there."""
    result = triage(day(after=Kind(long_share=0.2, network=8.0), n=(6000, 3000)), QUICK)

    assert result.verdict == "mixed"
    assert part(result, "mix").seconds > 0.05
    assert part(result, "network").seconds > 0.05


@pytest.mark.parametrize("seed", range(8))
def test_a_quiet_day_is_no_change(seed):
    """Nothing moved, no matter how the windows were chosen."""
    given = triage(day(seed=seed), Settings(bootstrap=0))
    found = triage(day(seed=seed, windows=False), Settings(bootstrap=0))

    assert (given.verdict, found.verdict) == ("no_change", "no_change")
    assert not given.moved
    assert not any(one.significant for one in given.contributions)


def test_swapped_windows_tell_the_opposite():
    """Every part has the other sign, and so has the change."""
    case = day(after=Kind(queued_share=0.1))
    swapped = replace(case, before=case.after, after=case.before)
    there = triage(case, Settings(bootstrap=0, metric="ttft"))
    back = triage(swapped, Settings(bootstrap=0, metric="ttft"))

    assert back.delta_s == -there.delta_s
    for one, other in zip(there.contributions, back.contributions, strict=True):
        assert one.seconds == pytest.approx(-other.seconds, abs=2e-9)


def test_shuffled_rows_give_the_same_result():
    """Down to the last digit, intervals included."""
    case = day(after=Kind(prefill=1.8), n=(1500, 500))
    order = np.random.default_rng(1).permutation(len(case.rows))
    shuffled = replace(case, rows=case.rows.take(order))

    assert as_json(triage(shuffled, QUICK)) == as_json(triage(case, QUICK))


def test_doubled_rows_count_once():
    """And it is said that they were doubled."""
    case = day(after=Kind(prefill=1.8), n=(600, 300))
    doubled = replace(case, rows=concatenate([case.rows, case.rows]))
    once, twice = triage(case, QUICK), triage(doubled, QUICK)

    assert twice.quality.duplicates == 900
    assert (twice.before, twice.delta_s) == (once.before, once.delta_s)
    assert any("twice" in warning for warning in twice.quality.warnings)


@pytest.mark.parametrize(
    ("start", "trace", "copies"),
    [(1, "", 1), (0, "", 0), (0, "a" * 32, 1)],
    ids=["exact start", "start in milliseconds", "with a trace"],
)
def test_rows_without_an_id_are_copies_if_all_of_them_is_the_same(start, trace, copies):
    """Not if a clock that ticks in milliseconds and no trace tell requests apart."""
    row = {"start": int(START * 1e9) + start, "e2e_s": 1.0, "model": "m", "trace_id": trace}
    others = [row | {"model": "n"}, row | {"e2e_s": 1.5}, row | {"ttft_s": 0.5}]
    rows, twice = in_order(from_dicts([row, *others, row]))

    assert (len(rows), twice) == (5 - copies, copies)


def test_a_spike_is_found_without_being_pointed_at():
    """Its windows, its onset, and what it was."""
    result = triage(day(after=Kind(queued_share=0.2), windows=False, n=(6000, 1500)), QUICK)
    case = day(after=Kind(queued_share=0.2), n=(6000, 1500))

    assert (result.verdict, largest(result)) == ("regression", "queue")
    assert result.onset.best == pytest.approx(case.after.start, abs=60)
    assert result.after.window.start == pytest.approx(case.after.start, abs=60)
    assert result.before.window.end <= result.after.window.start


def test_a_time_inside_the_incident_is_enough():
    """`at` finds its windows."""
    case = day(after=Kind(queued_share=0.2), windows=False, n=(6000, 1500))
    result = triage(case, replace(QUICK, at=case.rows.start[-700] / 1e9))

    assert (result.verdict, largest(result)) == ("regression", "queue")


def test_a_calm_time_is_answered_by_what_stands_out_elsewhere():
    """An alert may be late, or early; its windows are never without requests."""
    case = day(after=Kind(queued_share=0.2), windows=False, n=(6000, 1500))
    result = triage(case, replace(QUICK, at=case.rows.start[300] / 1e9))

    assert (result.verdict, largest(result)) == ("regression", "queue")
    assert result.quality.warnings[0].startswith("nothing stands out at 20")


def test_a_window_before_can_be_found_for_one_after():
    """And one after for one before."""
    case = day(after=Kind(queued_share=0.2))
    for settings in (
        replace(QUICK, after=case.after),
        replace(QUICK, before=case.before),
    ):
        result = triage(replace(case, before=None, after=None), settings)
        assert (result.verdict, largest(result)) == ("regression", "queue")
        assert result.before.window.end <= result.after.window.start


def test_settings_win_over_the_case():
    """What the caller says is what is compared."""
    case = day(n=(2000, 500))
    half = Window(case.before.start, case.before.start + 200)
    result = triage(case, replace(QUICK, before=half, metric="tpot"))

    assert (result.before.window, result.metric) == (half, "tpot")


def test_one_slow_replica_is_a_cohort():
    """And without it the p95 is what it was."""
    result = triage(day(after=Kind(slow_replica=4.0), n=(5000, 3000)), QUICK)

    assert result.localised
    assert dict(result.cohorts[0].attributes) == {"replica": "vllm-0"}
    assert result.cohorts[0].excess_share > 0.8
    assert result.cohorts[0].traffic_share == pytest.approx(0.25, abs=0.05)
    assert result.cohorts[0].p95_without == pytest.approx(result.before.p95, rel=0.2)


def test_what_hits_everybody_is_not_localised():
    """A slow queue for all is no cohort of anybody."""
    result = queued()

    assert not result.localised
    assert result.cohorts == ()


def test_exemplars_are_requests_nearest_to_the_p95():
    """Slow ones of the window after, normal ones of the window before."""
    case = day(after=Kind(queued_share=0.1))
    result = triage(case, QUICK)

    rows = case.rows
    ids = [rows.id("trace_id", i) for i in range(len(rows))]
    for name, side in (("slow", result.after), ("normal", result.before)):
        assert len(result.exemplars[name]) == 3
        for trace in result.exemplars[name]:
            i = ids.index(trace)
            assert side.window.start <= rows.start[i] / 1e9 < side.window.end
            assert rows.numbers["ttft_s"][i] == pytest.approx(side.p95, rel=0.1)


def test_errors_alone_are_a_regression():
    """Times did not move, but a tenth of the requests fails."""
    result = triage(day(after=Kind(failed=0.1)), QUICK)

    assert result.verdict == "regression"
    assert result.moved == ("errors",)
    assert "fail" in result.reason
    assert result.outcomes.after["error"] > 50


def test_callers_who_give_up_are_told():
    """Whatever became of the p95 of those who waited."""
    result = triage(day(after=Kind(cancelled=0.15)), QUICK)

    assert result.verdict == "regression"
    assert result.moved == ("cancelled",)


def test_an_engine_that_reports_nothing_stays_one_piece():
    """Its wait is `unattributed` in the sum; the estimate of prefill stands beside it, marked."""
    quiet, slow = Kind(reports=False), Kind(reports=False, prefill=2.0)
    result = triage(day(quiet, slow, n=(6000, 2000)), QUICK)

    assert (result.verdict, largest(result)) == ("regression", "unattributed")
    assert part(result, "prefill").seconds == 0.0
    before, after = result.estimates.before, result.estimates.after
    assert (before.source, after.source) == ("estimated", "estimated")
    assert before.per_token_ci[0] < 6e-5 * 1.05
    assert before.per_token_s == pytest.approx(6e-5, rel=0.2)
    assert after.per_token_s == pytest.approx(12e-5, rel=0.2)
    assert after.per_token_ci[0] > before.per_token_ci[1]
    assert 0.5 < before.fit <= 1
    assert any("unattributed" in warning for warning in result.quality.warnings)


def test_an_engine_that_reports_is_not_estimated():
    """What is known is not guessed."""
    assert queued().estimates is None


def test_a_workload_never_seen_before_is_not_compared():
    """Half of the requests are of a model that was not there before."""
    case = day(n=(3000, 800), after=Kind(prefill=2.0))
    new = requests(800, Kind(model="other", prefill=4.0), 99, case.after.start)
    result = triage(replace(case, rows=concatenate([case.rows, new])), QUICK)

    assert result.verdict == "new_workload"
    assert result.quality.unmatched_share == pytest.approx(0.5, abs=0.05)
    assert any("model=other" in warning for warning in result.quality.warnings)
    assert adds_up(result)
    assert result.settle


def test_what_would_have_been_seen_is_said():
    """Nothing moved is a claim only where a rise by a fifth would have shown."""
    many, few = (triage(day(n=(n, n)), QUICK) for n in (3000, 150))

    assert (many.verdict, few.verdict) == ("no_change", "not_enough_data")
    assert many.smallest_visible <= 0.2
    assert few.smallest_visible is None or few.smallest_visible > 0.2
    assert "would have been seen" in few.reason
    assert 0.05 < many.smallest_visible_share < 0.1 < few.smallest_visible_share


def test_forty_requests_are_enough_for_what_is_plain():
    """Half of them queue: to see that takes fewer than an interval of the p95 does."""
    result = triage(day(after=Kind(queued_share=0.5), n=(4000, 40)), QUICK)

    assert result.verdict == "regression"
    assert result.after.p95_ci[1] is None


@pytest.mark.parametrize("n", [(4000, 9), (9, 4000), (0, 500), (0, 0), (1, 1)])
def test_too_few_requests_are_not_enough(n):
    """No verdict, no cause that is more than possible, and what would settle it."""
    result = triage(day(after=Kind(queued_share=0.5), n=n), QUICK)

    assert result.verdict == "not_enough_data"
    assert not any(one.significant for one in result.contributions)
    assert not {one.status for one in result.causes} & SURE
    assert result.settle


def test_a_longer_window_before_is_proposed_where_there_are_data_of_it():
    """The past gets no more requests: a longer window has them, if that is of the data."""
    case = day(n=(4000, 4000))
    starts = case.rows.start[3991:4000:8] / 1e9
    before = Window(float(starts[0]) - 0.001, float(starts[1]) + 0.001)
    result = triage(replace(case, before=before), QUICK)
    alone = triage(day(n=(9, 4000)), QUICK)

    [(start, end, after)] = re.findall(r"`--before (\S+)/(\S+) --after (\S+)`", result.settle[0])
    longer = [datetime.fromisoformat(one).timestamp() for one in (start, end)]
    assert longer[1] - longer[0] == pytest.approx(8.8 * before.seconds, abs=1)
    assert datetime.fromisoformat(after.split("/")[0]).timestamp() >= longer[1]
    assert "no earlier data were read" in alone.settle[0]


def test_far_fewer_requests_in_windows_that_are_given_are_traffic_that_is_lost():
    """Twenty say nothing of a p95, and that there were so few is what is wrong."""
    result = triage(day(after=Kind(rate=0.3), n=(600, 20)), QUICK)

    assert result.verdict == "traffic", result.reason
    assert [one.id for one in result.causes if one.status in ("confirmed", "likely")] == [
        "traffic_lost"
    ]


def test_few_requests_are_warned_of():
    """Between 72 and 200 the interval is wide, and said to be."""
    result = triage(day(after=Kind(queued_share=0.5), n=(4000, 150)), QUICK)

    assert result.verdict == "regression"
    assert any("few requests" in warning for warning in result.quality.warnings)
    assert result.after.p95_ci[0] < result.after.p95 < result.after.p95_ci[1]


def test_that_rows_are_a_sample_is_said():
    """By their weights: counts are of rows, and rates of the requests they stand for."""
    kind, whole = Kind(weight=4.0), triage(day(n=(1000, 400)), QUICK)
    sample = triage(day(before=kind, after=kind, n=(1000, 400)), QUICK)
    [said] = [text for text in sample.quality.warnings if "sample" in text]

    assert said.startswith("a sample: these 1,400 rows stand for 5,600 requests")
    assert sample.after.n == whole.after.n
    rates = [one.load["after"].requests_per_s for one in (sample, whole)]
    assert rates[0] == pytest.approx(4 * rates[1])
    assert not any("sample" in text for text in whole.quality.warnings)


def test_requests_cut_short_are_counted_and_named():
    """They are as slow as when they were cut, at least, and no measurement."""
    case = day(n=(2000, 600))
    flat = list(case.rows.to_dicts())
    for row in flat[-200:]:
        row["outcome"] = "timeout"
        row["e2e_s"] = 60.0
        for name in ("ttft_s", "tpot_s", "queue_s", "prefill_s", "first_chunk_s"):
            row.pop(name)
    result = triage(replace(case, rows=from_dicts(flat)), QUICK)

    assert result.verdict == "regression"
    assert result.quality.censored == (0, 200)
    assert result.after.n == 400
    assert result.changes[0].share_above > 0.3
    assert any("200 requests ended before ttft" in warning for warning in result.quality.warnings)


@pytest.mark.parametrize(
    "metric", ["ttft", "tpot", "e2e", "render", None], ids=lambda metric: metric or "any"
)
def test_results_are_as_the_schema_says(metric):
    """For each metric."""
    from jsonschema import Draft202012Validator

    case = day(after=Kind(queued_share=0.1, slow_replica=3.0), n=(800, 400), metric=metric)
    plain = as_json(triage(case, QUICK))

    Draft202012Validator.check_schema(SCHEMA)
    assert list(Draft202012Validator(SCHEMA).iter_errors(plain)) == []
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


@pytest.mark.parametrize(
    "case",
    [
        Case(empty(), no_signals()),
        day(Kind(reports=False), n=(900, 400)),
        day(n=(30, 10)),
        day(after=Kind(failed=1.0), n=(300, 300)),
    ],
    ids=["empty", "hosted", "tiny", "outage"],
)
def test_odd_results_are_as_the_schema_says_too(case):
    """Of no rows, of an engine that tells nothing, of a handful, of an outage."""
    from jsonschema import Draft202012Validator

    plain = as_json(triage(case, QUICK))

    assert list(Draft202012Validator(SCHEMA).iter_errors(plain)) == []
    json.dumps(plain, allow_nan=False)


def test_constant_rows_did_not_change():
    """Every request took exactly as long as every other."""
    row = {"e2e_s": 1.0, "ttft_s": 0.5, "queue_s": 0.2, "prefill_s": 0.3, "outcome": "success"}
    rows = from_dicts({**row, "start": int((START + i) * 1e9)} for i in range(1000))
    case = Case(
        rows,
        no_signals(),
        before=Window(START, START + 700),
        after=Window(START + 700, START + 1000),
    )
    result = triage(case, QUICK)

    assert (result.verdict, result.delta_s) == ("no_change", 0.0)
    assert {one.seconds for one in result.contributions} == {0.0}


def test_a_case_comes_back_from_its_folder_with_the_same_result(tmp_path):
    """Saved and replayed."""
    case = day(after=Kind(prefill=1.8), n=(900, 400))
    write_case(tmp_path / "case", case)

    assert as_json(triage(read_case(tmp_path / "case"), QUICK)) == as_json(triage(case, QUICK))


def test_requests_that_were_sampled_count_for_those_left_out():
    """Of the fast half one in ten is kept: p95, shares and verdict are as with all of them."""
    case = day(after=Kind(queued_share=0.1, failed=0.1, slow_replica=2.0), n=(9000, 5000))
    rows = case.rows
    fast = np.nan_to_num(rows.numbers["ttft_s"], nan=9.0) < 0.3
    kept = ~fast | (np.arange(rows.n) % 10 == 0)
    weight = np.where(fast, 10.0, 1.0)
    some = replace(rows, numbers={**rows.numbers, "weight": weight}).take(kept)
    all_, sampled = (triage(replace(case, rows=one), QUICK) for one in (rows, some))

    assert (sampled.verdict, sampled.moved) == (all_.verdict, all_.moved)
    assert sampled.after.p95 == pytest.approx(all_.after.p95, rel=0.05)
    assert sampled.after.p95_ci[0] < all_.after.p95 < sampled.after.p95_ci[1]
    assert part(sampled, "queue").seconds == pytest.approx(part(all_, "queue").seconds, rel=0.2)
    assert sampled.changes[0].share_above == pytest.approx(all_.changes[0].share_above, rel=0.1)
    assert sampled.outcomes.failed_after == pytest.approx(all_.outcomes.failed_after, rel=0.1)
    assert sampled.load["after"].requests_per_s == pytest.approx(
        all_.load["after"].requests_per_s, rel=0.1
    )
    assert sum(sampled.anatomy.after.values()) == pytest.approx(sampled.after.p95)
    assert [c.attributes for c in sampled.cohorts] == [c.attributes for c in all_.cohorts]


def test_progress_is_told():
    """From nothing to all of it, never back."""
    seen = []
    triage(day(n=(300, 200)), QUICK, lambda what, share: seen.append((what, share)))

    shares = [share for _, share in seen]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert all(what for what, _ in seen)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"metric": "latency"}, "not one of ttft"),
        ({"bootstrap": -1}, "bootstrap"),
        ({"before": Window(2, 1)}, "does not end"),
        ({"before": Window(1, 10), "after": Window(5, 20)}, "overlap"),
        ({"after": Window(float("nan"), 20)}, "does not end"),
    ],
)
def test_wrong_settings_are_refused(given, said):
    """With what is wrong."""
    with pytest.raises(ConfigError, match=said):
        Settings(**given)
