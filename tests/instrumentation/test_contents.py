"""Prompts and responses are recorded by OpenTelemetry's conventions if enabled."""

from __future__ import annotations

import json
from typing import Any

import pytest

import llmtrace
from llmtrace.core.content import INPUT, OUTPUT, SYSTEM, ContentPolicy
from llmtrace.core.failopen import internal_errors
from llmtrace.core.row import Row
from llmtrace.semconv.convert import from_attributes, to_attributes
from llmtrace.simulator.server import serve
from tests.support.sse_server import Server

from . import answers
from .reading import answer, read, recorded
from .scopes import watched

WHOLE = "".join(answers.WORDS)
SCRIPTS = {
    "chat": answers.chat(),
    "completions": answers.completion,
    "responses": answers.responses,
    "messages": answers.messages,
}
ENDPOINTS = list(SCRIPTS)

# A conversation with a tool call in it, as each protocol sends it.
CHAT = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        ],
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "look", "arguments": '{"at": "it"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "a teapot"},
]
RESPONSES = [
    {"role": "user", "content": [{"type": "input_text", "text": "What is this?"}]},
    {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": '{"at": "it"}'},
    {"type": "function_call_output", "call_id": "call_1", "output": "a teapot"},
]
MESSAGES = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is this?"},
            {"type": "image", "source": {"type": "url", "url": "https://x.org/a.png"}},
        ],
    },
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": "it"}}],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "call_1",
                "content": [{"type": "text", "text": "a teapot"}],
            }
        ],
    },
]
PROMPTS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "chat": (
        {"messages": CHAT},
        [
            {"role": "system", "parts": [{"type": "text", "content": "Be brief."}]},
            {
                "role": "user",
                "parts": [{"type": "text", "content": "What is this?"}, {"type": "image_url"}],
            },
        ],
    ),
    "responses": (
        {"input": RESPONSES, "instructions": "Be brief."},
        [{"role": "user", "parts": [{"type": "text", "content": "What is this?"}]}],
    ),
    "messages": (
        {"messages": MESSAGES, "system": "Be brief."},
        [
            {
                "role": "user",
                "parts": [{"type": "text", "content": "What is this?"}, {"type": "image"}],
            }
        ],
    ),
}
CALL = {
    "role": "assistant",
    "parts": [{"type": "tool_call", "id": "call_1", "name": "look", "arguments": '{"at": "it"}'}],
}
RESULT = {"type": "tool_call_response", "id": "call_1", "response": "a teapot"}


def output(row: Row) -> list[dict[str, Any]]:
    """Return the one message that was answered, as its parts."""
    [message] = json.loads(row.content[OUTPUT])
    assert message["role"] == "assistant"
    parts: list[dict[str, Any]] = message["parts"]
    return parts


def prompt_of(row: Row) -> Any:
    """Return the prompt's messages."""
    return json.loads(row.content[INPUT])


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_stream(endpoint: str, mode: str, server: Server) -> None:
    """The prompt and the whole response are recorded, however it is cut into pieces."""
    server.play(SCRIPTS[endpoint])
    row = recorded(lambda: read(mode, server, endpoint), content=ContentPolicy())

    assert prompt_of(row) == [{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]
    reasoned = [{"type": "reasoning", "content": "hm"}]
    expected = reasoned if endpoint in {"responses", "messages"} else []
    assert output(row) == [*expected, {"type": "text", "content": WHOLE}]
    assert row.finish_reason is not None


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_whole_answer(endpoint: str, mode: str, server: Server) -> None:
    """The same for a response that is no stream."""
    server.play(SCRIPTS[endpoint])
    row = recorded(lambda: answer(mode, server, endpoint), content=ContentPolicy())

    assert prompt_of(row) == [{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]
    assert output(row) == [{"type": "text", "content": WHOLE}]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_nothing_unless_asked_for(endpoint: str, mode: str, server: Server) -> None:
    """By default a row has no content, and its chunks are classified by what always did."""
    server.play(SCRIPTS[endpoint])
    row = recorded(lambda: read(mode, server, endpoint))

    assert row.content == {}


@pytest.mark.parametrize("endpoint", list(PROMPTS))
def test_a_conversation_with_tools(endpoint: str, server: Server) -> None:
    """Instructions, pictures, tool calls and their results are in the conventions' shape."""
    server.play(SCRIPTS[endpoint])
    given, expected = PROMPTS[endpoint]
    row = recorded(lambda: answer("sync", server, endpoint, **given), content=ContentPolicy())

    role = "user" if endpoint == "messages" else "tool"
    assert prompt_of(row) == [*expected, CALL, {"role": role, "parts": [RESULT]}]
    if endpoint != "chat":
        assert json.loads(row.content[SYSTEM]) == [{"type": "text", "content": "Be brief."}]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("endpoint", ["chat", "messages", "responses"])
def test_tool_calls_and_reasoning(endpoint: str, stream: bool) -> None:
    """What the model thinks, and asks tools for, is part of its response."""
    tool = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    tools: dict[str, Any] = {
        "chat": {"type": "function", "function": tool},
        "responses": {"type": "function", "strict": False, **tool},
        "messages": {"name": "look", "input_schema": tool["parameters"]},
    }
    with serve() as engine:
        options = {
            "model": "llmtrace-sim",
            "tools": [tools[endpoint]],
            "extra_headers": {"x-llmtrace-sim": "reasoning_tokens=3, tool_calls=2"},
        }
        target: Any = _Simulated(engine.url)
        ask = read if stream else answer
        row = recorded(lambda: ask("sync", target, endpoint, **options), content=ContentPolicy())

    kinds = [part["type"] for part in output(row)]
    calls = [part for part in output(row) if part["type"] == "tool_call"]
    assert kinds == ["reasoning", "tool_call", "tool_call"]
    assert [call["name"] for call in calls] == ["look", "look"]
    assert len({call["id"] for call in calls}) == 2
    assert all(isinstance(json.loads(call["arguments"]), dict) for call in calls)


class _Simulated:
    """The simulated engine, as the scripted server is addressed."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.root = url.removesuffix("/v1")


def test_a_failed_request_has_what_was_asked(server: Server) -> None:
    """Without a response there is the question."""
    server.play(answers.error(400, "no"))

    def act() -> None:
        with pytest.raises(Exception, match="no"):
            read("sync", server)

    row = recorded(act, content=ContentPolicy())
    assert row.outcome == "error"
    assert prompt_of(row)[0]["parts"][0]["content"] == "hi"
    assert OUTPUT not in row.content


def test_a_cut_stream_has_what_had_come(server: Server) -> None:
    """Up to there it was answered."""
    server.play(answers.chat(("one ", "two"), finish=None))
    row = recorded(lambda: read("sync", server), content=ContentPolicy())

    assert row.outcome == "truncated"
    assert output(row) == [{"type": "text", "content": "one two"}]


def test_messages_that_are_appended_to_meanwhile(server: Server) -> None:
    """What is recorded is what was sent, not what an agent added to its list since."""
    messages = [{"role": "user", "content": "hi"}]

    def act() -> None:
        for _ in read("sync", server, messages=messages):
            messages.append({"role": "user", "content": "later"})

    row = recorded(act, content=ContentPolicy())
    assert len(prompt_of(row)) == 1


def test_any_stream_of_texts(server: Server) -> None:
    """Of what is no SDK's, the texts that it gives are its response."""
    del server

    @llmtrace.trace
    def words() -> Any:
        yield from ("Hello, ", "world", b"no text", None)

    row = recorded(lambda: list(words()), content=ContentPolicy())
    assert output(row) == [{"type": "text", "content": "Hello, world"}]


def test_redaction_and_size(server: Server) -> None:
    """The user's hook sees each text once, in the thread that ends the request."""
    seen = []

    def redact(text: str) -> str:
        seen.append(text)
        return text.replace("word", "****")

    server.play(answers.chat())
    row = recorded(lambda: read("sync", server), content=ContentPolicy(9, redact))

    assert seen == ["hi", WHOLE]
    assert output(row) == [{"type": "text", "content": "****0 ***…[cut]"}]


def test_an_unreadable_chunk(server: Server, faulty: None) -> None:
    """The application still gets it; no content is kept, and that is counted."""
    odd = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
    wrong = [{"index": 0, "delta": {"content": "hi", "tool_calls": 5}, "finish_reason": None}]
    server.play(answers.events({**odd, "choices": wrong}, answers.delta("hi")))
    row = recorded(lambda: read("sync", server), content=ContentPolicy())

    assert row.content == {}
    assert internal_errors() == {"content": 1}


def test_on_the_span_and_nowhere_else(server: Server) -> None:
    """Content is among the span's attributes; in JSON and in print a row does not have it."""
    with watched(content=ContentPolicy()) as (rows, _):
        read("sync", server)
    [row] = rows
    attributes = to_attributes(row)

    assert attributes[OUTPUT] == row.content[OUTPUT]
    back = from_attributes(attributes, start=row.start, trace_id=row.trace_id, span_id=row.span_id)
    assert dict(back.content) == dict(row.content)
    assert "word0" not in repr(row)
    assert "word0" not in json.dumps(row.as_dict())


def test_attributes_cannot_write_content() -> None:
    """The names of content are not for a user's own attributes: the switch decides."""

    @llmtrace.trace(**{OUTPUT: "sneaked in"})
    def words() -> Any:
        yield "a"

    row = recorded(lambda: list(words()))
    assert OUTPUT not in to_attributes(row)


def test_what_is_not_sampled_is_not_collected(server: Server) -> None:
    """No hook runs for a request whose span is not written."""

    def redact(text: str) -> str:
        raise AssertionError(text)

    row = recorded(lambda: read("sync", server), sample=0.0, content=ContentPolicy(redact=redact))
    assert row.content == {}
