"""A gateway's report in a stream's comments is read, in any pieces, and nothing else is."""

from __future__ import annotations

import gzip
from typing import Any

import httpx
import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.core.recording import Recording
from llmtrace.core.stages import EngineFigures, Reported
from llmtrace.instrumentation.headers import sse_comments
from llmtrace.instrumentation.headers.sse_comments import Comments, line

MS = 1_000_000
EVENT = b'data: {"choices": [{"delta": {"content": "a\\tb"}}]}\n\n'
FIRST = line('gateway;dur=5;desc="edge";hop=a1, more')
LAST = line('gateway;dur=6;desc="edge";hop=a1, queue;dur=2, prefill;dur=30')


@pytest.fixture
def recording() -> Recording:
    """A recording of a streamed request."""
    return Recording(lambda _, __: None, {})


def gateway_ms(recording: Recording) -> float | None:
    """Return the gateway's own time as it is known now."""
    return None if recording.gateway is None else recording.gateway.ns / MS


def test_a_comment_is_a_comment():
    """Readers of events skip it, and an empty line keeps it apart from the next event."""
    assert FIRST.startswith(b":")
    assert FIRST.endswith(b"\n\n")
    assert FIRST.count(b"\n") == 2


def test_the_first_comment_tells_and_says_that_more_may_follow(recording):
    """The gateway's time is known as soon as the comment has come."""
    reader = Comments(recording)
    reader.look(EVENT + FIRST + EVENT)

    assert (gateway_ms(recording), reader.over) == (5, False)


def test_the_last_comment_tells_all(recording):
    """A later figure takes the place of an earlier one; the engine's come along."""
    reader = Comments(recording)
    reader.look(EVENT + FIRST)
    reader.look(EVENT + LAST + b"data: [DONE]\n\n")

    assert (gateway_ms(recording), reader.over) == (6, True)
    assert recording.engine == [
        EngineFigures(
            queue=Reported(2 * MS, "server_timing"), prefill=Reported(30 * MS, "server_timing")
        )
    ]


@given(st.lists(st.integers(1, 60)))
def test_comments_are_read_however_the_bytes_are_cut(cuts):
    """A comment may come in any number of pieces."""
    recording = Recording(lambda _, __: None, {})
    stream, reader, passed = EVENT + FIRST + EVENT + LAST + EVENT, Comments(recording), 0
    for size in [*cuts, len(stream)]:
        piece = stream[passed : passed + size]
        passed += len(piece)
        if piece and not reader.over and (0x09 in piece or reader.begun):
            reader.look(piece)

    assert (gateway_ms(recording), reader.over) == (6, True)
    assert len(recording.engine) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"data: \tllmtrace gateway;dur=5;hop=a1\n\n",
        b":\tgateway;dur=5;hop=a1\n\n",
        b":\tllmtracer gateway;dur=5;hop=a1\n\n",
        b": llmtrace gateway;dur=5;hop=a1\n\n",
        b":\tllmtrace gateway;dur=5\n\n",
        b":\tllmtrace " + b" " * 5000 + b"gateway;dur=5;hop=a1\n\n",
        b"\t\t\t\n:\n",
        b":\tllmtrace \n\n",
    ],
)
def test_what_is_no_comment_of_ours(recording, data):
    """Whatever else has a tab in it says nothing."""
    Comments(recording).look(data)

    assert recording.gateway is None


def test_an_endless_comment_is_discarded(recording):
    """What is kept of a comment that is not all there stays within bounds."""
    reader = Comments(recording)
    reader.look(b":\tllmtrace ")
    for _ in range(100):
        reader.look(b"x" * 100)

    assert len(reader.begun) <= 4096 + 100


@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"\t", b":\tllmtrace ", b"\n"])))
def test_no_bytes_break_anything(pieces):
    """Untrusted bytes raise nothing, and are kept within bounds."""
    reader = Comments(Recording(lambda _, __: None, {}))
    for piece in pieces:
        reader.look(piece)

    assert len(reader.begun) <= 4096 + 40


def test_a_fault_ends_the_reading_and_not_the_stream(recording, monkeypatch, faulty):
    """Whatever goes wrong inside, the bytes go on."""
    monkeypatch.setattr(sse_comments.propagation, "commented", lambda *_: 1 / 0)
    reader = Comments(recording)
    reader.look(FIRST)

    assert (reader.over, recording.gateway) == (True, None)


# --- on their way through httpx -----------------------------------------------------------------


@pytest.fixture(params=[httpx, httpx2], ids=lambda library: library.__name__)
def library(request: pytest.FixtureRequest) -> Any:
    """Run a test with both libraries."""
    return request.param


def test_the_bytes_are_as_sent(library, recording):
    """A reader gets every byte, comments included."""
    sent = [EVENT, FIRST, EVENT + LAST, b"data: [DONE]\n\n"]
    response = library.Response(200, stream=library.ByteStream(b"".join(sent)))
    sse_comments.watch(recording, response)

    assert b"".join(response.iter_bytes()) == b"".join(sent)
    assert gateway_ms(recording) == 6


def test_once_all_is_reported_nothing_is_searched(library, recording):
    """The library's own decoder stands where it stood."""
    response = library.Response(200, stream=library.ByteStream(EVENT + LAST + EVENT))
    plain = response._get_content_decoder().decode
    sse_comments.watch(recording, response)
    decoder = response._get_content_decoder()
    before = decoder.decode
    response.read()

    assert (before == plain, decoder.decode == plain) == (False, True)


def test_a_compressed_stream_is_left_alone(library, recording):
    """In compressed bytes nothing can be seen."""
    response = library.Response(
        200,
        headers={"content-encoding": "gzip"},
        stream=library.ByteStream(gzip.compress(FIRST + EVENT)),
    )
    sse_comments.watch(recording, response)

    assert response.read() == FIRST + EVENT
    assert recording.gateway is None
