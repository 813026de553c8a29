"""Many requests summed up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.budget import Budget
from llmtrace.core.row import OUTCOMES
from llmtrace.core.stages import STAGES, Network, Reported, Stages, Timeline
from llmtrace.dataset.summary import mean_changes, summarise
from llmtrace.testing import make_row
from tests.strategies import requests

MS = 1_000_000


def request(queue_ms=10, e2e_ms=500, **fields):
    """Make a row whose stages are all known."""
    timeline = Timeline(
        e2e=e2e_ms * MS,
        ttft=300 * MS,
        held_after=5 * MS,
        network=Network(send=MS, rtt=MS),
        gateway=Reported(12 * MS, "server_timing"),
        queue=Reported(queue_ms * MS, "engine_inband"),
        prefill=Reported(50 * MS, "engine_inband"),
    )
    return make_row(timeline=timeline, **fields)


def line(summary, name):
    """Return one line of a summary."""
    return next(one for one in (*summary.stages, *summary.metrics) if one.name == name)


@given(st.lists(requests, min_size=1, max_size=4))
def test_the_shares_add_up(some):
    """The shares of the stages and of what cannot be split come to 1, whatever the rows."""
    summary = summarise(some, Budget())
    waited = sum(row.e2e_ns for row in some if row.outcome == "success")
    shares = [one.share for one in summary.stages if one.share is not None]

    assert sum(shares) == pytest.approx(1.0 if waited else 0.0)


@given(st.lists(requests, max_size=4))
def test_every_row_is_checked(some):
    """The stages of every row add up to its e2e, whatever its outcome."""
    assert summarise(some, Budget()).exact == len(some)


def test_a_row_that_does_not_add_up_is_reported():
    """A partition that lost a nanosecond is not counted as exact."""
    wrong = request()
    wrong.__dict__["stages"] = Stages(decode=wrong.e2e_ns - 1)

    assert summarise([wrong, request()], Budget()).exact == 1


def test_what_is_not_reported_is_unknown():
    """A stage no row knows has no figures, no share and no verdict."""
    queue = line(summarise([make_row()], Budget(stages_s={"queue": 0.1})), "queue")

    assert (queue.known, queue.p50_s, queue.high_s, queue.share, queue.verdict) == (
        0, None, None, None, None,
    )  # fmt: skip


def test_a_stage_some_rows_tell_counts_those():
    """Coverage is how many rows know the stage, and the median is over those."""
    queue = line(summarise([request(queue_ms=20), make_row()], Budget()), "queue")

    assert (queue.known, queue.p50_s) == (1, 0.02)


def test_time_that_cannot_be_split_has_a_line_of_its_own():
    """`unattributed` appears where there is some, and only there."""
    assert line(summarise([make_row()], Budget()), "unattributed").share == 0.2
    assert [one.name for one in summarise([request()], Budget()).stages] == list(STAGES)


def test_a_limit_below_the_interval_is_over_above_it_within():
    """The verdict needs the whole interval on one side of the limit."""
    some = [request(queue_ms=n) for n in range(1, 201)]

    def verdict(limit_s):
        return line(summarise(some, Budget(stages_s={"queue": limit_s})), "queue").verdict

    assert [verdict(0.183), verdict(0.190), verdict(0.197)] == ["over", "unclear", "within"]


def test_without_a_limit_there_is_no_verdict():
    """A budget that says nothing of a stage judges nothing."""
    assert line(summarise([request()], Budget()), "queue").verdict is None


def test_the_quantile_is_the_budgets():
    """A budget for the median shows and judges the median."""
    some = [request(queue_ms=n) for n in range(1, 101)]

    assert line(summarise(some, Budget(objective=0.5)), "queue").high_s == 0.05


def test_metrics_are_held_against_the_budget():
    """e2e, ttft and tpot have limits of their own."""
    some = [request(output_tokens=11, last_content_ns=500 * MS)] * 100
    summary = summarise(some, Budget(total_s=0.4, ttft_s=0.4, tpot_s=0.02))

    assert {one.name: (one.high_s, one.verdict) for one in summary.metrics} == {
        "e2e": (0.5, "over"),
        "ttft": (0.3, "within"),
        "tpot": (0.02, "within"),
    }


def test_failures_do_not_enter_the_figures():
    """An error after 1 ms makes no percentile better; it is counted apart."""
    failed = make_row(
        timeline=Timeline(e2e=MS), outcome="error", error_type="openai.RateLimitError"
    )
    summary = summarise([request(), failed], Budget())

    assert line(summary, "e2e").p50_s == 0.5
    assert (summary.rows, summary.succeeded) == (2, 1)
    assert summary.outcomes == {"success": 1, "error": 1}
    assert summary.errors == {"openai.RateLimitError": 1}


def test_outcomes_come_in_their_own_order_and_a_cancel_is_no_error():
    """All five outcomes are counted; the exception a cancelled call ends with is not shown."""
    some = [request(outcome=outcome) for outcome in reversed(OUTCOMES)]
    some.append(request(outcome="cancelled", error_type="asyncio.CancelledError"))
    summary = summarise(some, Budget())

    assert list(summary.outcomes) == list(OUTCOMES)
    assert summary.errors == {}


def test_figures_that_did_not_fit_are_counted():
    """A queue longer than the wait for the first chunk is inconsistent."""
    assert summarise([request(queue_ms=900), request()], Budget()).inconsistent == 1


def test_sources_come_the_most_frequent_first():
    """A stage measured in two ways names both."""
    inband = [request(), request()]
    span = make_row(
        timeline=Timeline(e2e=500 * MS, ttft=300 * MS, queue=Reported(MS, "engine_span"))
    )

    assert line(summarise([span, *inband], Budget()), "queue").sources == (
        "engine_inband", "engine_span",
    )  # fmt: skip


@given(st.lists(requests, min_size=1, max_size=3), st.lists(requests, min_size=1, max_size=3))
def test_changes_of_means_add_up(before, after):
    """What the stages gained and lost comes to what the mean e2e did."""

    def mean(some):
        return sum(row.e2e_ns for row in some) / len(some) / 1e9

    assert sum(mean_changes(before, after).values()) == pytest.approx(
        mean(after) - mean(before), abs=1e-6, rel=1e-6
    )
