"""The time of each HTTP attempt is charged to the side that took it."""

from __future__ import annotations

import pytest

from llmtrace.core.request_clock import TEXT
from llmtrace.core.stages import Network, Reported
from llmtrace.instrumentation.streams.chunk_timing import timed_reads
from tests.support.internal_errors import reset_internal_errors
from tests.support.recordings import MS, Request


@pytest.fixture(autouse=True)
def _fresh_counts():
    """Each test counts internal errors from nothing."""
    reset_internal_errors()
    yield
    reset_internal_errors()


@pytest.fixture
def request_() -> Request:
    """A request that has just begun."""
    return Request()


def attempted(request: Request, status: int | None, took_ms: float) -> None:
    """Make an attempt that got a status, or none, after a while."""
    request.recording.attempt().status = status
    request.wait(took_ms)


def test_the_phases_of_the_attempt_that_answered(request_):
    """The network is the last attempt up to its request's sending; before it, the client's own."""
    recording = request_.recording
    request_.wait(3)
    attempt = recording.attempt()
    request_.wait(2)
    attempt.first_wire = request_.clock()
    attempt.dns, attempt.connect, attempt.tls, attempt.send = (n * MS for n in (1, 4, 6, 2))
    attempt.rtt = Reported(5 * MS, "kernel")
    attempt.status = 200
    request_.wait(50)
    recording.opened()
    recording.exhausted()

    assert request_.row.timeline.network == Network(
        client_wait=2 * MS, dns=MS, connect=4 * MS, tls=6 * MS, send=2 * MS, rtt=5 * MS,
        rtt_source="kernel",
    )  # fmt: skip
    assert request_.row.timeline.client == request_.row.stages.client == 3 * MS
    assert (request_.row.http_status, request_.row.attempts) == (200, 1)


def test_no_hooks_no_network(request_):
    """Where no attempt was seen, the network is not known."""
    request_.recording.exhausted()

    assert request_.row.timeline.network == Network()
    assert request_.row.timeline.client is None
    assert (request_.row.stages.network, request_.row.http_status) == (None, None)


def test_an_attempt_that_never_reached_the_wire(request_):
    """An attempt that ran out of time waiting for a connection is network, and nothing before."""
    request_.wait(3)
    attempted(request_, None, 40)
    request_.recording.failed(TimeoutError())

    assert request_.row.timeline.network == Network()
    assert (request_.row.stages.network, request_.row.stages.client) == (40 * MS, 3 * MS)


def test_the_round_trip_may_be_unknown(request_):
    """A pooled connection without the kernel's figures has phases and no round trip."""
    attempt = request_.recording.attempt()
    attempt.first_wire = attempt.started
    attempt.status = 200
    request_.recording.exhausted()

    assert request_.row.timeline.network == Network(client_wait=0)


def test_failed_attempts_are_charged_to_who_failed_them(request_):
    """Refusals and their backoff are the gateway's, broken connections the network's."""
    attempted(request_, 429, 30)
    attempted(request_, None, 20)
    attempted(request_, 200, 100)
    request_.recording.exhausted()
    row = request_.row

    assert (row.timeline.retry_gateway, row.timeline.retry_network) == (30 * MS, 20 * MS)
    assert (row.attempts, row.http_status) == (3, 200)


@pytest.mark.parametrize(
    ("status", "gateway", "network"), [(503, 70 * MS, 0), (None, 0, 70 * MS), (200, 0, 0)]
)
def test_a_request_that_failed_for_good(request_, status, gateway, network):
    """The last failed attempt is charged like the ones before it; a broken answer is neither's."""
    request_.wait(5)
    attempted(request_, status, 70)
    request_.recording.failed(ConnectionError())
    timeline = request_.row.timeline

    assert (timeline.retry_gateway, timeline.retry_network) == (gateway, network)
    assert timeline.client == 5 * MS


def test_a_stream_that_broke_is_not_charged_to_what_came_before_it(request_):
    """An error after the first content leaves network and gateway as they were."""
    attempted(request_, 200, 10)
    request_.recording.opened()
    request_.chunk(100)
    request_.recording.failed(ConnectionError())
    timeline = request_.row.timeline

    assert (timeline.retry_gateway, timeline.retry_network) == (0, 0)


def test_the_wait_before_the_first_attempt_is_the_clients(request_):
    """What was marked or held before the first attempt is not the client's unattributed time."""
    recording = request_.recording
    request_.wait(10)
    recording.add_mark("gateway", 4 * MS)
    recording.switch_interval(reading=False)
    request_.wait(20)
    recording.switch_interval(reading=True)
    request_.wait(1)
    attempted(request_, 200, 5)
    recording.end("success")

    assert request_.row.timeline.client == 7 * MS


def test_a_hold_right_before_the_first_attempt_is_not_the_clients():
    """A read that begins with an attempt does not charge it the hold that ended with it."""
    request = Request()
    recording = request.recording
    made = []

    def read() -> str:
        request.wait(1)
        made.append(recording.attempt())
        return "a"

    recording.opened()
    reader = timed_reads(recording, read, lambda *_: TEXT)
    request.wait(500)
    next(reader)

    assert recording.client == 1 * MS
    assert recording.consumer_time == 500 * MS


def test_a_call_that_went_well_before_this_one_is_the_clients_time(request_):
    """Of two calls of a decorated function, the later one is the request."""
    attempted(request_, 200, 40)
    attempted(request_, 200, 10)
    request_.recording.end("success")
    row = request_.row

    assert (row.attempts, row.timeline.client) == (1, 40 * MS)


@pytest.mark.parametrize(
    ("calling", "outer", "joined", "ours"),
    [
        (True, False, False, True),
        (True, True, True, True),
        (False, True, False, True),
        (False, True, True, False),
        (False, False, False, False),
    ],
)
def test_whose_http_calls_are_ours(request_, calling, outer, joined, ours):
    """A call belongs to a request while its client calls, or its function runs without one."""
    recording = request_.recording
    recording.calling, recording.in_decorated_function, recording.joined = calling, outer, joined

    assert recording.on_the_wire is ours


def test_an_ended_request_makes_no_calls(request_):
    """What goes over the wire after the row was made is another request's."""
    request_.recording.calling = True
    request_.recording.end("success")

    assert not request_.recording.on_the_wire
