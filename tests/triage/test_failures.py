"""Does a triage of failures say what failed, whose requests, and what to do?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmtrace.dataset.case import Case, Window, no_signals, read_case
from llmtrace.dataset.columns import from_dicts
from llmtrace.triage.named_causes import with_proof
from llmtrace.triage.pipeline import Settings, triage
from llmtrace.triage.report.naming import headline, losses
from llmtrace.triage.report.sentences import facts
from llmtrace.triage.result import SURE, Finding, Point, Result
from llmtrace.triage.verdict import Judged

from .test_most_of_the_wait import MOVED

ONSET = 1_790_000_000 + 3600.0
BEFORE, AFTER = Window(ONSET - 3600, ONSET), Window(ONSET, ONSET + 1200)
Row = dict[str, Any]
OK = {"outcome": "success", "http_status": 200, "attempts": 1}


def case(change: Callable[[Row, np.random.Generator], Row | None]) -> Case:
    """Return requests to a hosted model, one a second; `change` makes those after the onset."""
    dice = np.random.default_rng(7)
    rows = []
    for t in np.arange(BEFORE.start, AFTER.end, 1.0) + dice.uniform(0, 1, 4800):
        first = float(dice.lognormal(-0.7, 0.3))
        row: Row = {
            **OK, "start": int(t * 1e9), "ttft_s": first, "e2e_s": first + 4.0, "stream": True,
            "prompt_tokens": int(dice.integers(100, 2000)), "output_tokens": 200, "tpot_s": 0.02,
            "tenant": str(dice.choice(["a", "b", "c"], p=[0.5, 0.3, 0.2])),
            "region": str(dice.choice(["eu", "us"], p=[0.7, 0.3])),
        }  # fmt: skip
        made = row if t < ONSET else change(row, dice)
        if made is not None:
            rows.append(made)
    return Case(rows=from_dicts(rows), signals=no_signals(), before=BEFORE, after=AFTER)


def failed(row: Row, **said: Any) -> Row:
    """Return a request as one that failed before anything came."""
    left = {name: row[name] for name in row if name not in ("ttft_s", "tpot_s", "output_tokens")}
    return left | {"outcome": "error", "e2e_s": 0.1, "http_status": None} | said


def a_third(**said: Any) -> Case:
    """Let a third of the requests fail."""
    return case(lambda row, dice: failed(row, **said) if dice.random() < 1 / 3 else row)


def found(one: Case, cause: str) -> Finding:
    """Return what is said of a cause."""
    return next(finding for finding in triaged(one).causes if finding.id == cause)


def triaged(one: Case) -> Result:
    """Triage without intervals, which take long."""
    return triage(one, Settings(bootstrap=0))


def test_a_busy_provider_is_no_quota():
    """529 and 503 that are not sent again are no rate limit, whatever their type is called."""
    for status, kind in ((529, "OverloadedError"), (503, "InternalServerError")):
        finding = found(a_third(http_status=status, error_type=kind), "rate_limit_retries")

        assert finding.status == "ruled_out"


def test_a_quota_is_one_by_its_status_or_its_words():
    """429 says so, and so does an error type that names a limit."""
    for said in ({"http_status": 429}, {"error_type": "RateLimitError"},
                 {"error_type": "insufficient_quota"}):  # fmt: skip
        finding = found(a_third(**said), "rate_limit_retries")

        assert finding.status == "confirmed"
        assert "quota" in finding.action
        assert not any("0.0 → 0.0 %" in point.text for point in finding.evidence)


def test_retries_after_errors_of_the_provider_do_not_ask_for_a_quota():
    """Who sends again after 503 waits for the backoff; no quota is the cause, and none helps."""

    def retried(row: Row, dice: np.random.Generator) -> Row:
        wait = float(dice.uniform(1, 3))
        row |= {"attempts": 3, "retry_s": wait, "gateway_s": wait, "ttft_s": row["ttft_s"] + wait}
        return failed(row, http_status=503, attempts=4) if dice.random() < 0.2 else row

    result = triaged(case(retried))
    finding = next(one for one in result.causes if one.id == "rate_limit_retries")

    assert next(iter(result.causes)).id == "provider_errors"
    assert finding.status not in SURE
    assert "status page" in finding.action
    assert "quota" not in finding.action


@pytest.mark.parametrize(("status", "named"), [(503, True), (429, False)])
def test_a_provider_fails_whose_errors_most_retries_get_over(status, named):
    """A handful of requests fail all the same, and say why the others were sent again."""

    def retried(row: Row, dice: np.random.Generator) -> Row:
        wait = float(dice.uniform(1, 3)) * (dice.random() < 0.2)
        row |= {"retry_s": wait, "gateway_s": wait, "ttft_s": row["ttft_s"] + wait}
        row["attempts"] = 3 if wait else 1
        return failed(row, http_status=status, attempts=4) if dice.random() < 0.004 else row

    result = triaged(case(retried))
    cause = next(one for one in result.causes if one.id == "provider_errors")

    assert (cause.status in SURE) is named
    assert (next(iter(result.causes)).id == "rate_limit_retries") is not named


@pytest.mark.parametrize(
    ("status", "named"), [(429, "rate_limit_retries"), (503, "provider_errors")]
)
def test_what_every_retry_gets_over_is_named_by_its_status(status, named):
    """No request fails, and the status that was retried still says why users wait."""

    def retried(row: Row, dice: np.random.Generator) -> Row:
        if dice.random() < 0.8:
            return row
        wait = float(dice.uniform(1, 3))
        row |= {"attempts": 2, "retried_status": status, "retry_s": wait, "gateway_s": wait}
        return row | {"ttft_s": row["ttft_s"] + wait, "e2e_s": row["e2e_s"] + wait}

    first, *_ = triaged(case(retried)).causes

    assert (first.id, first.status in SURE) == (named, True)


def test_a_server_that_hangs_is_not_left_by_its_clients():
    """Time-outs after 30 s, where responses take 4 s, are the server's and no cancellations."""
    hanging = a_third(outcome="timeout", e2e_s=30.0, error_type="APITimeoutError")

    assert found(hanging, "client_give_ups").status == "ruled_out"


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({"http_status": 503, "error_type": "InternalServerError"}, "confirmed"),
        ({"http_status": 529, "error_type": "OverloadedError"}, "confirmed"),
        ({"error_type": "ConnectError"}, "likely"),
        ({"outcome": "timeout", "e2e_s": 30.0, "error_type": "APITimeoutError"}, "likely"),
    ],
)
def test_a_provider_that_fails_is_named_with_what_to_do(said, status):
    """Its errors prove it; what is refused or hangs may be so on the way as well."""
    first = next(iter(triaged(a_third(**said)).causes))

    assert (first.id, first.status) == ("provider_errors", status)
    assert "fail over" in first.action


@pytest.mark.parametrize(
    "said",
    [
        {"http_status": 400}, {"http_status": 429},
        {"http_status": 503, "error_type": "insufficient_quota"},
        {"outcome": "timeout", "e2e_s": 2.0}, {"outcome": "cancelled", "e2e_s": 2.0},
    ],
)  # fmt: skip
def test_what_the_client_makes_fail_is_no_fault_of_the_provider(said):
    """A bad request, a quota, a deadline shorter than responses are, a cancellation."""
    assert found(a_third(**said), "provider_errors").status == "ruled_out"


def test_a_stream_that_breaks_was_no_connection_refused():
    """The same error before the first content is: no server took the request."""
    error = "RemoteProtocolError"
    cut = {"outcome": "truncated", "error_type": error, "ttft_s": None}

    begun = a_third(**cut | {"ttft_s": 0.5, "e2e_s": 0.9})

    assert found(begun, "provider_errors").status == "ruled_out"
    assert found(a_third(**cut), "provider_errors").status == "likely"


def test_clients_that_cancel_or_shorten_their_deadline_are_counted_alike_everywhere():
    """One count of both; what each comes to is said."""
    counts = {"cancelled": "{n} cancelled, 0 by", "timeout": "0 cancelled, {n} by"}
    for outcome, said in counts.items():
        one = a_third(outcome=outcome, e2e_s=2.0)
        finding = found(one, "client_give_ups")
        n = int(one.rows.words["outcome"].where(outcome).sum())

        assert finding.status == "confirmed"
        assert said.format(n=n) in finding.evidence[0].text


def test_failures_are_localised_and_their_kind_is_said():
    """The headline has shares and the commonest kind; affected is who fails; none grew."""
    result = triaged(
        case(lambda row, _: failed(row, http_status=401) if row["tenant"] == "a" else row)
    )

    assert losses(result)[0].startswith("failed requests 0.0 % → ")
    assert "HTTP 401: " in result.reason
    (one,) = result.cohorts
    assert one.attributes == {"tenant": "a"}
    assert one.fails
    assert one.excess_share > 0.95
    assert not result.grew


def test_failures_everywhere_affect_all():
    """What fails alike in all tenants and regions is of none of them."""
    assert not triaged(a_third(http_status=500)).cohorts


def test_a_region_that_stops_is_found():
    """In given windows and without; with its shares."""
    lost = case(lambda row, _: None if row["region"] == "us" else row)
    for one in (lost, Case(rows=lost.rows, signals=no_signals())):
        result = triaged(one)

        assert result.verdict == "traffic"
        assert "region=us (3" in result.reason
        assert "→ 0 % of requests" in result.reason


def test_no_rows_are_no_requests_where_there_are_no_signals():
    """A window that was given, and in which no request began, is a total loss."""
    result = triaged(case(lambda _row, _dice: None))

    assert result.verdict == "traffic"
    assert result.load["after"].requests_per_s == 0
    assert result.onset.best == pytest.approx(ONSET, abs=10)
    assert next(iter(result.causes)).id == "traffic_lost"


@pytest.mark.parametrize(
    ("verdict", "said"),
    [("improvement", "traffic"), ("workload", "traffic"), ("new_workload", "traffic"),
     ("regression", "regression"), ("mixed", "mixed")],
)  # fmt: skip
def test_lost_requests_are_the_verdict_whatever_they_make_of_the_others(verdict, said):
    """Who is left is faster, or another mix; what is slower or fails stays so."""
    points = (Point("requests 15.2 → 6.01 a second", 6), Point("only region=us", 10))
    lost = Finding(id="traffic_lost", status="confirmed", score=16, evidence=points)
    judged = with_proof(
        Judged(verdict, "tpot p95 31 → 24 ms."), [lost], MOVED, few=False, beside=False
    )

    assert judged.verdict == said
    assert judged.reason.startswith("Requests 15.2 → 6.01 a second. Only region=us.") == (
        said == "traffic"
    )


def searched(seconds: int, change: Callable[[Row, int, np.random.Generator], Row]) -> Result:
    """Search so many seconds of one request each; `change` gets each row and its second."""
    made = iter(range(seconds))

    def changed(row: Row, dice: np.random.Generator) -> Row | None:
        second = next(made, None)
        return None if second is None else change(row, second, dice)

    whole = case(changed)
    rows = whole.rows.within(AFTER.start, AFTER.end)
    return triaged(Case(rows=rows, signals=no_signals()))


def test_failures_that_the_search_finds_are_held_against_chance_once():
    """Eleven of 190 requests: the windows are those of a rise that began before, and ended."""

    def change(row: Row, second: int, _dice: np.random.Generator) -> Row:
        slower = row | {"ttft_s": 3 * row["ttft_s"]} if 150 <= second < 430 else row
        return failed(row) if 220 <= second < 410 and second % 18 == 0 else slower

    result = searched(660, change)

    assert (result.verdict, result.outcomes.significant) == ("regression", True)
    assert "of requests fail" in result.reason


def test_tokens_that_came_in_one_chunk_make_no_incident_of_a_few_requests():
    """They took no time, which says nothing of the engine's pace: there is little to compare."""

    def change(row: Row, second: int, dice: np.random.Generator) -> Row:
        return row | {"tpot_s": 0.0 if second == 595 else float(dice.lognormal(-4, 0.3))}

    assert [one for one in searched(600, change).incidents if one.requests < 10] == []


def without_windows(recording: str) -> Case:
    """Return a recording as a search of its time gets it."""
    one = read_case(Path(__file__).parent / recording)
    return replace(one, before=None, after=None, metric=None)


@pytest.mark.parametrize(
    ("recording", "said"),
    [("recorded_fourth/one-of-two-killed",
      "failed requests 0.0 % → 12.2 % · time to first token p95 of all requests 1,293 → 7,431 ms"),
     ("recorded/proxy-gzip", "proxy_buffering confirmed · time per output token p95 20.5 → 1.7")],
)  # fmt: skip
def test_it_is_not_faster_where_something_got_worse(recording, said):
    """Fewer tokens at once are faster, if an engine is dead; the headline says what was lost."""
    result = triage(without_windows(recording), Settings(bootstrap=0))

    assert result.verdict == "regression"
    assert headline(result).startswith(said)
    moved = dict(facts(result)).get("also moved", "")
    assert "time per output token" not in moved.replace("time per output token (faster)", "")


def test_a_time_in_a_short_incident_is_compared_with_what_was_before_it():
    """The data begin half a minute before: no window of hours is laid around the time."""
    case = without_windows("recorded_seventh/scaled-to-none")
    middle = float(np.median(case.rows.start[case.rows.failed])) / 1e9
    result = triage(case, Settings(bootstrap=0, at=middle))

    assert headline(result).startswith("failed requests 0.0 % → 98.5 %")
    assert result.before.n > 0


def test_what_only_answers_tell_makes_no_failed_requests_a_group():
    """They name the client's default provider, and have no lengths: that is no kind of request."""

    def change(row: Row, dice: np.random.Generator) -> Row:
        if dice.random() < 0.7:
            return row
        unanswered = {k: v for k, v in failed(row).items() if not k.endswith("_tokens")}
        return unanswered | {"provider": "openai"}

    one = case(change)
    provider = one.rows.words["provider"]
    codes, names = provider.codes.copy(), [*provider.names, "vllm"]
    codes[codes < 0] = len(names) - 1
    words = {**one.rows.words, "provider": replace(provider, codes=codes, names=tuple(names))}
    result = triaged(replace(one, rows=replace(one.rows, words=words)))

    assert result.outcomes.significant
    assert result.cohorts == ()
    assert not any("are new" in text for text in result.quality.warnings)


def test_a_window_without_requests_is_said_to_have_none():
    """Not that its rows lack models and outcomes."""
    texts = dict(facts(triaged(case(lambda _row, _dice: None))))

    assert texts["affected"] == "no requests now"
    assert texts["outcomes"].endswith("no requests now")


@pytest.mark.parametrize(("broken", "status"), [(0.3, "possible"), (0.0, "likely")])
def test_what_breaks_streams_also_ends_a_few_before_their_first_chunk(broken, status):
    """Connections closed before anything came are a failing provider only by themselves."""
    closed = {"outcome": "truncated", "error_type": "RemoteProtocolError"}

    def cut(row: Row, dice: np.random.Generator) -> Row:
        chance = dice.random()
        if chance < 0.05:
            return failed(row, **closed)
        return row | closed | {"e2e_s": 0.5 + 4 * chance} if chance < 0.05 + broken else row

    assert found(case(cut), "provider_errors").status == status
