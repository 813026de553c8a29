"""Is only that said which the rows know: scope, outcomes, and why there is no verdict?"""

from __future__ import annotations

from dataclasses import replace
from html import unescape
from io import StringIO
from typing import get_args

import numpy as np
import pytest
from rich.console import Console

from llmtrace.core.errors import ConfigError
from llmtrace.core.stages import PARTITION
from llmtrace.dataset.case import Case, Window
from llmtrace.dataset.columns import NUMBERS, from_dicts
from llmtrace.triage.attribution.cohorts import ATTRIBUTES
from llmtrace.triage.oncall.alert import Alert
from llmtrace.triage.oncall.notify import summary
from llmtrace.triage.pipeline import Settings, triage
from llmtrace.triage.report.html import page
from llmtrace.triage.report.next_steps import _TEXTS
from llmtrace.triage.report.sentences import facts
from llmtrace.triage.report.terminal import screen
from llmtrace.triage.result import CAUSES, NAMED, Verdict
from tests.triage.days import START, Kind, day

SETTINGS = Settings(bootstrap=0)


def only(case: Case, *names: str) -> Case:
    """Keep these fields of the rows, and their start."""
    rows = ({"start": row["start"], **{name: row[name] for name in names if name in row}}
            for row in case.rows.to_dicts())  # fmt: skip
    return replace(case, rows=from_dicts(rows))


def test_no_scope_is_claimed_by_fields_that_no_row_has():
    """Which replicas are hit cannot be said where rows name none, nor how requests ended."""
    bare = triage(only(day(after=Kind(prefill=3.0)), "ttft_s", "e2e_s"), SETTINGS)
    said = dict(facts(bare))
    status = {one.id: one.status for one in bare.causes}

    assert said["affected"] == "not reported: model, route, region, replica, tenant"
    assert said["outcomes"] == "failed: not reported · cancelled: not reported"
    unseen = ("engine_down", "midstream_errors", "client_give_ups", "replica_imbalance")
    assert {status[cause] for cause in unseen} == {"unknown"}


def test_the_scope_names_how_many_there_are():
    """Fields with several values are separate from those that have one."""
    whole = triage(day(after=Kind(prefill=3.0)), SETTINGS)

    assert dict(facts(whole))["affected"] == (
        "none stands out of 4 replicas, 6 tenants; one model; not reported: route, region"
    )


@pytest.mark.parametrize("of_case", [True, False])
def test_windows_that_overlap_are_an_error(of_case):
    """Wherever they are from; a request would be compared with itself."""
    case = day()
    wide = replace(case, before=Window(case.before.start, case.after.end))
    with pytest.raises(ConfigError, match="before and after overlap by 5 min"):
        triage(
            wide if of_case else case, replace(SETTINGS, before=None if of_case else wide.before)
        )


def test_a_window_older_than_all_requests_is_searched():
    """An alert of a day's window, of a service that has recorded for minutes: nothing is older."""
    case = replace(day(), before=None, after=None)
    found = triage(case, replace(SETTINGS, after=Window(0.0, case.rows.start[-1] / 1e9)))
    assert any("all of the time was searched" in text for text in found.quality.warnings)
    assert found.after.window == triage(case, SETTINGS).after.window


def test_windows_that_share_a_little_are_cut_apart():
    """Their edges are guesses: what both hold is of the time after, and the report says so."""
    case = day()
    wide = replace(case.before, end=case.after.start + 0.05 * case.after.seconds)
    found = triage(case, replace(SETTINGS, before=wide))
    assert found.before.window.end == case.after.start
    assert any(
        "cut to end where the window after begins" in text for text in found.quality.warnings
    )
    assert found.causes[0].id == triage(case, SETTINGS).causes[0].id


def test_windows_without_rows_say_where_the_rows_are():
    """Their first and last start."""
    case = day()
    found = triage(replace(case, before=Window(1e6, 2e6), after=Window(3e6, 4e6)), SETTINGS)
    said = [text for text in found.quality.warnings if "they start from 2023-11-14" in text]

    assert found.verdict == "not_enough_data"
    assert [text.partition(" (1970-")[0] for text in said] == [
        "no request starts in the window before", "no request starts in the window after"
    ]  # fmt: skip


def test_bursts_are_the_reason_where_they_are():
    """Many requests are not too few: it is said that they are worth few."""
    rows = list(day(n=(3000, 3000)).rows.to_dicts())
    draws = np.random.default_rng(3)
    slow = np.repeat(draws.random(60) < 0.12, 100)
    for row, late in zip(rows, slow, strict=True):
        row["ttft_s"] += 3.0 * late
    middle = rows[3000]["start"] / 1e9
    case = Case(from_dicts(rows), day().signals, before=Window(START, middle),
                after=Window(middle, rows[-1]["start"] / 1e9))  # fmt: skip
    found = triage(case, SETTINGS)

    assert found.verdict == "not_enough_data"
    assert "slow requests come in bursts" in found.reason


@pytest.mark.parametrize(
    ("given", "verdict", "status"),
    [(True, "not_enough_data", "possible"), (False, "no_change", "unknown")],
)
def test_of_windows_that_are_given_what_fits_is_possible(given, verdict, status):
    """Eight requests show no p95; where they must be searched for, chance makes as much."""
    found = triage(day(after=Kind(queued_share=0.5), n=(4000, 8), windows=given), SETTINGS)
    cause = next(one for one in found.causes if one.id == "queue_saturation")

    assert (found.verdict, cause.status) == (verdict, status)
    assert ("more requests" in cause.missing) is given


@pytest.mark.parametrize(("given", "status"), [(True, "likely"), (False, "possible")])
def test_the_time_at_which_most_requests_came_is_no_incident_by_itself(given, status):
    """A search takes it on any day; who asks about a time has a reason to."""
    case = day(Kind(), Kind(rate=12.0), n=(1500, 1500), windows=given)
    found = triage(case, SETTINGS)
    cause = next(one for one in found.causes if one.id == "traffic_surge")

    assert (found.verdict, cause.status) == ("traffic", status)


def test_requests_without_a_first_token_are_counted():
    """What is left out of the p95 is said, and how to say that a request was not streamed."""
    case = day()
    rows = list(case.rows.to_dicts())
    for row in rows[-400:]:
        del row["ttft_s"]
    found = triage(replace(case, rows=from_dicts(rows)), SETTINGS)

    assert any(
        text.startswith("left out, as they report no ttft: 0 of 4,000 requests that succeeded "
                        "before, 400 of 800 after") and "`stream: false`" in text
        for text in found.quality.warnings
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "hosted", "words"),
    [
        (Kind(prefill=3.0, reports=False), True, "the provider's status page"),
        (Kind(slow_replica=6.0), False, "Look at replica vllm-0 beside the others"),
        (Kind(prefill=3.0), False, "Look at the engines' GPUs and prefix caches"),
    ],
)
def test_without_a_cause_the_next_step_follows_from_what_moved(kind, hosted, words):
    """On the screen, the page and in the notification: what to do, and what would settle it."""
    case = day(Kind(reports=kind.reports), kind)
    if hosted:
        case = only(case, *(set(NUMBERS) | {"tenant", "model", "outcome"}))
    found = triage(case, SETTINGS)
    out = StringIO()
    Console(file=out, width=400).print(screen(found))
    alert = Alert(id="1", name="slow", started=START)
    forms = out.getvalue(), unescape(page(found, case)), summary(alert, found, None)

    assert not any(one.status in NAMED for one in found.causes)
    assert [words in form for form in forms] == [True] * 3
    assert ["would settle it: " in form for form in forms] == [True] * 3


def test_every_next_step_is_of_a_stage_field_or_verdict_that_there_is():
    """The table and the code use the same names."""
    assert {*_TEXTS["stage"]} == {*_TEXTS["settle"]} == {*PARTITION}
    assert {*_TEXTS["place"]} <= {*ATTRIBUTES}
    assert {*_TEXTS["verdict"]} <= {*get_args(Verdict)}
    assert {cause for names in _TEXTS["settle"].values() for cause in names} <= {*CAUSES}
