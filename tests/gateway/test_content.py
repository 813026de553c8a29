"""Is the first content found in an event stream, and the places between its events?"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.gateway.first_content import FirstContent, at_end_of_event, before_the_last


def event(**data: object) -> bytes:
    """Write an event."""
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def delta(**held: object) -> bytes:
    """Write a chunk of a chat."""
    return event(choices=[{"index": 0, "delta": held}])


CONTENT = {
    "chat text": delta(content="Hi"),
    "chat reasoning": delta(reasoning_content="Hm"),
    "vllm reasoning": delta(reasoning="Hm"),
    "tool call": delta(tool_calls=[{"index": 0, "function": {"arguments": "{"}}]),
    "refusal": delta(refusal="No"),
    "completion": event(choices=[{"text": "Hi"}]),
    "responses": event(type="response.output_text.delta", delta="Hi"),
    "messages": event(type="content_block_delta", delta={"type": "text_delta", "text": "Hi"}),
    "messages input": event(
        type="content_block_delta", delta={"type": "input_json_delta", "partial_json": "{"}
    ),
    "messages thinking": event(
        type="content_block_delta", delta={"type": "thinking_delta", "thinking": "Hm"}
    ),
    "unknown type": event(type="token", value="Hi"),
    "unknown shape": event(token="Hi"),
    "a list": b"data: [1]\n\n",
    "a number": b"data: 5\n\n",
    "plain text": b"data: Hi\n\n",
    "no space": b"data:Hi\n\n",
    "with an event's name": b"event: token\ndata: Hi\n\n",
    "carriage returns": b"data: Hi\r\n\r\n",
    "deep": b"data: " + b"[" * 20_000 + b"\n\n",
}
NOTHING = {
    "role": delta(role="assistant", content=""),
    "empty": delta(),
    "null": delta(content=None),
    "no delta": event(choices=[{"index": 0, "delta": None}]),
    "usage": event(choices=[], usage={"prompt_tokens": 5}),
    "completion without text": event(choices=[{"text": ""}]),
    "responses begun": event(type="response.created", response={"id": "r"}),
    "responses empty": event(type="response.output_text.delta", delta=""),
    "message begun": event(type="message_start", message={"id": "m"}),
    "block begun": event(type="content_block_start", content_block={"type": "text", "text": ""}),
    "message over": event(type="message_delta", delta={"stop_reason": "end_turn"}),
    "ping": event(type="ping"),
    "comment": b": keep-alive\n\n",
    "done": b"data: [DONE]\n\n",
    "no data": b"event: begun\nid: 5\n\n",
    "error": event(error={"message": "full"}),
    "nothing": b"",
}


@pytest.mark.parametrize("data", CONTENT.values(), ids=CONTENT.keys())
def test_content(data):
    """Text, reasoning, tool calls and all unknown kinds are content."""
    assert FirstContent().in_these(data)


@pytest.mark.parametrize("data", NOTHING.values(), ids=NOTHING.keys())
def test_no_content(data):
    """Roles, frames, usage and keep-alives are none."""
    assert not FirstContent().in_these(data)


@given(st.lists(st.integers(1, 30)))
def test_content_is_found_where_its_event_is_whole(cuts):
    """However the bytes are cut, content counts from the piece on that completes its line."""
    stream = NOTHING["role"] + NOTHING["comment"] + CONTENT["chat text"] + CONTENT["chat text"]
    until = len(NOTHING["role"] + NOTHING["comment"] + CONTENT["chat text"]) - 1
    finder, passed, found = FirstContent(), 0, None
    for size in [*cuts, len(stream)]:
        piece = stream[passed : passed + size]
        begun, passed = passed, passed + len(piece)
        if found is None and finder.in_these(piece):
            found = (begun, passed)

    assert found is not None
    assert found[0] < until <= found[1]


@pytest.mark.parametrize(
    ("data", "end"),
    [(b"data: x\n\n", True), (b"data: x\r\n\r\n", True), (b"data: x\r\r", True),
     (b"data: x\n", False), (b"data: x\r\n", False), (b"", False)],
)  # fmt: skip
def test_where_an_event_ends(data, end):
    """An empty line ends it, by any of the line ends there are."""
    assert at_end_of_event(data) is end


@pytest.mark.parametrize(
    ("data", "boundary", "at"),
    [
        (b"data: [DONE]\n\n", True, 0),
        (b"data:[DONE]", True, 0),
        (b"data: [DONE]\r\n\r\n", True, 0),
        (b"data: x\n\ndata: [DONE]\n\n", True, 9),
        (b"data: x\n\ndata: [DONE]\n\n", False, 9),
        (b"data: [DONE]\n\n", False, None),
        (b"event: e\ndata: [DONE]\n\n", True, None),
        (b'data: "[DONE]"\n\n', True, None),
        (b"data: x\n\n", True, None),
        (b"[DONE]\n\n", True, None),
        (b"", True, None),
    ],
)
def test_where_the_last_event_begins(data, boundary, at):
    """Before `[DONE]`, after which the SDK reads no further, there is a place for a comment."""
    assert before_the_last(data, boundary=boundary) == at
