"""A row keeps what its recording saw, and stays as it was made."""

from __future__ import annotations

import pytest

from llmtrace.core.request_clock import HIDDEN, NOTHING, OTHER, REASONING, TEXT, TOOL_CALL
from llmtrace.core.stages import STAGES, EngineFigures, Reported
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


# --- what arrives -------------------------------------------------------------------------------


def test_every_first_has_its_own_mark(request_):
    """First byte, event, reasoning, text and tool call are distinguished."""
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


@pytest.mark.parametrize(
    ("waits", "expected"),
    [((), None), ((50,), None), ((50, 20, 20), 0), ((50, 0, 0, 20), 2), ((50, 1, 2), 1)],
)
def test_chunks_that_were_there_at_once_are_counted(request_, waits, expected):
    """Of the chunks after the first, those that came without a wait are a burst."""
    request_.recording.opened()
    for wait in waits:
        request_.chunk(wait)
    request_.recording.exhausted()

    assert request_.row.burst_chunks == expected


def test_what_carries_nothing_is_not_content(request_):
    """Empty and hidden chunks are events, and nothing more."""
    request_.recording.opened()
    request_.chunk(10, kind=HIDDEN)
    request_.chunk(10, kind=NOTHING)
    request_.recording.exhausted()
    row = request_.row

    assert (row.ttft_ns, row.chunks, row.last_content_ns) == (None, 0, None)
    assert row.first_event_ns == 10 * MS


# --- what the row keeps -------------------------------------------------------------------------


def test_marks_before_and_after_the_first_content(request_):
    """Marks add up by stage, apart for the wait before and after the first content."""
    recording = request_.recording
    recording.add_mark("gateway", 3 * MS)
    recording.add_mark("gateway", 4 * MS)
    recording.add_mark("queue", -5)
    request_.chunk(100)
    recording.add_mark("render", 2 * MS)
    recording.exhausted()
    timeline = request_.row.timeline

    assert timeline.marked_before == {"gateway": 7 * MS, "queue": 0}
    assert timeline.marked_after == {"render": 2 * MS}


def test_a_row_does_not_change_once_it_is_made(request_):
    """A mark that ends late, or a late attribute, does not reach into the finished row."""
    recording = request_.recording
    recording.add_mark("gateway", 1)
    recording.end("success")
    before = request_.row.as_dict()

    recording.add_mark("gateway", 5)
    recording.add_mark("queue", 5)
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


def test_a_stream_that_is_not_read_is_not_waited_for():
    """Time before a lazy stream is asked for anything is the consumer's own."""
    request = Request()
    request.recording.opened()
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


# --- a cache ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hit", "known"), [(True, False), (False, True), (None, True)])
def test_what_a_cache_answered_has_no_engine(request_, hit, known):
    """What a cache kept may hold an engine's figures: those of the request it was made by."""
    recording = request_.recording
    if hit is not None:
        recording.info["cache_hit"] = hit
    recording.opened()
    recording.engine.append(
        EngineFigures(
            queue=Reported(1 * MS, "engine_inband"), prefill=Reported(2 * MS, "engine_inband")
        )
    )
    request_.chunk(10)
    recording.exhausted()
    stages = request_.row.stages

    assert request_.row.cache_hit is hit
    assert (stages.queue is not None, stages.prefill is not None) == (known, known)
    assert stages.total == request_.row.e2e_ns
