"""Messages are classified: OpenAI's events, and those of an application's function."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.core.errors import DataError
from llmtrace.core.recording import Recording
from llmtrace.core.request_clock import NOTHING, OTHER, REASONING, TEXT, TOOL_CALL
from llmtrace.core.stages import Reported
from llmtrace.instrumentation.rpc import message_classifier, openai_realtime

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
keys = st.sampled_from(
    ["type", "delta", "response", "error", "event_id", "status", "usage", "id", "code"]
)
kinds = st.sampled_from(["response.created", "response.done", "error", "response.text.delta"])
events = st.dictionaries(keys, anything) | st.fixed_dictionaries(
    {"type": kinds}, optional={"response": st.dictionaries(keys, anything), "error": anything}
)


def recording() -> Recording:
    """Make a recording to note things on."""
    return Recording(lambda *_: None, {})


def read(event: Any, noted: Recording | None = None) -> int:
    """Read an event as it comes over the wire."""
    return openai_realtime.read(noted or recording(), json.dumps(event))


# --- OpenAI's events -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("response.output_text.delta", TEXT),
        ("response.text.delta", TEXT),
        ("response.output_audio_transcript.delta", TEXT),
        ("response.output_audio.delta", OTHER),
        ("response.audio.delta", OTHER),
        ("response.refusal.delta", OTHER),
        ("response.reasoning_text.delta", REASONING),
        ("response.function_call_arguments.delta", TOOL_CALL),
        ("response.output_item.added", NOTHING),
        ("rate_limits.updated", NOTHING),
        ("made.up", NOTHING),
    ],
)
@pytest.mark.parametrize("spaces", [True, False])
@pytest.mark.parametrize("encode", [str, str.encode])
@pytest.mark.parametrize("order", ["type first", "id first", "type last"])
def test_deltas_are_known_by_their_type(
    kind: str, expected: int, spaces: bool, encode: Any, order: str
) -> None:
    """However it is written, and wherever in it the type stands; the second like the first."""
    event = {"delta": "x", "item": {"type": "message"}}
    if order == "type last":
        event = {**event, "type": kind}
    else:
        event = {"event_id": "e"} | {"type": kind} | event
        if order == "type first":
            event = {"type": kind} | event
    text = json.dumps(event, separators=None if spaces else (",", ":"))

    assert openai_realtime.read(recording(), encode(text)) == expected
    assert openai_realtime.read(recording(), encode(text)) == expected


@pytest.mark.parametrize("separators", [None, (",", ":")])
@pytest.mark.parametrize("encode", [str, str.encode])
def test_an_empty_delta_is_no_content(separators: Any, encode: Any) -> None:
    """Not the first time, and not where such a delta has come before."""
    for delta, expected in (("", NOTHING), ("x", TEXT), ("", NOTHING)):
        event = {"type": "response.output_text.delta", "delta": delta}
        text = json.dumps(event, separators=separators)

        assert openai_realtime.read(recording(), encode(text)) == expected


def test_text_that_looks_like_an_empty_delta_is_content() -> None:
    """A model may write JSON: inside a string it is escaped."""
    event = {"type": "response.output_text.delta", "delta": '{"delta":""}'}

    assert read(event) == TEXT


@pytest.mark.parametrize("details", ["input_token_details", "input_tokens_details"])
def test_the_last_event_tells_of_the_answer(details: str) -> None:
    """Its id, model, finish reason and tokens, in the words of Realtime and of Responses."""
    noted = recording()
    usage = {"input_tokens": 7, "output_tokens": 3, details: {"cached_tokens": 2}}
    answer = {"id": "resp_1", "model": "tiny", "status": "completed", "usage": usage}

    assert read({"type": "response.done", "response": answer}, noted) == NOTHING
    assert noted.info == {
        "response_id": "resp_1",
        "model": "tiny",
        "finish_reason": "completed",
        "prompt_tokens": 7,
        "output_tokens": 3,
        "cached_tokens": 2,
    }
    assert noted.failure is None


@pytest.mark.parametrize(
    ("answer", "finish_reason", "failure"),
    [
        (
            {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
            "max_output_tokens",
            None,
        ),
        (
            {"status": "cancelled", "status_details": {"reason": "turn_detected"}},
            "turn_detected",
            ("cancelled", None),
        ),
        (
            {"status": "failed", "status_details": {"error": {"code": "rate_limit"}}},
            "failed",
            ("error", "rate_limit"),
        ),
        ({"status": "failed", "error": {"type": "server"}}, "failed", ("error", "server")),
        ({"status": "failed"}, "failed", ("error", "response.failed")),
        (None, "completed", None),
    ],
)
def test_how_an_answer_ended(answer: Any, finish_reason: str, failure: Any) -> None:
    """A failed or cancelled one is no success."""
    noted = recording()
    read({"type": "response.done", "response": answer}, noted)

    assert noted.info["finish_reason"] == finish_reason
    assert noted.failure == failure


def test_an_error_before_the_answer_is_its_answer() -> None:
    """Once it has begun, an error is about something else: how it ended it says itself."""
    refused, running = recording(), recording()
    event = {"type": "error", "error": {"type": "invalid", "code": "no_such_model"}}
    read(event, refused)
    read({"type": "response.created", "response": {"id": "resp_1"}}, running)
    read(event, running)

    assert refused.failure == ("error", "no_such_model")
    assert running.failure is None


@pytest.mark.parametrize(
    ("message", "asks"),
    [
        ('{"type": "response.create"}', True),
        (b'{"response": {}, "type": "response.create"}', True),
        ('{"type": "session.update"}', False),
        ('{"type": "response.cancel"}', False),
        ("hello", False),
        (b"\xff", False),
        ("", False),
        (["fragments"], False),
    ],
)
def test_what_asks_for_an_answer(message: Any, asks: bool) -> None:
    """Only `response.create` does."""
    assert openai_realtime.asks(message) is asks


@given(st.text() | st.binary() | events.map(json.dumps) | anything.map(json.dumps))
def test_no_message_is_too_odd(message: str | bytes) -> None:
    """Whatever a server sends, it is read without an error, and stays within bounds."""
    noted = recording()

    assert openai_realtime.read(noted, message) in range(OTHER + 1)
    assert openai_realtime.begins(message) in {True, False}
    assert all(len(text) <= 512 for text in noted.info.values() if isinstance(text, str))


def test_a_deep_event_is_not_parsed_to_the_bottom() -> None:
    """What would exhaust the stack is taken for nothing."""
    assert openai_realtime.read(recording(), "[" * 100_000) == NOTHING
    assert read({"type": "response.done"}) == NOTHING


# --- what the application says -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        (None, NOTHING),
        ("text", TEXT),
        ("reasoning", REASONING),
        ("tool_call", TOOL_CALL),
        ("other", OTHER),
        ({}, NOTHING),
        ({"kind": None}, NOTHING),
        ({"kind": "reasoning"}, REASONING),
    ],
)
def test_the_kind_of_a_message(says: Any, expected: int) -> None:
    """By itself, or in a mapping."""
    assert message_classifier.reader(lambda _: says)(recording(), "x") == expected


def test_what_is_not_empty_is_content_by_default() -> None:
    """Of an unknown protocol nothing else can be said."""
    read = message_classifier.reader(None)

    assert [read(recording(), message) for message in ("x", b"x", "", b"")] == [1, 1, 0, 0]


def test_what_else_a_message_tells() -> None:
    """Row fields by their names, durations in seconds, a gateway's header."""
    says = {
        "kind": "text",
        "finish_reason": "stop",
        "response_id": "1",
        "model": "tiny",
        "prompt_tokens": 7,
        "cached_tokens": 2,
        "output_tokens": True,
        "queue_s": 0.5,
        "prefill_s": -1,
        "server_timing": "gateway;dur=2",
    }
    noted = recording()

    assert message_classifier.reader(lambda _: says)(noted, "x") == TEXT
    assert noted.info.items() >= {
        ("finish_reason", "stop"), ("response_id", "1"), ("model", "tiny"),
        ("prompt_tokens", 7), ("cached_tokens", 2),
    }  # fmt: skip
    assert "output_tokens" not in noted.info
    assert noted.engine[-1].queue == Reported(500_000_000, "engine_inband")
    assert noted.engine[-1].prefill is None
    assert noted.gateway == Reported(2_000_000, "server_timing")


@pytest.mark.parametrize("says", ["words", 5, ["text"], {"kind": "words"}, {"tokens": 5}])
def test_what_cannot_be_said(says: Any) -> None:
    """The error names what can."""
    with pytest.raises(DataError, match=r"text|finish_reason"):
        message_classifier.reader(lambda _: says)(recording(), "x")
