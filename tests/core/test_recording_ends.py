"""Every way a request can end makes one row with that outcome."""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from typing import Any

import pytest

from llmtrace.core.error_outcomes import outcome_of, type_name
from llmtrace.core.failopen import internal_errors
from llmtrace.core.random_ids import random_id
from llmtrace.core.recording import Recording
from llmtrace.core.request_clock import GAP_BOUNDS_NS, TEXT
from llmtrace.core.row import Row
from llmtrace.instrumentation.streams import finalize
from llmtrace.instrumentation.streams.chunk_timing import timed_reads
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


# --- how it ends --------------------------------------------------------------------------------


def test_a_stream_read_to_its_end(request_):
    """Waits are decode, holds are render, and both make the whole."""
    request_.wait(10)
    request_.recording.opened()
    request_.chunk(200, held_ms=5)
    request_.chunk(20, held_ms=3)
    request_.chunk(30, held_ms=4)
    request_.recording.switch_interval(reading=True)
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
    """During a read, a close is the read's to report: it may be an error."""
    request_.recording.opened()
    request_.recording.switch_interval(reading=True)
    finalize.closed(request_.recording)

    assert not request_.recording.ended


def test_a_connection_closed_by_its_consumer_ends_the_row(request_):
    """Closing the response outside a read is the consumer's leaving."""
    request_.recording.opened()
    finalize.closed(request_.recording)

    assert request_.row.outcome == "cancelled"


def test_a_connection_closed_before_the_stream_was_handed_out(request_):
    """Closing an answer that is no open stream ends nothing."""
    finalize.closed(request_.recording)

    assert not request_.recording.ended


def test_only_the_first_end_counts(request_):
    """However often a request ends, it makes one row."""
    request_.recording.failed(ConnectionError())
    request_.recording.exhausted()
    request_.recording.end("timeout")
    request_.recording.in_decorated_function = True
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
    request_.recording.finish("cancelled", defer=lambda *both: kept.append(both))
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
    recording.in_decorated_function = True
    recording.opened()
    request_.chunk(100)
    recording.switch_interval(reading=True)
    recording.failed(ConnectionError())
    request_.wait(50)
    assert not recording.ended

    recording.in_decorated_function = False
    recording.finish("success")

    assert (request_.row.outcome, request_.row.error_type) == ("error", "ConnectionError")
    assert request_.row.timeline.held_after == 50 * MS


def test_the_first_failure_inside_a_decorated_function_stays(request_):
    """A second stream that fails does not cover up the first."""
    request_.recording.in_decorated_function = True
    for error in (ConnectionError(), TimeoutError()):
        request_.recording.failed(error)
    request_.recording.in_decorated_function = False
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
    reader = timed_reads(request.recording, read, lambda *_: TEXT)
    next(reader)
    request.wait(500)
    with pytest.raises(ConnectionError):
        next(reader)

    assert (request.row.timeline.held_after, request.row.stages.decode) == (500 * MS, 30 * MS)
    assert request.row.max_gap_ns == 30 * MS


# --- gaps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("outer", [True, False])
def test_the_wait_before_a_break_is_a_gap(request_, outer):
    """A wait that never ended in a chunk counts, also inside a decorated function."""
    recording = request_.recording
    recording.in_decorated_function = outer
    recording.opened()
    request_.chunk(100)
    request_.chunk(20)
    recording.switch_interval(reading=True)
    request_.wait(60_000)
    recording.failed(TimeoutError())
    request_.wait(500)
    recording.in_decorated_function = False
    recording.finish("success")

    assert request_.row.max_gap_ns == 60_000 * MS


def test_the_wait_for_a_proper_end_is_no_gap(request_):
    """After the last chunk of a stream that ended well nothing more was to come."""
    request_.recording.opened()
    request_.chunk(100)
    request_.chunk(20)
    request_.recording.switch_interval(reading=True)
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


@pytest.mark.parametrize("size", [8, 16, 24])
def test_an_id_is_never_zero_and_always_full_length(monkeypatch, size):
    """Ids are hex of their full width, and not all zero, which would be no id."""
    drawn = iter([bytes(2048), bytes(2040) + b"\xff" * 8, *[b"\x01" * 2048] * 2])
    monkeypatch.setattr("llmtrace.core.random_ids._words", deque())
    monkeypatch.setattr("os.urandom", lambda _: next(drawn))

    made = random_id(size)

    assert len(made) == 2 * size
    assert "0" * 16 not in made


def test_ids_do_not_depend_on_the_applications_random_source():
    """Seeding repeats no id, and making ids leaves the application's sequence as it is."""
    random.seed(42)
    expected = random.random()
    made = []
    for _ in range(2):
        random.seed(42)
        made += [random_id(24) for _ in range(300)]
        assert random.random() == expected

    assert len(set(made)) == len(made)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_repeats_no_id():
    """Parent and child do not draw from the same buffer."""
    random_id(8)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, random_id(24).encode())
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(reading, 48).decode() != random_id(24)
