"""Chunks of unknown clients are recognised by their shape."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

import llmtrace
from llmtrace.core.failopen import internal_errors
from llmtrace.core.row import Row
from llmtrace.core.stages import Reported
from llmtrace.testing import capture
from tests.support.sse_server import Server

from . import answers
from .raw import BODY, datas, no_tls, url
from .reading import client, method, read
from .test_sse import STREAMS

USAGE = answers.usage_chunk(metrics=answers.METRICS)
CHAT = [
    answers.delta("", role="assistant"), *(answers.delta(word) for word in answers.WORDS),
    answers.delta(finish="stop"), USAGE,
]  # fmt: skip


def recorded(act: Callable[[], object]) -> Row:
    """Do something that makes one row, and return it. Nothing is instrumented."""
    with capture(instrument=()) as rows:
        act()
    [row] = rows
    assert row.stages.total == row.e2e_ns
    return row


def wrapped(chunks: Any, **labels: Any) -> Row:
    """Read a wrapped stream to its end, and return its row."""
    return recorded(lambda: list(llmtrace.wrap(iter(chunks), **labels)))


def is_the_chat(row: Row) -> None:
    """Check that a row knows all that the stream of a short chat reports."""
    assert (row.outcome, row.finish_reason, row.chunks) == ("success", "stop", 5)
    assert (row.prompt_tokens, row.output_tokens) == (10, 5)
    assert row.timeline.queue == Reported(1_500_000, "engine_inband")


# --- event streams -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cut",
    [
        lambda stream: stream.splitlines(),
        lambda stream: stream.decode().splitlines(),
        lambda stream: stream.splitlines(keepends=True),
        lambda stream: [stream[at : at + 100] for at in range(0, len(stream), 100)],
        lambda stream: [stream],
        lambda stream: [b": OPENROUTER PROCESSING", b"", *stream.splitlines()],
        lambda stream: ["", *stream.decode().splitlines()],
    ],
    ids=["lines", "text lines", "lines with ends", "pieces", "whole", "comment", "empty line"],
)
def test_event_streams(cut: Callable[[bytes], list[Any]]) -> None:
    """Lines and pieces of an event stream are read as what they are."""
    is_the_chat(wrapped(cut(STREAMS["chat"])))


def test_over_any_http_library(server: Server) -> None:
    """So are the lines of `requests`, or of httpx that is not instrumented."""
    requests = pytest.importorskip("requests")
    httpx = pytest.importorskip("httpx")
    body = {**BODY, "stream_options": {"include_usage": True}}

    def by_requests() -> None:
        with requests.post(url(server), json=body, stream=True) as response:
            list(llmtrace.wrap(response.iter_lines()))

    def by_httpx() -> None:
        with (
            httpx.Client(verify=no_tls()) as made,
            made.stream("POST", url(server), json=body) as response,
        ):
            list(llmtrace.wrap(response.iter_bytes()))

    is_the_chat(recorded(by_requests))
    is_the_chat(recorded(by_httpx))


def test_a_decorated_function_of_lines() -> None:
    """A decorated generator of lines reports what they report."""

    @llmtrace.trace(route="lines")
    def lines() -> Iterator[str]:
        yield from STREAMS["messages"].decode().splitlines()

    row = recorded(lambda: list(lines()))
    assert (row.route, row.finish_reason, row.output_tokens) == ("lines", "end_turn", 5)
    assert row.first_reasoning_ns is not None


def test_a_stream_that_was_cut() -> None:
    """What is read as the server sent it must end with a finish reason."""
    lines = STREAMS["chat"].splitlines()[:6]
    assert wrapped(lines).outcome == "truncated"

    def client_lines() -> Iterator[bytes]:
        yield from lines

    assert recorded(lambda: list(llmtrace.wrap(client_lines()))).outcome == "truncated"


def test_a_stream_that_is_read_in_part() -> None:
    """A generator of the application's own may leave the finish reason out."""
    lines = STREAMS["chat"].splitlines()
    picked = (line for line in lines if b"word" in line)
    assert recorded(lambda: list(llmtrace.wrap(picked))).outcome == "success"

    @llmtrace.trace
    def words() -> Iterator[bytes]:
        yield from (line for line in lines if b"word" in line)

    assert recorded(lambda: list(words())).outcome == "success"


@pytest.mark.parametrize(
    "text", [":)", "data is plural", "event", "Hello", ": so", "id", "\n", "a"]
)
def test_text_is_text(text: str) -> None:
    """What a model may well say is no event stream."""
    row = wrapped([text, "and so on"])
    assert (row.outcome, row.finish_reason) == ("success", None)
    assert row.chunks == (1 if text in {": so", "\n"} else 2)


@pytest.mark.parametrize("taken", ["object", "class"])
def test_events_some_library_took_apart(taken: str) -> None:
    """Events as httpx-sse and its like have them are read by their data."""
    httpx_sse = pytest.importorskip("httpx_sse")
    kind = httpx_sse.ServerSentEvent if taken == "class" else SimpleNamespace
    events = [kind(event="message", data=json.dumps(event)) for event in CHAT]
    is_the_chat(wrapped([*events, kind(event="message", data="[DONE]")]))


# --- chunks that are parsed already --------------------------------------------------------------


@pytest.mark.parametrize("protocol", STREAMS)
def test_dictionaries(protocol: str) -> None:
    """Parsed JSON of each protocol is read like its SDK's objects."""
    row = wrapped(datas(STREAMS[protocol]))
    assert (row.outcome, row.output_tokens) == ("success", 5)
    assert row.finish_reason in {"stop", "length", "completed", "end_turn"}
    assert row.model == ("tiny" if protocol != "x" else None)


def test_chunks_of_another_client() -> None:
    """Objects with OpenAI's attributes are read by these, whatever their class lacks."""

    def as_object(value: Any) -> Any:
        if isinstance(value, dict):
            return SimpleNamespace(**{key: as_object(one) for key, one in value.items()})
        return [as_object(one) for one in value] if isinstance(value, list) else value

    is_the_chat(wrapped([as_object(chunk) for chunk in CHAT if chunk is not USAGE] + [USAGE]))


def test_the_sdks_own_chunks(mode: str, server: Server) -> None:
    """A decorated generator of an SDK's chunks is read by these, where the SDK is not seen."""

    @llmtrace.trace(route="words")
    def words(made: Any) -> Any:
        create, call_options = method(made)
        yield from create(**call_options, stream=True, stream_options={"include_usage": True})

    @llmtrace.trace(route="words")
    async def awords(made: Any) -> Any:
        create, call_options = method(made)
        options = {"include_usage": True}
        async for chunk in await create(**call_options, stream=True, stream_options=options):
            yield chunk

    async def main() -> None:
        async with client("async", server) as made:
            async for _chunk in awords(made):
                pass

    def act() -> None:
        if mode == "async":
            asyncio.run(main())
            return
        with client("sync", server) as made:
            list(words(made))

    is_the_chat(recorded(act))


def test_chunks_of_no_shape() -> None:
    """Of all others, what is not empty is content; who does not like to be looked at as well."""

    class Shy:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    row = wrapped([Shy(), 7, [1], ("a",), None, object(), {}])
    assert (row.outcome, row.chunks) == ("success", 6)
    assert internal_errors() == {}


# --- LangChain's messages ------------------------------------------------------------------------


@dataclass
class Message:
    """As LangChain's chunks look."""

    content: Any = ""
    response_metadata: dict[str, Any] = field(default_factory=dict)
    additional_kwargs: dict[str, Any] = field(default_factory=dict)
    usage_metadata: dict[str, Any] | None = None
    tool_call_chunks: list[Any] = field(default_factory=list)
    id: str | None = "run-1"


LAST = Message(response_metadata={"finish_reason": "stop", "model_name": "tiny"})
COUNTED = Message(
    usage_metadata={
        "input_tokens": 10, "output_tokens": 5, "input_token_details": {"cache_read": 4},
    }
)  # fmt: skip


def test_messages() -> None:
    """Content, finish reason, model and usage of LangChain's chunks are where it keeps them."""
    row = wrapped([Message(), Message("a"), Message("b"), LAST, COUNTED])
    assert (row.outcome, row.chunks, row.finish_reason) == ("success", 2, "stop")
    assert (row.model, row.prompt_tokens, row.output_tokens) == ("tiny", 10, 5)
    assert (row.cached_tokens, row.response_id) == (4, None)


@pytest.mark.parametrize(
    ("message", "first"),
    [
        (Message([{"type": "text", "text": "a"}]), "first_text_ns"),
        (Message(["a"]), "first_text_ns"),
        (Message([{"type": "reasoning", "reasoning": "hm"}]), "first_reasoning_ns"),
        (Message([{"type": "thinking", "thinking": "hm"}]), "first_reasoning_ns"),
        (Message(additional_kwargs={"reasoning_content": "hm"}), "first_reasoning_ns"),
        (Message(tool_call_chunks=[{"name": "f"}]), "first_tool_call_ns"),
        (Message([{"type": "text", "text": ""}]), None),
        (Message([7, {"type": 7}]), None),
    ],
)
def test_kinds_of_messages(message: Message, first: str | None) -> None:
    """Each kind of content is distinguished from the others, and from none."""
    row = wrapped([message])
    firsts = ("first_text_ns", "first_reasoning_ns", "first_tool_call_ns")
    assert [name for name in firsts if getattr(row, name) is not None] == (
        [first] if first else []
    )
    assert row.chunks == (first is not None)


def test_messages_inside_of_something() -> None:
    """LangGraph sends them with metadata, LangChain's events as data."""
    assert wrapped([(Message("a"), {}), (LAST, {})]).finish_reason == "stop"
    events = [{"event": "on_chat_model_stream", "data": {"chunk": one}} for one in (LAST, COUNTED)]
    row = wrapped(events)
    assert (row.finish_reason, row.output_tokens, row.chunks) == ("stop", 5, 0)


# --- whole responses
# -------------------------------------------------------------------------------

WHOLE = {
    "id": "chatcmpl-1", "object": "chat.completion", "model": "tiny", "usage": answers.USAGE,
    "choices": [{"message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (WHOLE, "stop"),
        (SimpleNamespace(choices=[SimpleNamespace(finish_reason="stop")], object=None), "stop"),
        (Message("a", response_metadata={"finish_reason": "stop"}), "stop"),
        (
            {"type": "message", "stop_reason": "end_turn", "usage": {"output_tokens": 5}},
            "end_turn",
        ),
        (answers.response_object("completed"), "completed"),
        ({"status": "ok"}, None),
        ({"choices": []}, None),
        ({"object": 7, "choices": "a"}, None),
        ("text", None),
        (None, None),
        ([1], None),
    ],
)
def test_whole_answers(answer: Any, reason: str | None) -> None:
    """What a decorated function returns is read for what it reports, if it is a response."""

    @llmtrace.trace
    def ask() -> Any:
        return answer

    row = recorded(ask)
    assert (row.outcome, row.finish_reason) == ("success", reason)
    assert internal_errors() == {}


# --- wrapped twice -------------------------------------------------------------------------------


class Framework:
    """A framework's stream: it holds a client's."""

    def __init__(self, inner: Any) -> None:
        self._state = SimpleNamespace(inner=inner)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._state.inner)


def test_a_stream_made_of_one_that_is_recorded(server: Server) -> None:
    """Wrapping it makes no second row; the first one gets the labels."""
    pytest.importorskip("openai")
    with capture() as rows, client("sync", server) as made:
        create, call_options = method(made)
        plain = Framework(create(**call_options, stream=True))
        stream = llmtrace.wrap(plain, route="framework", shoe_size=44)
        assert stream is plain
        list(stream)
        generator = (chunk for chunk in create(**call_options, stream=True))
        assert llmtrace.wrap(generator, route="generator") is generator
        list(generator)
    assert [(row.route, row.chunks) for row in rows] == [("framework", 5), ("generator", 5)]
    assert rows[0].attributes == {"shoe_size": 44}


def test_a_stream_made_of_one_that_has_ended(mode: str, server: Server) -> None:
    """What was read before is not what is read now."""
    pytest.importorskip("openai")
    with capture() as rows:
        chunks = read(mode, server)
        for _ in llmtrace.wrap(iter(chunks)):
            pass
    assert [row.chunks for row in rows] == [5, 5]


def test_looking_is_bounded() -> None:
    """However much a stream is made of, not much of it is looked at."""

    class Deep:
        def __init__(self) -> None:
            self.itself = self
            self.many = [SimpleNamespace(me=self) for _ in range(10)]
            for number in range(5_000):
                setattr(self, f"a{number}", SimpleNamespace())

        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            raise StopIteration

    assert wrapped(Deep()).outcome == "success"
