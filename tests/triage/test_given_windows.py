"""What does triage say of windows that were given, where they show nothing or are odd?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from llmtrace.dataset.case import Case, Facts, Window, signals_from
from llmtrace.dataset.columns import from_dicts
from llmtrace.triage.pipeline import Settings, triage
from llmtrace.triage.report.naming import headline, verdict_words
from llmtrace.triage.report.sentences import parts_without
from llmtrace.triage.result import NAMED, Result
from tests.triage.incidents import AFTER, BEFORE, quiet, settle

QUICK = Settings(bootstrap=0)
BEGIN = 1_790_000_000.0


def hosted(n: int, seed: int = 0, start: float = BEGIN, **more: Any) -> list[dict[str, Any]]:
    """Return requests to a hosted API, one every two seconds, 0.6 s to the first token."""
    dice = np.random.default_rng(seed)
    return [
        {
            "start": int((start + 2 * i) * 1e9), "request_id": f"{seed}-{i}", "outcome": "success",
            "http_status": 200, "stream": True, "model": "m", "prompt_tokens": 500,
            "output_tokens": 100, "ttft_s": float(dice.lognormal(-0.5, 0.2)),
            "e2e_s": 3.0 + float(dice.normal(0, 0.1)), **more,
        }
        for i in range(n)
    ]  # fmt: skip


def case_of(rows: list[dict[str, Any]], before: Window, after: Window) -> Case:
    """Make a case of two windows, of which no engine is seen."""
    signals, _ = signals_from([])
    return Case(rows=from_dicts(rows), signals=signals, before=before, after=after)


def named(result: Result) -> list[tuple[str, str]]:
    """Return the causes that are named, with their statuses, the first first."""
    return [(one.id, one.status) for one in result.causes if one.status in NAMED]


def killed_between(seconds: float) -> Case:
    """Make an engine that is killed as the window before ends, and back when the next begins."""
    made = quiet()
    gap = Window(BEFORE.end, BEFORE.end + seconds)
    for i, row in enumerate(quiet(seed=3).rows[: int(2 * seconds)]):
        lost = i % 3 == 0
        row |= {"start": int((gap.start + i / 2) * 1e9), "request_id": f"gap-{i}"}
        if lost:
            row |= {"outcome": "error", "http_status": 502, "never_answered": True,
                    "replica": "vllm-0"}  # fmt: skip
        made.rows.append(row)
    made.dead["vllm-0"] = gap
    made.gauge("started", gap.end - 5, 0.0, "vllm-0")
    made.rows.sort(key=lambda row: row["start"])
    for row in made.rows:
        settle(row)
    signals, _ = signals_from(made._samples())
    return Case(
        rows=from_dicts(made.rows), signals=signals, facts=Facts(made.facts, ()),
        before=BEFORE, after=AFTER,
    )  # fmt: skip


def test_what_happened_between_both_windows_is_looked_at():
    """An engine died and was back before the second window began: both windows are alike."""
    result = triage(killed_between(100.0), QUICK)

    assert named(result)[0] == ("engine_down", "confirmed")
    assert result.after.window == Window(BEFORE.end, AFTER.end)
    assert "the time between both windows" in result.quality.warnings[0]


def refused(rows: list[dict[str, Any]], since: int) -> list[dict[str, Any]]:
    """Have a third of the requests refused for a limit, from one on."""
    for row in rows[since::3]:
        row |= {"http_status": 429, "error_type": "rate_limit_exceeded", "outcome": "error"}
        del row["ttft_s"]
    return rows


def test_a_search_is_made_where_windows_show_nothing_and_is_possible_at_most():
    """Both windows lie within the incident and are alike: a search finds what came before."""
    rows = refused(hosted(700), 300)
    case = case_of(rows, Window(BEGIN + 610, BEGIN + 990), Window(BEGIN + 1000, BEGIN + 1400))

    given = triage(case, QUICK)
    searched = triage(replace(case, before=None, after=None), QUICK)

    assert named(searched)[0][0] == "rate_limit_retries"
    assert named(given)[0] == ("rate_limit_retries", "possible")
    assert given.verdict == "not_enough_data"
    assert "a search chose" in given.quality.warnings[0]


def test_windows_that_show_nothing_of_a_calm_day_stay_as_given():
    """Nothing else is named, and the windows are the user's own."""
    windows = Window(BEGIN, BEGIN + 600), Window(BEGIN + 700, BEGIN + 1300)
    result = triage(case_of(hosted(700), *windows), QUICK)

    assert named(result) == []
    assert (result.before.window, result.after.window) == windows


def test_a_window_that_begins_before_all_data_has_no_fewer_requests_for_that():
    """Half of the window before has no data: as many requests a second come as ever."""
    windows = Window(BEGIN - 600, BEGIN + 600), Window(BEGIN + 600, BEGIN + 1300)
    result = triage(case_of(hosted(650), *windows), QUICK)

    assert named(result) == []
    assert result.load["before"].requests_per_s == result.load["after"].requests_per_s
    assert any("the data begin" in one for one in result.quality.warnings)


def test_windows_that_are_swapped_are_said_to_be():
    """The window before is the later one."""
    windows = Window(BEGIN + 700, BEGIN + 1300), Window(BEGIN, BEGIN + 600)
    doubts = triage(case_of(hosted(700), *windows), QUICK).quality.doubts

    assert any("swapped" in one for one in doubts)


def slower(**without: None) -> Result:
    """Return what is said of requests that are twice as slow."""
    rows = [*hosted(300), *hosted(300, 1, BEGIN + 600)]
    for i, row in enumerate(rows):
        row["ttft_s"] *= 1 + (i >= 300)
        for name in without:
            del row[name]
    windows = Window(BEGIN, BEGIN + 600), Window(BEGIN + 600, BEGIN + 1200)
    return triage(case_of(rows, *windows), QUICK)


def test_more_work_is_not_called_slower_where_no_row_has_token_counts():
    """Then longer prompts look the same: the report says so, and what would settle it."""
    known, unknown = slower(), slower(prompt_tokens=None, output_tokens=None)

    assert (known.verdict, unknown.verdict) == ("regression", "regression")
    assert "the same work takes" in known.reason
    assert "rows have no token counts" in unknown.reason
    assert verdict_words(known)[0].startswith("a regression")
    assert verdict_words(unknown)[0].startswith("slower than before")
    assert unknown.settle[0].startswith("token counts")


def test_parts_that_no_row_reports_are_not_the_same_as_parts_that_are_0():
    """A hosted API reports no stage; mix and decode follow from the token counts and the end."""
    none, missing = parts_without(slower())

    assert "workload mix" in none
    assert {"gateway", "queue", "prefill"} <= {*missing}
    assert not {*none} & {*missing}


def test_who_waits_sends_fewer_requests_and_none_of_them_is_lost():
    """Five users wait three times as long and so send fewer: the impact names no lost requests."""
    rows = [*hosted(300), *hosted(100, 1, BEGIN + 600)]
    for i, row in enumerate(rows[300:]):
        row |= {"ttft_s": 4 * row["ttft_s"], "e2e_s": 9.0,
                "start": int((BEGIN + 600 + 6 * i) * 1e9)}  # fmt: skip
    windows = Window(BEGIN, BEGIN + 600), Window(BEGIN + 600, BEGIN + 1200)
    impact = triage(case_of(rows, *windows), QUICK).impact

    assert impact is not None
    assert impact.lost == 0


def test_a_refusal_for_a_limit_is_no_engine_that_died():
    """A third of the requests gets 429: nothing else fits as well."""
    windows = Window(BEGIN, BEGIN + 600), Window(BEGIN + 600, BEGIN + 1200)
    first = triage(case_of(refused(hosted(600), 300), *windows), QUICK).causes[0]

    assert first.id == "rate_limit_retries"
    assert "engine_down" not in {one.id for one in first.or_else}


def test_a_calm_time_of_few_requests_says_which_rise_it_would_have_shown():
    """The headline is not a difference by chance; of three requests nothing would show."""
    half = Window(BEGIN, BEGIN + 100), Window(BEGIN + 100, BEGIN + 200)
    calm = triage(case_of(hosted(100), *half), QUICK)
    few = triage(case_of(hosted(100)[47:53], *half), QUICK)

    assert (calm.verdict, few.verdict) == ("not_enough_data", "not_enough_data")
    assert verdict_words(calm)[0].startswith("no rise of 1.")
    assert verdict_words(few)[0] == "cannot tell"
    assert headline(calm).endswith("not beyond chance")


def test_nothing_is_the_cause_of_a_new_kind_of_request_that_is_faster():
    """There is nothing to compare it with, and nothing got worse: a full cache is no cause."""
    made = quiet()
    made.gauge("kv_usage", 0.99, 0.005)
    made.gauge("waiting", 9.0, 1.0)
    made.counter("preemptions", 3.0)
    signals, _ = signals_from(made._samples())
    before, after = hosted(100, 0, BEFORE.start), hosted(100, 1, AFTER.start, model="other")
    for row in after:
        row |= {"ttft_s": 0.3 * row["ttft_s"], "e2e_s": 0.5 * row["e2e_s"]}
    result = triage(replace(case_of([*before, *after], BEFORE, AFTER), signals=signals), QUICK)

    assert result.verdict == "new_workload"
    assert named(result) == []


def test_no_window_is_proposed_of_which_there_are_no_data():
    """A file of four requests before has no more of them."""
    windows = Window(BEGIN, BEGIN + 8), Window(BEGIN + 8, BEGIN + 30)
    result = triage(case_of(hosted(15), *windows), QUICK)

    assert "no earlier data were read" in result.settle[0]
