"""Every HTTP attempt of a request is recorded as it was, within bounds, and survives JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.core.attempts import MAX_ATTEMPTS, Attempt, as_plain, from_plain, keep
from llmtrace.core.errors import DataError
from llmtrace.core.row import from_dict
from llmtrace.testing import make_row
from tests.strategies import attempt_logs
from tests.support.recordings import MS, Request

# Status of an attempt (`None`: its connection broke), how long it took, and the backoff after it.
attempts = st.lists(
    st.tuples(
        st.sampled_from([None, None, 408, 429, 500, 503]),
        st.integers(0, 10**10),
        st.integers(0, 10**10),
    ),
    max_size=MAX_ATTEMPTS + 3,
)


def attempted(request: Request, status: int | None, took: int, backoff: int = 0) -> None:
    """Make an attempt that took so many nanoseconds, and wait after it."""
    attempt = request.recording.attempt()
    request.clock.advance(took / 1e9)
    attempt.status = status
    if status is None:
        attempt.error = "ConnectError"
    attempt.ended = request.clock()
    request.clock.advance(backoff / 1e9)


@given(attempts, st.sampled_from([None, 200, 429]), st.sampled_from(["success", "error"]))
def test_attempts_lie_side_by_side_within_the_request(failed, last, outcome):
    """They never overlap, lie inside the request, and come to `retry_s` with their backoff."""
    request = Request()
    for status, took, backoff in failed:
        attempted(request, status, took, backoff)
    if last == 200:
        request.recording.attempt().status = 200
        request.clock.advance(0.5)
    elif last is not None:
        attempted(request, last, 7)
    request.recording.end(outcome)
    row = request.row

    at = 0
    for one in row.attempt_log:
        assert one.start_ns >= at
        at = one.end_ns + one.backoff_ns
    assert at <= row.e2e_ns
    assert row.attempts == max(1, len(failed) + (last is not None))
    assert len(row.attempt_log) <= MAX_ATTEMPTS
    if row.attempts <= MAX_ATTEMPTS and outcome == "error":
        spent = sum(
            one.duration_ns + one.backoff_ns
            for one in row.attempt_log
            if one.status is None or one.status >= 400
        )
        assert spent == row.timeline.retry_gateway + row.timeline.retry_network
    assert row.stages.total == row.e2e_ns


def test_what_each_attempt_came_to():
    """An attempt has its start, length, backoff, status or error, and Retry-After."""
    request = Request()
    request.wait(3)
    attempted(request, 429, 20 * MS, 200 * MS)
    request.recording.attempts[-1].retry_after = 150 * MS
    attempted(request, None, 10 * MS, 40 * MS)
    request.recording.attempt().status = 200
    request.wait(60)
    request.recording.end("success")

    assert (request.row.http_status, request.row.retried_status) == (200, 429)
    assert request.row.attempt_log == (
        Attempt(
            start_ns=3 * MS, duration_ns=20 * MS, backoff_ns=200 * MS, status=429,
            retry_after_ns=150 * MS,
        ),
        Attempt(
            start_ns=223 * MS, duration_ns=10 * MS, backoff_ns=40 * MS, error_type="ConnectError"
        ),
        Attempt(start_ns=273 * MS, duration_ns=60 * MS, status=200),
    )  # fmt: skip


@pytest.mark.parametrize(("status", "outcome"), [(200, "success"), (200, "error")])
def test_one_attempt_that_went_well_needs_no_words(status, outcome):
    """A request whose only attempt was answered has nothing to tell of it."""
    request = Request()
    request.recording.attempt().status = status
    request.recording.end(outcome)

    assert (request.row.attempts, request.row.attempt_log) == (1, ())


def test_given_up_while_waiting_to_try_again():
    """A request that is cancelled in a backoff has spent it on the refusal."""
    request = Request()
    attempted(request, 429, 20 * MS, 100 * MS)
    request.recording.end("cancelled")

    assert request.row.timeline.retry_gateway == 120 * MS
    assert request.row.retried_status is None  # it was not sent again
    assert request.row.attempt_log == (
        Attempt(start_ns=0, duration_ns=20 * MS, backoff_ns=100 * MS, status=429),
    )


def test_attempts_of_a_call_that_went_well_are_forgotten_but_for_their_failures():
    """What explains `retry_s` stays, though a later call is the request."""
    request = Request()
    attempted(request, 503, 10 * MS, 5 * MS)
    attempted(request, 200, 10 * MS)
    attempted(request, 200, 30 * MS)
    request.recording.end("success")

    assert [one.status for one in request.row.attempt_log] == [503, 200]
    assert request.row.timeline.retry_gateway == 15 * MS


def test_the_first_attempts_are_kept_and_the_last():
    """Of many attempts enough are kept to see how it began and ended."""
    kept: list[Attempt] = []
    for number in range(100):
        keep(kept, Attempt(start_ns=number, duration_ns=1))

    assert [one.start_ns for one in kept] == [*range(MAX_ATTEMPTS - 1), 99]


# --- to plain data and back ---------------------------------------------------------------------


@given(attempt_logs)
def test_they_come_back(given_tries):
    """Written as JSON and read, they are the same."""
    assert from_plain(json.loads(json.dumps(as_plain(given_tries)))) == given_tries


def test_how_they_are_written():
    """Durations in seconds; what is not known is left out."""
    one = Attempt(start_ns=0, duration_ns=250 * MS, status=503, retry_after_ns=2_000 * MS)

    assert as_plain([one]) == [
        {"start_s": 0.0, "duration_s": 0.25, "status": 503, "retry_after_s": 2.0}
    ]


GOOD = {"start_s": 0, "duration_s": 1}


@pytest.mark.parametrize(
    "written",
    [
        "a", {}, 7, ["a"], [{}], [GOOD | {"start_s": "a"}], [GOOD | {"start_s": True}],
        [GOOD | {"duration_s": -1}], [GOOD | {"duration_s": float("nan")}],
        [GOOD | {"duration_s": 1e300}], [GOOD | {"status": "200"}], [GOOD | {"status": 200.5}],
    ],
)  # fmt: skip
def test_what_cannot_be_attempts_is_refused(written):
    """A row with attempts that cannot be is no row, and the error says what is wrong."""
    with pytest.raises(DataError, match=r"attempt_log|_s"):
        from_dict(make_row().as_dict() | {"attempt_log": written})


def test_only_so_many_are_read():
    """A row from elsewhere cannot hold more than one made here."""
    assert len(from_plain([GOOD] * 1000)) == MAX_ATTEMPTS
    [one] = from_plain([GOOD | {"status": 200.0, "error_type": "x" * 5000}])
    assert one.status == 200
    assert len(one.error_type or "") == 256
