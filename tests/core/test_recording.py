"""A recording accounts for every nanosecond, whatever happens and whatever the clock says."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import llmtrace
from llmtrace.core.failopen import internal_errors
from llmtrace.core.recording import Recording
from llmtrace.core.request_clock import HIDDEN, NOTHING, OTHER, REASONING, TEXT, TOOL_CALL
from llmtrace.core.row import OUTCOMES, Row, from_dict
from llmtrace.core.stages import EngineFigures, Reported
from llmtrace.instrumentation.streams import finalize
from llmtrace.instrumentation.streams.chunk_timing import atimed_reads, timed_reads
from llmtrace.testing import capture
from tests.support.internal_errors import reset_internal_errors
from tests.support.recordings import INFO, MS, Request


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


# --- any sequence of what can happen ------------------------------------------------------------

short = st.integers(0, 10**10)


class AnyRequest(RuleBasedStateMachine):
    """A request to which anything may happen, and beside it what a stopwatch would say."""

    @initialize(start=st.sampled_from([0, 1, 10**15]), held=st.booleans())
    def begin(self, start, held):
        """Start recording."""
        self.request = Request(start)
        self.recording = self.request.recording
        if held:
            self.recording.switch_interval(reading=False)
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
        self.recording.switch_interval(reading=True)
        self.asked = True

    @rule(kind=st.sampled_from([HIDDEN, NOTHING, TEXT, REASONING, TOOL_CALL, OTHER]))
    def arrive(self, kind):
        """A chunk is handed over."""
        self.recording.switch_interval(reading=False)
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
        self.recording.add_mark(stage, ns)

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
        self.recording.in_decorated_function = running

    @rule(
        how=st.sampled_from(["exhausted", "abandoned", "closed", "failed", "refused", "timeout"]),
        finish=st.booleans(),
    )
    def stop(self, how, finish):
        """The stream ends, one way or another."""
        recording = self.recording
        ends = how != "closed" or (recording.open and not self.asked)
        if (
            how == "abandoned"
            and recording.in_decorated_function
            and recording.stream
            and not recording.open
        ):
            ends = False  # the stream has ended already, and the function around it goes on
        if finish:
            recording.info["finish_reason"] = "stop"
        if how == "failed":
            recording.failed(ConnectionError("gone"))
        elif how == "refused":
            recording.failed(asyncio.CancelledError())
        elif how == "timeout":
            recording.failed(TimeoutError())
        elif how == "closed":
            finalize.closed(recording)
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
        self.recording.in_decorated_function = False
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
    """A clock that reads what it is set to, or fails; at the end it stands still."""

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

    reader = timed_reads(
        recording, iter(content).__next__, lambda _, chunk: TEXT if chunk else NOTHING
    )
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
        return [chunk async for chunk in atimed_reads(recording, read, classify)]

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
    request_.recording.in_decorated_function = True
    request_.recording.clock = BrokenClock([None, 9 * MS])

    request_.recording.finish("success")
    request_.recording.in_decorated_function = False
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
