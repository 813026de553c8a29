"""Every endpoint of both SDKs is read right, streamed or unary, through every call style."""

from __future__ import annotations

import asyncio
import gc
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import llmtrace
from llmtrace.core.row import Row
from llmtrace.testing import capture
from tests.support.sse_server import Script, Server

from . import answers
from .answers import WORDS
from .reading import CALLS, answer, client, method, raised_by, read, recorded

SCRIPTS: dict[str, Script] = {
    "chat": answers.chat(),
    "completions": answers.completion,
    "responses": answers.responses,
    "messages": answers.messages,
}
OPERATIONS = {"completions": "text_completion"}
FINISHES = {"chat": "stop", "completions": "length", "responses": "completed"}
TEXT = "".join(WORDS)


def check(row: Row, endpoint: str) -> None:
    """Check what a row of any endpoint holds."""
    sdk = CALLS[endpoint][0]
    expected = {
        "outcome": "success",
        "operation": OPERATIONS.get(endpoint, "chat"),
        "model": "tiny",
        "provider": sdk,
        "client": sdk,
        "finish_reason": FINISHES.get(endpoint, "end_turn"),
        "http_status": 200,
        "prompt_tokens": 10,
        "output_tokens": 5,
        "attempts": 1,
    }
    assert {name: getattr(row, name) for name in expected} == expected
    assert row.response_id is not None
    if endpoint != "messages":  # Anthropic's protocol has no place for the engine's figures
        queue, prefill = row.timeline.queue, row.timeline.prefill
        assert queue is not None
        assert prefill is not None
        assert (queue.ns, prefill.ns) == (1_500_000, 20_250_000)


def test_an_id_that_comes_late(mode: str, server: Server) -> None:
    """Azure's first chunk, about its filters, has an empty id: that of the response is noted."""
    filters = {**answers.delta(), "id": "", "choices": [], "prompt_filter_results": []}
    server.play(answers.events(filters, answers.delta("word "), answers.delta(finish="stop")))
    assert recorded(lambda: read(mode, server)).response_id == "chatcmpl-1"


@pytest.mark.parametrize("endpoint", CALLS)
def test_streamed(mode: str, server: Server, endpoint: str) -> None:
    """The chunks are the bare client's, and the row is right."""
    server.play(SCRIPTS[endpoint])
    bare = [chunk.model_dump() for chunk in read(mode, server, endpoint)]
    traced: list[Any] = []
    row = recorded(lambda: traced.extend(read(mode, server, endpoint)))
    assert [chunk.model_dump() for chunk in traced] == bare
    check(row, endpoint)
    thought = endpoint in {"responses", "messages"}
    assert row.stream
    assert row.chunks == len(WORDS) + thought
    assert (row.first_reasoning_ns is not None) == thought
    assert row.ttft_ns == (row.first_reasoning_ns if thought else row.first_text_ns)


@pytest.mark.parametrize("endpoint", CALLS)
def test_whole(mode: str, server: Server, endpoint: str) -> None:
    """A response in one piece makes a row without a TTFT, and is the bare client's."""
    server.play(SCRIPTS[endpoint])
    bare = answer(mode, server, endpoint).model_dump()
    traced: list[Any] = []
    row = recorded(lambda: traced.append(answer(mode, server, endpoint)))
    assert traced[0].model_dump() == bare
    check(row, endpoint)
    assert (row.stream, row.ttft_s, row.chunks) == (False, None, 0)


# --- the SDKs' own helpers -----------------------------------------------------------------------

HELPERS = {
    "chat": "chat.completions.stream",
    "responses": "responses.stream",
    "messages": "messages.stream",
}


def helped(mode: str, server: Server, endpoint: str, wrap: Callable[[Any], Any]) -> list[str]:
    """Read a stream through the SDK's `.stream()` helper; return its events' types."""
    sdk = CALLS[endpoint][0]

    def opened(made: Any) -> Any:
        _, call_options = method(made, endpoint)
        found = made
        for name in HELPERS[endpoint].split("."):
            found = getattr(found, name, None)
            if found is None:
                pytest.skip("this version has no such helper")
        return wrap(found)(**call_options)

    async def main() -> list[str]:
        async with client(mode, server, sdk) as made, opened(made) as stream:
            return [event.type async for event in stream]

    if mode == "async":
        return asyncio.run(main())
    with client(mode, server, sdk) as made, opened(made) as stream:
        return [event.type for event in stream]


@pytest.mark.parametrize("decorated", [False, True], ids=["bare", "decorated"])
@pytest.mark.parametrize("endpoint", HELPERS)
def test_stream_helpers(mode: str, server: Server, endpoint: str, decorated: bool) -> None:
    """`.stream()` makes the same row, alone or in a decorated function, and the same events."""
    server.play(SCRIPTS[endpoint])
    bare = helped(mode, server, endpoint, lambda stream: stream)
    wrap: Callable[[Any], Any] = llmtrace.trace if decorated else lambda stream: stream
    seen: list[str] = []
    row = recorded(lambda: seen.extend(helped(mode, server, endpoint, wrap)))
    assert seen == bare
    check(row, endpoint)
    assert row.chunks == len(WORDS) + (endpoint != "chat")


@pytest.mark.parametrize("endpoint", CALLS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_decorated_call(mode: str, server: Server, endpoint: str, stream: bool) -> None:
    """A call inside a decorated function is that function's row, whatever it hands on."""
    server.play(SCRIPTS[endpoint])
    sdk = CALLS[endpoint][0]

    @llmtrace.trace(route="inside", model="alias")
    def ask(made: Any) -> Any:
        create, call_options = method(made, endpoint)
        return create(**call_options, stream=stream)

    async def main() -> None:
        async with client(mode, server, sdk) as made:
            result = await ask(made)
            if stream:
                assert type(result).__name__ == "AsyncStream"
                async for _chunk in result:
                    pass

    def act() -> None:
        if mode == "async":
            asyncio.run(main())
            return
        with client(mode, server, sdk) as made:
            result = ask(made)
            if stream:
                assert type(result).__name__ == "Stream"
                for _chunk in result:
                    pass

    row = recorded(act)
    assert (row.outcome, row.route, row.model) == ("success", "inside", "alias")
    assert row.finish_reason == FINISHES.get(endpoint, "end_turn")
    assert row.stream == stream


@pytest.mark.parametrize("endpoint", CALLS)
def test_streams_of_clients_that_are_not_instrumented(
    mode: str, server: Server, endpoint: str
) -> None:
    """A decorated function, or `wrap`, finds the stream itself and reads it as what it is."""
    server.play(SCRIPTS[endpoint])
    sdk = CALLS[endpoint][0]

    @llmtrace.trace
    def ask(made: Any) -> Any:
        create, call_options = method(made, endpoint)
        return create(**call_options, stream=True)

    async def main(act: Callable[[Any], Any]) -> None:
        async with client(mode, server, sdk) as made:
            async for _chunk in await act(made):
                pass

    def run(act: Callable[[Any], Any]) -> None:
        if mode == "async":
            asyncio.run(main(act))
            return
        with client(mode, server, sdk) as made:
            for _chunk in act(made):
                pass

    def wrapped(made: Any) -> Any:
        create, call_options = method(made, endpoint)
        return llmtrace.wrap(create(**call_options, stream=True), route="wrapped")

    async def awrapped(made: Any) -> Any:
        create, call_options = method(made, endpoint)
        return llmtrace.wrap(await create(**call_options, stream=True), route="wrapped")

    with capture(instrument=()) as rows:
        run(ask)
        run(wrapped if mode == "sync" else awrapped)
    for row in rows:
        assert (row.outcome, row.chunks) == ("success", len(WORDS) + (endpoint in SCRIPTS_THINK))
        assert row.finish_reason == FINISHES.get(endpoint, "end_turn")
    assert [row.route for row in rows] == [None, "wrapped"]


SCRIPTS_THINK = ("responses", "messages")


# --- raw responses -------------------------------------------------------------------------------


def raw_method(made: Any, endpoint: str, how: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return an endpoint's `with_raw_response.create` or `with_streaming_response.create`."""
    create, call_options = method(made, endpoint)
    return getattr(create.__self__, how).create, call_options


@pytest.mark.parametrize("endpoint", CALLS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_with_raw_response(mode: str, server: Server, endpoint: str, stream: bool) -> None:
    """What a raw response is parsed into is timed, headers and status are the application's."""
    server.play(SCRIPTS[endpoint])
    sdk = CALLS[endpoint][0]

    async def main() -> None:
        async with client(mode, server, sdk) as made:
            create, call_options = raw_method(made, endpoint, "with_raw_response")
            raw = await create(**call_options, stream=stream)
            assert raw.http_response.status_code == 200
            parsed = raw.parse()
            if inspect.isawaitable(parsed):  # in newer versions of Anthropic's
                parsed = await parsed
            if stream:
                async for _chunk in parsed:
                    pass

    def act() -> None:
        if mode == "async":
            asyncio.run(main())
            return
        with client(mode, server, sdk) as made:
            create, call_options = raw_method(made, endpoint, "with_raw_response")
            raw = create(**call_options, stream=stream)
            assert raw.http_response.status_code == 200
            assert raw.headers["content-type"]
            parsed = raw.parse()
            assert parsed is raw.parse()
            if stream:
                for _chunk in parsed:
                    pass

    row = recorded(act)
    check(row, endpoint)
    assert row.stream == stream
    assert row.chunks == (len(WORDS) + (endpoint in SCRIPTS_THINK) if stream else 0)


@pytest.mark.parametrize("endpoint", CALLS)
def test_with_streaming_response_lines(mode: str, server: Server, endpoint: str) -> None:
    """A body read as lines is the bare client's to the byte, and timed by its pieces."""
    server.play(SCRIPTS[endpoint])
    sdk = CALLS[endpoint][0]

    def lines() -> list[str]:
        async def main() -> list[str]:
            async with client(mode, server, sdk) as made:
                create, call_options = raw_method(made, endpoint, "with_streaming_response")
                async with create(**call_options, stream=True) as response:
                    return [line async for line in response.iter_lines()]

        if mode == "async":
            return asyncio.run(main())
        with client(mode, server, sdk) as made:
            create, call_options = raw_method(made, endpoint, "with_streaming_response")
            with create(**call_options, stream=True) as response:
                return list(response.iter_lines())

    bare = lines()
    seen: list[str] = []
    row = recorded(lambda: seen.extend(lines()))
    assert seen == bare
    assert row.outcome == "success"
    assert row.chunks > 1
    assert row.ttft_s is not None


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("endpoint", CALLS)
def test_with_streaming_response_parsed(
    mode: str, server: Server, endpoint: str, stream: bool
) -> None:
    """A streaming response that is parsed is timed as what it is parsed into."""
    server.play(SCRIPTS[endpoint])
    sdk = CALLS[endpoint][0]

    async def main() -> None:
        async with client(mode, server, sdk) as made:
            create, call_options = raw_method(made, endpoint, "with_streaming_response")
            async with create(**call_options, stream=stream) as response:
                parsed = await response.parse()
                if stream:
                    async for _chunk in parsed:
                        pass

    def act() -> None:
        if mode == "async":
            asyncio.run(main())
            return
        with client(mode, server, sdk) as made:
            create, call_options = raw_method(made, endpoint, "with_streaming_response")
            with create(**call_options, stream=stream) as response:
                parsed = response.parse()
                if stream:
                    for _chunk in parsed:
                        pass

    row = recorded(act)
    assert (row.outcome, row.stream) == ("success", stream)
    assert row.finish_reason == FINISHES.get(endpoint, "end_turn")
    assert row.chunks == (len(WORDS) + (endpoint in SCRIPTS_THINK) if stream else 0)


def test_with_streaming_response_left_early(mode: str, server: Server) -> None:
    """Leaving the block without reading ends the row."""

    async def main() -> None:
        async with client(mode, server) as made:
            create, call_options = raw_method(made, "chat", "with_streaming_response")
            async with create(**call_options, stream=True):
                pass

    def act() -> None:
        if mode == "async":
            asyncio.run(main())
            return
        with client(mode, server) as made:
            create, call_options = raw_method(made, "chat", "with_streaming_response")
            with create(**call_options, stream=True):
                pass

    row = recorded(act)
    assert (row.outcome, row.chunks) == ("cancelled", 0)


def test_a_dropped_raw_response_closes_its_connection(server: Server) -> None:
    """Nothing of ours keeps a dropped raw response alive."""
    with capture(), client("sync", server) as made:
        gc.disable()
        try:
            raw = raw_method(made, "chat", "with_raw_response")
            response = raw[0](**raw[1], stream=True)
            alive = weakref.ref(response)
            del response
            assert alive() is None
        finally:
            gc.enable()


# --- kinds of content ----------------------------------------------------------------------------


def test_tool_calls(mode: str, server: Server) -> None:
    """Arguments of a tool call are content, its name is not; the first piece of them is marked."""
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}
    piece = {"index": 0, "function": {"arguments": "{}"}}
    server.play(
        answers.events(
            answers.delta("", role="assistant"),
            answers.delta(tool_calls=[call]),
            answers.delta(tool_calls=[piece]),
            answers.delta(finish="tool_calls"),
        )
    )
    row = recorded(lambda: read(mode, server))
    assert (row.finish_reason, row.chunks) == ("tool_calls", 1)
    assert row.ttft_ns == row.first_tool_call_ns
    assert row.first_text_ns is None


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning(mode: str, server: Server, key: str) -> None:
    """Reasoning is content by either of its names, and distinguished from text."""
    server.play(
        answers.events(
            answers.delta("", role="assistant"),
            answers.delta(**{key: "hm"}),
            answers.delta("so"),
            answers.delta(finish="stop"),
        )
    )
    row = recorded(lambda: read(mode, server))
    assert row.chunks == 2
    assert row.ttft_ns == row.first_reasoning_ns
    assert row.first_text_ns is not None
    assert row.first_reasoning_ns is not None
    assert row.first_text_ns > row.first_reasoning_ns


def test_refusal(mode: str, server: Server) -> None:
    """A refusal is content, too."""
    server.play(answers.events(answers.delta(refusal="no"), answers.delta(finish="stop")))
    row = recorded(lambda: read(mode, server))
    assert row.chunks == 1
    assert row.first_text_ns is None


def test_several_choices(mode: str, server: Server) -> None:
    """Text in any of several choices is content."""
    two = answers.delta("")
    two["choices"] += [{"index": 1, "delta": {"content": "x"}, "finish_reason": None}]
    server.play(answers.events(two, answers.delta(finish="stop")))
    assert recorded(lambda: read(mode, server)).chunks == 1


def test_failed_response(mode: str, server: Server) -> None:
    """A response that ends as failed is an error, though its stream ends well."""
    error = {"code": "server_error", "message": "oops"}
    failed = answers.response_object("failed", error=error)
    server.play(
        answers.events({"type": "response.failed", "sequence_number": 0, "response": failed})
    )
    row = recorded(lambda: read(mode, server, "responses"))
    assert (row.outcome, row.error_type) == ("error", "server_error")


def test_other_endpoints_are_left_alone(mode: str, server: Server) -> None:
    """Calls to no model make no row."""

    def embeddings(_request: Any, answer: Any) -> None:
        data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        answer.whole({"object": "list", "data": data, "model": "tiny", "usage": usage})

    async def main() -> None:
        async with client(mode, server) as made:
            await made.embeddings.create(model="tiny", input="x", encoding_format="float")

    server.play(embeddings)
    with capture() as rows:
        if mode == "async":
            asyncio.run(main())
        else:
            with client(mode, server) as made:
                made.embeddings.create(model="tiny", input="x", encoding_format="float")
    assert rows == []
    assert "traceparent" not in server.requests[0].headers


def test_whole_answer_with_tool_calls(mode: str, server: Server) -> None:
    """The tools a response calls are counted."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call, {**call, "id": "d"}]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    body = {**answers.delta(), "object": "chat.completion", "choices": [choice]}
    server.play(lambda _, reply: reply.whole(body))
    row = recorded(lambda: answer(mode, server))
    assert (row.finish_reason, row.tool_calls) == ("tool_calls", 2)


def test_messages_that_use_tools(mode: str, server: Server) -> None:
    """The input of a tool is content."""
    usage = {"input_tokens": 4, "output_tokens": 1}
    message = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "tiny", "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    tool = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    deltas = [{"type": "input_json_delta", "partial_json": part} for part in ("", "{", "}")]
    stop = {"stop_reason": "tool_use", "stop_sequence": None}
    stream: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": tool},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_delta", "index": 0,
         "delta": {"type": "signature_delta", "signature": "x"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]  # fmt: skip

    def script(_request: Any, reply: Any) -> None:
        for event in stream:
            reply.event(event, name=event["type"])

    server.play(script)
    row = recorded(lambda: read(mode, server, "messages"))
    assert (row.outcome, row.finish_reason, row.chunks) == ("success", "tool_use", 2)
    assert row.ttft_ns == row.first_tool_call_ns
    assert (row.prompt_tokens, row.output_tokens) == (4, 5)


def test_incomplete_response(mode: str, server: Server) -> None:
    """A response that stops early says why."""
    incomplete = answers.response_object(
        "incomplete", incomplete_details={"reason": "max_output_tokens"}
    )
    stream = {"type": "response.incomplete", "sequence_number": 0, "response": incomplete}
    server.play(answers.events(stream))
    row = recorded(lambda: read(mode, server, "responses"))
    assert row.finish_reason == "max_output_tokens"


def test_what_vllm_tells_of_itself(mode: str, server: Server) -> None:
    """Its version, and what its speculative decoding did."""
    speculative = {"num_draft_tokens": 8, "num_accepted_draft_tokens": 5}
    metrics = {**answers.METRICS, "speculative_decoding": speculative}
    mark = {"system_fingerprint": "vllm-0.32.0-abc"}
    server.play(
        answers.events(
            answers.delta("x") | mark,
            answers.delta(finish="stop") | mark,
            answers.usage_chunk(metrics=metrics) | mark,
        )
    )
    row = recorded(lambda: read(mode, server))
    assert (row.provider, row.spec_drafted, row.spec_accepted) == ("vllm", 8, 5)
    assert row.attributes["llmtrace.engine.version"] == "0.32.0-abc"


def test_a_streaming_response_that_cannot_be_parsed(mode: str, server: Server) -> None:
    """What parsing raises is the application's, and the row's."""

    def script(_request: Any, reply: Any) -> None:
        reply.head(headers={"content-type": "application/json"})
        reply.data(b"{not json")

    async def main() -> None:
        async with client(mode, server) as made:
            create, call_options = raw_method(made, "chat", "with_streaming_response")
            async with create(**call_options) as response:
                await response.parse()

    def act() -> None:
        if mode == "async":
            asyncio.run(main())
            return
        with client(mode, server) as made:
            create, call_options = raw_method(made, "chat", "with_streaming_response")
            with create(**call_options) as response:
                response.parse()

    server.play(script)
    bare = repr(raised_by(act))
    seen: list[str] = []
    row = recorded(lambda: seen.append(repr(raised_by(act))))
    assert seen == [bare]
    assert row.outcome == "error"
