"""An event stream is read right, however its bytes are cut, and whatever they contain."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmtrace.core.request_clock import NOTHING, OTHER, PIECE, TEXT, TOOL_CALL
from llmtrace.core.row import Row
from llmtrace.instrumentation.http import sse
from llmtrace.instrumentation.http.sse import Events, looks_like_events
from llmtrace.instrumentation.llm_sdks import chunks
from tests.support.recordings import MS, Request
from tests.support.sse_server import Answer
from tests.support.sse_server import Request as ScriptRequest

from . import answers

REQUEST_BODY = {"stream": True, "stream_options": {"include_usage": True}}


class Written(Answer):
    """A response that is written down instead of being sent."""

    def __init__(self) -> None:
        self.written = b""

    def head(self, status: int = 200, headers: Any = None) -> None:
        """Leave it out."""

    def data(self, payload: bytes) -> None:
        """Write a piece down."""
        self.written += payload

    def wait(self, seconds: float) -> None:
        """Do not."""


def written(script: Any) -> bytes:
    """Return the bytes of a script's response."""
    answer = Written()
    script(ScriptRequest("POST", "/", {}, REQUEST_BODY), answer)
    return answer.written


STREAMS = {
    "chat": written(answers.chat()),
    "completions": written(answers.completion),
    "responses": written(answers.responses),
    "messages": written(answers.messages),
}
CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
FIELDS = (
    "model", "response_id", "outcome", "error_type", "finish_reason", "chunks", "prompt_tokens",
    "cached_tokens", "output_tokens", "provider",
)  # fmt: skip


def row_of(pieces: list[bytes], reader: Events | None = None) -> Row:
    """Read pieces one after the other, and return the row of it."""
    request = Request()
    request.recording.opened()
    events = Events() if reader is None else reader
    for piece in pieces:
        request.recording.switch_interval(reading=True)
        request.wait(1)
        request.recording.switch_interval(reading=False)
        request.recording.event(events(request.recording, piece))
    request.recording.exhausted()
    return request.row


def facts(row: Row) -> dict[str, Any]:
    """Return what a row knows from its stream."""
    known = {name: getattr(row, name) for name in FIELDS}
    return {**known, "queue": row.timeline.queue, "prefill": row.timeline.prefill}


def events_of(stream: bytes) -> list[bytes]:
    """Cut a stream where its events end."""
    return [event + b"\n\n" for event in stream.split(b"\n\n") if event]


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_each_protocol(stream: bytes) -> None:
    """By its events, a stream reports all it knows."""
    row = row_of(events_of(stream))
    assert (row.outcome, row.chunks >= 5, row.output_tokens) == ("success", True, 5)
    assert row.finish_reason in {"stop", "length", "completed", "end_turn"}
    assert row.first_text_ns is not None


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
@given(cuts=st.lists(st.integers(0, 10_000), max_size=20))
@settings(max_examples=60)
def test_cut_anywhere(stream: bytes, newline: bytes, cuts: list[int]) -> None:
    """However its bytes are cut, a stream reports the same."""
    sent = stream.replace(b"\n", newline)
    places = sorted({0, len(sent), *(cut % len(sent) for cut in cuts)})
    pieces = [sent[a:b] for a, b in pairwise(places)]
    assert facts(row_of(pieces)) == facts(row_of(events_of(stream)))


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_byte_by_byte_and_line_by_line(stream: bytes) -> None:
    """So it does byte by byte, by line with its end, and by line without."""
    expected = facts(row_of(events_of(stream)))
    assert facts(row_of([bytes([byte]) for byte in stream])) == expected
    assert facts(row_of(stream.splitlines(keepends=True))) == expected
    assert facts(row_of(stream.splitlines(), Events(lines=True))) == expected
    texts: Any = stream.decode().splitlines()
    assert facts(row_of(texts, Events(lines=True))) == expected


def in_lines(event: bytes) -> bytes:
    """Write the JSON of an event over several lines, as pretty printers do."""
    *before, data = event.removesuffix(b"\n\n").split(b"\n")
    if not data.startswith(b"data: {"):
        return event
    pretty = json.dumps(json.loads(data.removeprefix(b"data: ")), indent=1)
    return (
        b"\n".join([*before, *(b"data: " + line for line in pretty.encode().split(b"\n"))])
        + b"\n\n"
    )


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_events_in_several_lines(stream: bytes, newline: bytes) -> None:
    """They are read as a whole, piece by piece and byte by byte."""
    events = [in_lines(event).replace(b"\n", newline) for event in events_of(stream)]
    sent = b"".join(events)
    assert sent.count(b"data:") > 2 * stream.count(b"data:")
    assert facts(row_of(events)) == facts(row_of(events_of(stream)))
    single = row_of([sent[at : at + 1] for at in range(len(sent))])
    assert facts(single) == facts(row_of(events_of(stream)))


@pytest.mark.parametrize(
    "ahead",
    [b'{"hook_results": {}}', b'{"object": "chat.completion.chunk", "choices": null}', b"hello"],
)
@pytest.mark.parametrize("together", [False, True], ids=["apart", "in one piece"])
@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_what_a_gateway_sends_ahead(stream: bytes, together: bool, ahead: bytes) -> None:
    """It is no chunk of the response, however long before it came."""
    first, *rest = events_of(stream)
    before = b"data: " + ahead + b"\n\n"
    pieces = [before * 2 + first] if together else [before, before, first]
    row = row_of([*pieces, *rest])
    without = row_of([first, *rest])
    assert facts(row) == facts(without)
    assert row.ttft_ns == (without.ttft_ns or 0) + (0 if together else 2 * MS)
    assert (row.gap_sum_ns, row.gap_counts) == (without.gap_sum_ns, without.gap_counts)


def tool(**call: Any) -> dict[str, Any]:
    """Make the delta of a tool call."""
    return {"tool_calls": [{"index": 0, **call}]}


@pytest.mark.parametrize(
    ("delta", "kind"),
    [
        (tool(function={"name": "f", "arguments": ""}), NOTHING),
        (tool(function={"arguments": "{"}), TOOL_CALL),
        (tool(custom={"name": "f", "input": ""}), NOTHING),
        (tool(custom={"input": "x"}), TOOL_CALL),
        ({"function_call": {"name": "f", "arguments": ""}}, NOTHING),
        ({"function_call": {"arguments": "{"}}, OTHER),
    ],
)
def test_a_tool_call_begins_with_its_arguments(delta: dict[str, Any], kind: int) -> None:
    """Its name alone is no content, as in the other protocols."""
    event = {"choices": [{"index": 0, "delta": delta}]}
    assert Events()(Request().recording, f"data: {json.dumps(event)}\n\n") == kind
    completion = pytest.importorskip("openai.types.chat").ChatCompletionChunk
    chunk = completion.model_validate({**CHUNK, **event})
    assert chunks.chat(Request().recording, chunk) == kind


def test_texts_in_several_lines() -> None:
    """An event of no protocol we know counts once."""
    row = row_of([b"data: one\ndata: two\n\n", b"data: {three\ndata: four\n\n", b"data: five\n\n"])
    assert row.chunks == 3


def test_an_event_in_more_lines_than_are_held() -> None:
    """Nothing is kept without a bound, and what follows is read."""
    events = Events()
    request = Request()
    request.recording.opened()
    line = b"data: " + b"x" * 999_999 + b"\n"
    assert events(request.recording, b"data: {\n") == PIECE
    tracemalloc.start()
    for _ in range(8):
        assert events(request.recording, line) == PIECE
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8_000_000
    assert events(request.recording, b"\n") == OTHER
    assert events(request.recording, chunk(1)) == TEXT


def test_a_byte_order_mark() -> None:
    """It may stand before the first line, and is no part of it."""
    stream = STREAMS["chat"]
    assert facts(row_of(events_of(b"\xef\xbb\xbf" + stream))) == facts(row_of(events_of(stream)))
    assert looks_like_events(b"\xef\xbb\xbfdata: x")
    assert looks_like_events("\ufeffdata: x")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b'{"message": "boom"}', "error"),
        (b'{"code": "engine_dead"}', "engine_dead"),
        (b'{"error": {"code": "engine_dead"}}', "engine_dead"),
        (b"boom", "error"),
        (b'"boom"', "error"),
        (b'{\ndata: "code": "engine_dead"}', "engine_dead"),
    ],
)
def test_an_event_named_error(data: bytes, code: str) -> None:
    """Its name says so, whatever is in it."""
    row = row_of([*events_of(STREAMS["chat"])[:2], b"event: error\ndata: " + data + b"\n\n"])
    assert (row.outcome, row.error_type) == ("error", code)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "GZIP", " Gzip", "x-gzip"])
def test_compressed(encoding: str) -> None:
    """A compressed stream is read the same, piece by piece as it is flushed."""
    packer = zlib.compressobj(wbits=15 if encoding == "deflate" else 31)
    stream = events_of(STREAMS["chat"])
    pieces = [packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH) for event in stream]
    assert facts(row_of(pieces, Events(encoding=encoding))) == facts(row_of(stream))


def test_compressed_in_a_way_we_do_not_know() -> None:
    """Then every piece counts, nothing is known, and nothing is held against the stream."""
    row = row_of([b"\x01\x02", b"", b"\x03"], Events(encoding="br"))
    assert (row.outcome, row.finish_reason, row.chunks) == ("success", None, 2)


@pytest.mark.parametrize("sent", [b"no gzip", zlib.compress(b"x" * (1 << 22))])
def test_compressed_badly(sent: bytes) -> None:
    """What cannot be unpacked, or unpacks to more than anybody sends, is read no further."""
    row = row_of([sent, sent], Events(encoding="gzip"))
    assert row.outcome == "success"


# --- one text alone ------------------------------------------------------------------------------


def chunk(number: int, **more: Any) -> bytes:
    """Make one event of a chat."""
    return b"data: " + json.dumps(answers.delta(f"word {number}", **more)).encode() + b"\n\n"


def parsed(pieces: list[bytes], monkeypatch: pytest.MonkeyPatch) -> int:
    """Count how many events of a stream had to be parsed."""
    count = 0
    plain = json.loads

    def loads(data: Any) -> Any:
        nonlocal count
        count += 1
        return plain(data)

    monkeypatch.setattr(sse.json, "loads", loads)
    row = row_of(pieces)
    assert row.chunks == sum(piece.count(b"word") for piece in pieces)
    return count


def test_like_events_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many events that differ in their text alone, the first is parsed."""
    assert parsed([chunk(number) for number in range(1000)], monkeypatch) == 1


def test_padded_events_are_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenAI pads its events with letters of no meaning."""
    sent = []
    for number in range(1000):
        event = {**answers.delta(f"word {number}"), "obfuscation": "x" * (number % 9)}
        sent.append(b"data: " + json.dumps(event).encode() + b"\n\n")
    assert parsed(sent, monkeypatch) == 1


def test_events_of_a_new_kind_are_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose clock is in its events is learnt anew each second."""
    sent = []
    for second in range(100):
        for number in range(20):
            event = {**answers.delta(f"word {number}"), "created": second}
            sent.append(b"data: " + json.dumps(event).encode() + b"\n\n")
    assert parsed(sent, monkeypatch) == 100


@pytest.mark.parametrize(
    "odd",
    [
        answers.delta("word", finish="stop"),
        answers.delta("word", reasoning_content="hm"),
        {**answers.delta("word"), "usage": answers.USAGE},
        answers.delta('word"},"finish_reason":null}]}'),
        answers.delta('\\"word', role="assistant"),
        answers.delta(""),
        {**answers.delta("word"), "error": {"message": "no", "code": "out_of_words"}},
    ],
)
def test_what_is_not_like_the_others_is_seen(odd: dict[str, Any]) -> None:
    """An event that reports more than its text is parsed, even if it resembles the others."""
    alone = row_of([b"data: " + json.dumps(odd).encode() + b"\n\n"])
    among = row_of([chunk(1), chunk(2), b"data: " + json.dumps(odd).encode() + b"\n\n", chunk(3)])
    for name in ("finish_reason", "output_tokens", "error_type"):
        assert getattr(among, name) == getattr(alone, name)
    assert among.chunks == 3 + alone.chunks


def test_several_events_in_a_piece() -> None:
    """Each of several events in one piece counts, those after the first without a gap."""
    row = row_of([chunk(1), chunk(2) + chunk(3) + chunk(4)])
    assert (row.chunks, row.max_gap_ns) == (4, 1_000_000)
    assert row.gap_counts is not None
    assert sum(row.gap_counts) == 3


def test_comments_are_no_events() -> None:
    """What keeps a connection alive is neither content nor an event."""
    row = row_of([b": OPENROUTER PROCESSING\n\n", b":\n\n", chunk(1)])
    assert (row.chunks, row.first_event_ns) == (1, row.ttft_ns)
    assert row.ttft_ns == 3_000_000


@pytest.mark.parametrize(
    "data", [b"Hello", b"1", b"null", b'"x"', b"[1]", b'{"n": 1}', b'{"token": {"text": "a"}}']
)
def test_events_of_unknown_protocols(data: bytes) -> None:
    """Events that are no protocol's of ours are content, and may end as they like."""
    row = row_of([b"data: " + data + b"\n\n"] * 2)
    assert (row.outcome, row.chunks) == ("success", 2)


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ({"error": {"message": "no", "type": "server_error", "code": None}}, "server_error"),
        ({"error": {"message": "no", "code": "rate_limit_exceeded"}}, "rate_limit_exceeded"),
        ({"error": "no"}, "error"),
        ({"type": "error", "error": {"type": "overloaded_error"}}, "overloaded_error"),
        ({"type": "error", "code": "server_error", "message": "no"}, "server_error"),
    ],
)
def test_error_events(event: Any, code: str) -> None:
    """An error inside a stream is the row's, by its code, though the stream just ends."""
    row = row_of([chunk(1), b"data: " + json.dumps(event).encode() + b"\n\n"])
    assert (row.outcome, row.error_type, row.chunks) == ("error", code, 1)


# --- anything ------------------------------------------------------------------------------------

scraps = st.sampled_from(
    [b"data:", b"event:", b": ", b"\n", b"\r\n", b"{", b"}", b'"choices"', b'":"', b"[DONE]",
     b'{"choices":[{"delta":', b'{"type":"response.completed","response":', b"\\", b"\xff",
     b'{"type":"message_delta","delta":null,"usage":7}', chunk(1), chunk(2), STREAMS["messages"]]
)  # fmt: skip


@given(st.lists(st.binary(max_size=30) | scraps | scraps, max_size=30))
@settings(max_examples=400)
def test_any_bytes(pieces: list[bytes]) -> None:
    """Whatever comes, reading it raises nothing, and the row adds up."""
    row = row_of(pieces)
    assert row.stages.total == row.e2e_ns


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "delta", "type", "usage", "error", "content", "response"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.lists(st.dictionaries(
    st.sampled_from(["choices", "delta", "type", "usage", "error", "message", "response"]),
    json_values | st.sampled_from(["response.completed", "message_start", "message_delta"]),
), max_size=5))  # fmt: skip
@settings(max_examples=300)
def test_any_json(events: list[Any]) -> None:
    """Neither does any JSON, whatever stands where something else is expected."""
    row = row_of([b"data: " + json.dumps(event).encode() + b"\n\n" for event in events])
    assert row.stages.total == row.e2e_ns


def test_deeper_than_deep() -> None:
    """JSON that is nested without end is content of an unknown protocol."""
    row = row_of([b"data: " + b"[" * 100_000 + b"\n\n"])
    assert row.chunks == 1


def test_a_line_without_an_end() -> None:
    """No more than a bound is held of a line, and reading goes on after it."""
    request = Request()
    request.recording.opened()
    events = Events()
    piece = b"x" * (1 << 16)
    events(request.recording, b"data: ")
    tracemalloc.start()
    for _ in range(64):
        assert events(request.recording, piece) == PIECE
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 1 << 17
    assert peak < 4 << 20
    assert events(request.recording, b"\n\n" + chunk(1)) == TEXT


def test_a_stream_is_known_by_how_it_begins() -> None:
    """Fields of server-sent events are known; a text that a model may well begin with is not."""
    for piece in ("data: {}", b"data:{}", "event: ping", b"id: 7", "retry: 10"):
        assert looks_like_events(piece)
    for piece in ("Hello", ":)", b": ", "", "Data:", "dat"):
        assert not looks_like_events(piece)


def test_an_event_that_some_library_took_apart() -> None:
    """By name and data, an event reports the same."""
    request = Request()
    request.recording.opened()
    events = Events(lines=True)
    assert events.sent(request.recording, "message", json.dumps(answers.delta("a"))) == TEXT
    assert events.sent(request.recording, "message", "Hello") == OTHER
    assert events.sent(request.recording, "response.output_text.delta", '{"delta":"a"}') == TEXT
