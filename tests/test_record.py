"""Does a recording account for every nanosecond, however a request goes and ends?"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import llmtrace
from llmtrace.failopen import internal_errors, reset_internal_errors
from llmtrace.record import (
    GAP_BOUNDS_NS,
    HIDDEN,
    NOTHING,
    OTHER,
    REASONING,
    TEXT,
    TOOL_CALL,
    Recording,
    outcome_of,
    random_id,
    type_name,
)
from llmtrace.rows import OUTCOMES, Row, from_dict
from llmtrace.stages import STAGES, EngineFigures, Network, Reported
from llmtrace.testing import FakeClock, capture
from llmtrace.wrappers.reads import areads, reads

MS = 1_000_000
INFO = {
    "request_id": "lt-1", "trace_id": "1" * 32, "span_id": "2" * 16, "service": "test",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh_counts():
    """Each test counts internal errors from nothing."""
    reset_internal_errors()
    yield
    reset_internal_errors()


class Request:
    """A recording, the clock it runs by, and the rows it made."""

    def __init__(self, start_ns: int = 5 * MS, **given: Any) -> None:
        self.clock = FakeClock(start_ns)
        self.rows: list[Row] = []
        self.recording = Recording(
            lambda _, row: self.rows.append(row),
            dict(INFO),
            clock=self.clock,
            wall=lambda: 7,
            **given,
        )

    def wait(self, ms: float) -> None:
        """Let milliseconds pass."""
        self.clock.advance(ms / 1000)

    def chunk(self, wait_ms: float, kind: int = TEXT, held_ms: float = 0) -> None:
        """Hold the stream, ask for a chunk, and get one after a wait."""
        self.wait(held_ms)
        self.recording.boundary(reading=True)
        self.wait(wait_ms)
        self.recording.boundary(reading=False)
        self.recording.event(kind)

    @property
    def row(self) -> Row:
        """The one row that was made."""
        (row,) = self.rows
        return row


@pytest.fixture
def request_() -> Request:
    """A request that has just begun."""
    return Request()


# --- any sequence of what can happen ------------------------------------------------------------

short = st.integers(0, 10**10)


class AnyRequest(RuleBasedStateMachine):
    """A request to which anything may happen, and beside it what a stopwatch would say."""

    @initialize(start=st.sampled_from([0, 1, 10**15]), held=st.booleans())
    def begin(self, start, held):
        """Start recording."""
        self.request = Request(start, held_from_start=held)
        self.recording = self.request.recording
        self.begun = self.request.clock()
        self.asked = not held
        self.spent = {(waits, content): 0 for waits in (True, False) for content in (True, False)}
        self.content = False
        self.gap = 0
        self.gaps: list[int] = []
        self.written: dict[str, Any] = {}

    @rule(ns=short)
    def advance(self, ns):
        """Time passes, waited or held, before or after the first content."""
        self.request.clock.advance(ns / 1e9)
        if not self.recording.ended:
            self.spent[self.asked, self.content] += ns
            self.gap += ns if self.asked else 0

    @rule()
    def ask(self):
        """The consumer asks for the next chunk."""
        self.recording.boundary(reading=True)
        self.asked = True

    @rule(kind=st.sampled_from([HIDDEN, NOTHING, TEXT, REASONING, TOOL_CALL, OTHER]))
    def arrive(self, kind):
        """A chunk is handed over."""
        self.recording.boundary(reading=False)
        self.recording.event(kind)
        if self.recording.ended:
            return
        self.asked = False
        if kind > NOTHING:
            if self.content:
                self.gaps.append(self.gap)
            self.content, self.gap = True, 0

    @rule()
    def open(self):
        """The consumer gets the stream."""
        self.recording.opened()
        self.asked = False

    @rule(
        status=st.none() | st.sampled_from([200, 307, 429, 500]),
        phases=st.lists(short, max_size=5),
    )
    def attempt(self, status, phases):
        """An HTTP attempt is made, of which some phases are seen."""
        attempt = self.recording.attempt()
        names = ("first_wire", "dns", "connect", "tls", "send")
        for name, ns in zip(names, phases, strict=False):
            setattr(attempt, name, attempt.started + ns if name == "first_wire" else ns)
        attempt.status = status

    @rule(stage=st.sampled_from(["network", "gateway", "queue", "prefill", "render"]), ns=short)
    def mark(self, stage, ns):
        """The application marks some time itself."""
        self.recording.marked(stage, ns)

    @rule(queue=st.none() | short, prefill=st.none() | short, late=st.booleans())
    def tell(self, queue, prefill, late):
        """The engine tells its figures."""
        source = "engine_span" if late else "engine_inband"
        self.recording.engine.append(
            EngineFigures(
                queue=None if queue is None else Reported(queue, source),
                prefill=None if prefill is None else Reported(prefill, source),
            )
        )

    @rule(ns=short)
    def tell_gateway(self, ns):
        """The gateway tells its own time."""
        self.recording.gateway = Reported(ns, "server_timing")

    @rule(running=st.booleans())
    def decorate(self, running):
        """A decorated function starts or stops running around the stream."""
        self.recording.outer = running

    @rule(
        how=st.sampled_from(["exhausted", "abandoned", "closed", "failed", "refused", "timeout"]),
        finish=st.booleans(),
    )
    def stop(self, how, finish):
        """The stream ends, one way or another."""
        recording = self.recording
        ends = how != "closed" or (recording.open and not self.asked)
        if finish:
            recording.info["finish_reason"] = "stop"
        if how == "failed":
            recording.failed(ConnectionError("gone"))
        elif how == "refused":
            recording.failed(asyncio.CancelledError())
        elif how == "timeout":
            recording.failed(TimeoutError())
        else:
            getattr(recording, how)()
        if ends:
            self.asked = False

    @invariant()
    def at_most_one_row(self):
        """A request makes one row once it has ended, and nothing changes it later."""
        if not hasattr(self, "request"):
            return
        assert len(self.request.rows) == int(self.recording.ended)
        assert internal_errors() == {}
        if self.recording.ended:
            flat = self.request.row.as_dict()
            self.written = self.written or flat
            assert flat == self.written

    def teardown(self):
        """End the request if it has not ended, and hold its row against the stopwatch."""
        if not hasattr(self, "request"):
            return
        self.recording.outer = False
        self.recording.end("success")
        row, spent = self.request.row, self.spent
        assert row.outcome in OUTCOMES
        assert row.stages.total == row.e2e_ns == sum(spent.values())
        assert row.timeline.held_before == spent[False, False]
        assert row.timeline.held_after == spent[False, True]
        before = spent[True, False] + spent[False, False]
        assert row.ttft_ns == (before if self.content else None)
        assert row.chunks == len(self.gaps) + int(self.content)
        assert row.gap_sum_ns == (sum(self.gaps) if self.content else None)
        longest = max(self.gaps, default=-1)
        assert (row.max_gap_ns or 0) >= longest
        if row.outcome == "success":
            assert row.max_gap_ns == (None if longest < 0 else longest)
        assert from_dict(row.as_dict()) == row


TestAnyRequest = AnyRequest.TestCase
TestAnyRequest.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


# --- clocks that cannot be trusted --------------------------------------------------------------


class BrokenClock:
    """A clock that reads what it is told, or fails; at the end it stands still."""

    def __init__(self, ticks: list[int | None]) -> None:
        self._ticks = iter(ticks)
        self._last = 0

    def __call__(self) -> int:
        """Return the next tick, or fail."""
        tick = next(self._ticks, self._last)
        if tick is None:
            msg = "no time today"
            raise OSError(msg)
        self._last = tick
        return tick


ticks = st.lists(st.none() | st.integers(-(10**12), 10**12), max_size=30)
chunks = st.lists(st.sampled_from(["", "a", "b"]), max_size=6)


def check(rows: list[Row]) -> None:
    """Hold that a request made a row that adds up, or was counted as an internal error."""
    assert len(rows) <= 1
    assert rows or internal_errors()
    for row in rows:
        assert row.e2e_ns >= 0
        assert row.stages.total == row.e2e_ns
        assert (row.ttft_ns or 0) >= 0
        assert from_dict(row.as_dict()) == row


@given(ticks=ticks, content=chunks, error=st.none() | st.just(ConnectionError("gone")))
def test_a_broken_clock_does_not_touch_the_stream(ticks, content, error):
    """A clock that jumps back or fails changes neither chunks nor errors of a wrapped stream."""
    reset_internal_errors()

    def source():
        yield from content
        if error is not None:
            raise error

    seen, raised = [], None
    with capture(clock=BrokenClock(ticks)) as rows:
        try:
            for chunk in llmtrace.wrap(source()):
                seen.append(chunk)
        except ConnectionError as one:
            raised = one

    assert (seen, raised) == (content, error)
    check(rows)


@given(ticks=ticks, content=chunks, stop=st.integers(0, 6))
def test_a_broken_clock_does_not_touch_an_sdks_stream(ticks, content, stop):
    """The same for the reader inside an SDK's stream, read to its end or left early."""
    reset_internal_errors()
    rows: list[Row] = []
    clock = BrokenClock([1])
    recording = Recording(lambda _, row: rows.append(row), dict(INFO), clock=clock)
    recording.clock = BrokenClock(ticks)

    reader = reads(recording, iter(content).__next__, lambda _, chunk: TEXT if chunk else NOTHING)
    seen = [chunk for chunk, _ in zip(reader, range(stop), strict=False)]
    del reader

    assert seen == content[:stop]
    check(rows)


@settings(max_examples=30)
@given(ticks=ticks, content=chunks)
def test_a_broken_clock_does_not_touch_an_async_stream(ticks, content):
    """The same for the asynchronous reader."""
    reset_internal_errors()
    rows: list[Row] = []
    recording = Recording(lambda _, row: rows.append(row), dict(INFO), clock=BrokenClock([1]))
    recording.clock = BrokenClock(ticks)
    source = iter(content)

    async def read() -> str:
        try:
            return next(source)
        except StopIteration:
            raise StopAsyncIteration from None

    async def consume() -> list[str]:
        classify = lambda _, chunk: TEXT if chunk else NOTHING  # noqa: E731
        return [chunk async for chunk in areads(recording, read, classify)]

    assert asyncio.run(consume()) == content
    check(rows)


def test_a_clock_that_breaks_at_the_end_is_counted(request_):
    """A row that cannot be made is counted as an internal error, and nothing is raised."""
    request_.recording.clock = BrokenClock([None])

    request_.recording.end("success")

    assert request_.rows == []
    assert internal_errors() == {"record": 1}


def test_a_clock_that_breaks_inside_a_decorated_function_is_counted(request_):
    """The same where the stream ends and the function around it goes on."""
    request_.recording.outer = True
    request_.recording.clock = BrokenClock([None, 9 * MS])

    request_.recording.finish("success")
    request_.recording.outer = False
    request_.recording.end("success")

    assert internal_errors() == {"record": 1}
    assert request_.row.e2e_ns == 4 * MS


def test_a_clock_may_begin_at_zero():
    """A clock that starts at 0, as a fake one does, tells waiting from holding all the same."""
    request = Request(start_ns=0)
    request.wait(100)
    request.recording.opened()
    request.wait(30)
    request.recording.end("success")

    assert request.row.timeline.held_before == 30 * MS
    assert request.row.e2e_ns == 130 * MS


# --- memory -------------------------------------------------------------------------------------


def size(value: Any) -> int:
    """Count the bytes of a value's containers; numbers are all the same size here."""
    if isinstance(value, dict):
        return sys.getsizeof(value) + sum(map(size, value.values()))
    if isinstance(value, list | tuple):
        return sys.getsizeof(value) + sum(map(size, value))
    return 0 if isinstance(value, int | None) else sys.getsizeof(value)


def test_a_recording_does_not_grow_with_its_stream():
    """After ten thousand chunks a recording takes as much memory as after two."""
    request = Request()
    recording = request.recording
    slots = [name for name in Recording.__slots__ if not name.startswith("_")]
    sizes = []
    for number in range(10_000):
        request.chunk(5, kind=(TEXT, REASONING, TOOL_CALL, OTHER, NOTHING)[number % 5])
        sizes.append(sum(size(getattr(recording, name)) for name in slots))

    assert sizes[-1] == sizes[1]
    assert sum(recording.gap_counts) == 7_999


# --- how it ends --------------------------------------------------------------------------------


def test_a_stream_read_to_its_end(request_):
    """Waits are decode, holds are render, and both make the whole."""
    request_.wait(10)
    request_.recording.opened()
    request_.chunk(200, held_ms=5)
    request_.chunk(20, held_ms=3)
    request_.chunk(30, held_ms=4)
    request_.recording.boundary(reading=True)
    request_.wait(1)
    request_.recording.exhausted()
    row = request_.row

    assert (row.outcome, row.chunks, row.ttft_ns, row.e2e_ns) == ("success", 3, 215 * MS, 273 * MS)
    assert (row.timeline.held_before, row.timeline.held_after) == (5 * MS, 7 * MS)
    assert (row.stages.decode, row.max_gap_ns, row.last_content_ns) == (51 * MS, 30 * MS, 272 * MS)
    assert row.start == 7


def test_a_protocols_end_without_a_finish_reason_is_a_cut(request_):
    """A stream whose protocol promises a finish reason was truncated if none came."""
    request_.recording.expects_finish = True
    request_.recording.exhausted()

    assert request_.row.outcome == "truncated"


def test_a_protocols_end_with_its_finish_reason(request_):
    """With the finish reason it ended well."""
    request_.recording.expects_finish = True
    request_.recording.info["finish_reason"] = "stop"
    request_.recording.exhausted()

    assert (request_.row.outcome, request_.row.finish_reason) == ("success", "stop")


@pytest.mark.parametrize(
    ("stream", "finish_reason", "outcome"),
    [(True, None, "cancelled"), (True, "stop", "success"), (False, None, "success")],
)
def test_a_stream_that_is_let_go(request_, stream, finish_reason, outcome):
    """Leaving a stream cancels it, unless all of it had come."""
    request_.recording.stream = stream
    request_.recording.info["finish_reason"] = finish_reason
    request_.recording.abandoned()

    assert request_.row.outcome == outcome


def test_a_connection_closed_under_a_reader_does_not_end_the_row(request_):
    """While somebody reads, a close is the reader's to report: it may be an error."""
    request_.recording.opened()
    request_.recording.boundary(reading=True)
    request_.recording.closed()

    assert not request_.recording.ended


def test_a_connection_closed_by_its_consumer_ends_the_row(request_):
    """Closing the answer while nobody reads is the consumer's leaving."""
    request_.recording.opened()
    request_.recording.closed()

    assert request_.row.outcome == "cancelled"


def test_a_connection_closed_before_the_stream_was_handed_out(request_):
    """Closing an answer that is no open stream ends nothing."""
    request_.recording.closed()

    assert not request_.recording.ended


def test_only_the_first_end_counts(request_):
    """However often a request ends, it makes one row."""
    request_.recording.failed(ConnectionError())
    request_.recording.exhausted()
    request_.recording.end("timeout")
    request_.recording.outer = True
    request_.recording.finish("truncated")

    assert (request_.row.outcome, request_.row.error_type) == ("error", "ConnectionError")


def test_a_sink_that_raises_is_counted():
    """What the taker of rows raises does not reach who ended the request."""

    def emit(_: Recording, row: Row) -> None:
        raise ValueError(row.outcome)

    Recording(emit, dict(INFO)).end("success")

    assert internal_errors() == {"record": 1}


def test_an_outcome_may_be_settled_later(request_):
    """A row whose outcome is open goes, with what takes it on, to who settles it."""
    kept: list[Any] = []
    request_.recording.finish("cancelled", later=lambda *both: kept.append(both))
    assert request_.rows == []

    ((row, take),) = kept
    take(row)

    assert request_.row is row


@pytest.mark.parametrize("outcome", ["success", "cancelled"])
def test_an_error_inside_the_stream_outweighs_how_it_was_left(request_, outcome):
    """What the server said went wrong is the outcome, though the stream ended quietly."""
    request_.recording.failure = ("error", "overloaded_error")
    request_.recording.end(outcome)

    assert (request_.row.outcome, request_.row.error_type) == ("error", "overloaded_error")


def test_what_is_raised_outweighs_an_earlier_failure(request_):
    """The exception that reaches the caller is the outcome."""
    request_.recording.failure = ("truncated", None)
    request_.recording.failed(TimeoutError())

    assert (request_.row.outcome, request_.row.error_type) == ("timeout", "TimeoutError")


def test_a_decorated_function_outlives_its_stream(request_):
    """Until the function around it ends, a stream's end is a boundary and no row."""
    recording = request_.recording
    recording.outer = True
    recording.opened()
    request_.chunk(100)
    recording.boundary(reading=True)
    recording.failed(ConnectionError())
    request_.wait(50)
    assert not recording.ended

    recording.outer = False
    recording.finish("success")

    assert (request_.row.outcome, request_.row.error_type) == ("error", "ConnectionError")
    assert request_.row.timeline.held_after == 50 * MS


def test_the_first_failure_inside_a_decorated_function_stays(request_):
    """A second stream that fails does not cover up the first."""
    request_.recording.outer = True
    for error in (ConnectionError(), TimeoutError()):
        request_.recording.failed(error)
    request_.recording.outer = False
    request_.recording.finish("success")

    assert request_.row.outcome == "error"


def test_a_read_that_fails_after_a_hold():
    """What the consumer held before a read that failed is its own time, the read's is not."""
    request = Request()
    steps = iter([100, 30])

    def read() -> str:
        request.wait(next(steps))
        if request.recording.ttft is not None:
            raise ConnectionError
        return "a"

    request.recording.opened()
    reader = reads(request.recording, read, lambda *_: TEXT)
    next(reader)
    request.wait(500)
    with pytest.raises(ConnectionError):
        next(reader)

    assert (request.row.timeline.held_after, request.row.stages.decode) == (500 * MS, 30 * MS)
    assert request.row.max_gap_ns == 30 * MS


# --- silence ------------------------------------------------------------------------------------


@pytest.mark.parametrize("outer", [True, False])
def test_the_silence_before_a_cut_is_a_gap(request_, outer):
    """A wait that never ended in a chunk counts, also inside a decorated function."""
    recording = request_.recording
    recording.outer = outer
    recording.opened()
    request_.chunk(100)
    request_.chunk(20)
    recording.boundary(reading=True)
    request_.wait(60_000)
    recording.failed(TimeoutError())
    request_.wait(500)
    recording.outer = False
    recording.finish("success")

    assert request_.row.max_gap_ns == 60_000 * MS


def test_the_wait_for_a_proper_end_is_no_gap(request_):
    """After the last chunk of a stream that ended well nothing more was to come."""
    request_.recording.opened()
    request_.chunk(100)
    request_.chunk(20)
    request_.recording.boundary(reading=True)
    request_.wait(300)
    request_.recording.exhausted()

    assert request_.row.max_gap_ns == 20 * MS


def test_a_hold_is_no_gap(request_):
    """A gap is what was waited for, not what the consumer took."""
    request_.recording.opened()
    request_.chunk(100)
    request_.chunk(7, held_ms=900)
    request_.recording.exhausted()
    row = request_.row

    assert row.max_gap_ns == 7 * MS
    assert [GAP_BOUNDS_NS[n] for n, count in enumerate(row.gap_counts) if count] == [8 * MS]


def test_one_chunk_has_no_gap(request_):
    """A gap is between two chunks; with one there is none, and none is not 0."""
    request_.recording.opened()
    request_.chunk(100)
    request_.recording.exhausted()

    assert request_.row.max_gap_ns is None


# --- what arrives -------------------------------------------------------------------------------


def test_every_first_has_its_own_mark(request_):
    """First byte, event, reasoning, text and tool call are told apart."""
    recording = request_.recording
    recording.opened()
    request_.wait(1)
    recording.first_byte = request_.clock()
    for kind in (NOTHING, REASONING, TEXT, REASONING, TOOL_CALL, TEXT, OTHER):
        request_.chunk(10, kind=kind)
    recording.exhausted()
    row = request_.row

    assert (row.first_byte_ns, row.first_event_ns, row.ttft_ns) == (1 * MS, 11 * MS, 21 * MS)
    assert (row.first_reasoning_ns, row.first_text_ns, row.first_tool_call_ns) == (
        21 * MS,
        31 * MS,
        51 * MS,
    )
    assert row.chunks == 6


def test_what_carries_nothing_is_not_content(request_):
    """Empty and hidden chunks are events, and nothing more."""
    request_.recording.opened()
    request_.chunk(10, kind=HIDDEN)
    request_.chunk(10, kind=NOTHING)
    request_.recording.exhausted()
    row = request_.row

    assert (row.ttft_ns, row.chunks, row.last_content_ns) == (None, 0, None)
    assert row.first_event_ns == 10 * MS


# --- attempts -----------------------------------------------------------------------------------


def attempted(request: Request, status: int | None, took_ms: float) -> None:
    """Make an attempt that got a status, or none, after a while."""
    request.recording.attempt().status = status
    request.wait(took_ms)


def test_the_phases_of_the_attempt_that_answered(request_):
    """The network is what the last attempt did before its request was out, and the wait for it."""
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
        *(n * MS for n in (5, 1, 4, 6, 2, 5)), "kernel"
    )
    assert (request_.row.http_status, request_.row.attempts) == (200, 1)


def test_no_hooks_no_network(request_):
    """Where no attempt was seen, nobody knows the network."""
    request_.recording.exhausted()

    assert request_.row.timeline.network == Network()
    assert (request_.row.stages.network, request_.row.http_status) == (None, None)


def test_an_attempt_that_never_reached_the_wire(request_):
    """An attempt still waiting for a connection has waited, and that is all."""
    request_.wait(3)
    attempted(request_, None, 40)
    request_.recording.failed(TimeoutError())

    assert request_.row.timeline.network == Network(client_wait=3 * MS)


def test_the_round_trip_may_be_unknown(request_):
    """A pooled connection nobody asked the kernel about has phases and no round trip."""
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
    assert timeline.network.client_wait == 5 * MS


def test_a_stream_that_broke_is_charged_to_nobody_in_front_of_it(request_):
    """An error after the first content leaves network and gateway as they were."""
    attempted(request_, 200, 10)
    request_.recording.opened()
    request_.chunk(100)
    request_.recording.failed(ConnectionError())
    timeline = request_.row.timeline

    assert (timeline.retry_gateway, timeline.retry_network) == (0, 0)


def test_the_wait_before_the_first_attempt_is_the_clients(request_):
    """What was marked or held before the first attempt is not waited for a connection."""
    recording = request_.recording
    request_.wait(10)
    recording.marked("gateway", 4 * MS)
    recording.boundary(reading=False)
    request_.wait(20)
    recording.boundary(reading=True)
    request_.wait(1)
    attempted(request_, 200, 5)
    recording.end("success")

    assert request_.row.timeline.network.client_wait == 7 * MS


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
    reader = reads(recording, read, lambda *_: TEXT)
    request.wait(500)
    next(reader)

    assert recording.client_wait == 1 * MS
    assert recording.held == 500 * MS


def test_a_call_that_went_well_before_this_one_is_the_clients_time(request_):
    """Of two calls of a decorated function, the later one is the request."""
    attempted(request_, 200, 40)
    attempted(request_, 200, 10)
    request_.recording.end("success")
    row = request_.row

    assert (row.attempts, row.timeline.network.client_wait) == (1, 40 * MS)


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
    recording.calling, recording.outer, recording.joined = calling, outer, joined

    assert recording.on_the_wire is ours


def test_an_ended_request_makes_no_calls(request_):
    """What goes over the wire after the row was made is somebody else's."""
    request_.recording.calling = True
    request_.recording.end("success")

    assert not request_.recording.on_the_wire


# --- what the row keeps -------------------------------------------------------------------------


def test_marks_before_and_after_the_first_content(request_):
    """Marks add up by stage, apart for the wait before and after the first content."""
    recording = request_.recording
    recording.marked("gateway", 3 * MS)
    recording.marked("gateway", 4 * MS)
    recording.marked("queue", -5)
    request_.chunk(100)
    recording.marked("render", 2 * MS)
    recording.exhausted()
    timeline = request_.row.timeline

    assert timeline.marked_before == {"gateway": 7 * MS, "queue": 0}
    assert timeline.marked_after == {"render": 2 * MS}


def test_a_row_does_not_change_once_it_is_made(request_):
    """A mark that ends late, or a late attribute, does not reach into the finished row."""
    recording = request_.recording
    recording.marked("gateway", 1)
    recording.end("success")
    before = request_.row.as_dict()

    recording.marked("gateway", 5)
    recording.marked("queue", 5)
    recording.attributes["team"] = "search"

    assert request_.row.as_dict() == before


def test_figures_of_all_sources_are_joined(request_):
    """What headers and the answer itself tell ends up in one timeline, the best of each."""
    recording = request_.recording
    recording.engine += [
        EngineFigures(queue=Reported(5, "server_timing"), prefill=Reported(6, "server_timing")),
        EngineFigures(queue=Reported(7, "engine_inband")),
    ]
    recording.gateway = Reported(8, "server_timing")
    recording.end("success")
    timeline = request_.row.timeline

    assert timeline.queue == Reported(7, "engine_inband")
    assert timeline.prefill == Reported(6, "server_timing")
    assert timeline.gateway == Reported(8, "server_timing")


def test_nobody_waits_for_a_generator_that_is_not_iterated():
    """Time before a lazy stream is asked for anything is the consumer's own."""
    request = Request(held_from_start=True)
    request.wait(300)
    request.chunk(50)
    request.recording.exhausted()

    assert request.row.timeline.held_before == 300 * MS
    assert request.row.stages.render == 300 * MS


@pytest.mark.parametrize("name", STAGES)
def test_a_request_that_did_nothing_has_no_negative_time(request_, name):
    """A request that ends where it began took no time in any stage."""
    request_.recording.end("success")

    assert request_.row.e2e_ns == 0
    assert getattr(request_.row.stages, name) in {None, 0}


# --- names --------------------------------------------------------------------------------------


class ReadTimeout(Exception):  # noqa: N818
    """Named as HTTP clients name theirs."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError(), ("error", "ValueError")),
        (TimeoutError(), ("timeout", "TimeoutError")),
        (ReadTimeout(), ("timeout", f"{__name__}.ReadTimeout")),
        (GeneratorExit(), ("cancelled", None)),
        (KeyboardInterrupt(), ("cancelled", "KeyboardInterrupt")),
        (asyncio.CancelledError(), ("cancelled", "asyncio.exceptions.CancelledError")),
    ],
)
def test_an_exception_names_the_outcome(error, expected):
    """What was raised says how a request ended, and is named as OpenTelemetry does."""
    assert outcome_of(error) == expected


def test_a_nested_class_is_named_in_full():
    """An error's type carries its module and where in it the class is."""

    class Odd(Exception):  # noqa: N818
        pass

    assert type_name(Odd()).endswith("test_a_nested_class_is_named_in_full.<locals>.Odd")


@pytest.mark.parametrize("bits", [0, 1, 2**64 - 1])
def test_an_id_is_never_zero_and_always_full_length(monkeypatch, bits):
    """Ids are hex of their full width, and not all zero, which would be no id."""
    monkeypatch.setattr("random.getrandbits", lambda _: bits)

    assert random_id(8) == f"{bits or 1:016x}"
