"""llmtrace gets the usage chunk it needs without a change for the application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

import llmtrace
from llmtrace.testing import capture
from tests.support.sse_server import Answer, Request, Script, Server, serve

from . import answers
from .reading import HI, raised_by, read, recorded


@pytest.fixture
def strict() -> Iterator[Server]:
    """Serve on a port at which no request was rejected yet."""
    with serve(answers.chat()) as server:
        yield server


def with_usage(chunks: list[Any]) -> int:
    """Count the chunks that carry usage."""
    return sum(chunk.usage is not None for chunk in chunks)


def test_asked_for_and_hidden(mode: str, server: Server) -> None:
    """The usage is requested and noted, and its chunk hidden from the consumer."""
    chunks: list[Any] = []
    row = recorded(lambda: chunks.extend(read(mode, server)))
    assert server.requests[0].body["stream_options"] == {"include_usage": True}
    assert with_usage(chunks) == 0
    assert (row.prompt_tokens, row.output_tokens) == (10, 5)


def test_kept_where_the_caller_asked(mode: str, server: Server) -> None:
    """An application that requests the chunk gets it."""
    options = {"include_usage": True}
    chunks: list[Any] = []
    row = recorded(lambda: chunks.extend(read(mode, server, stream_options=options)))
    assert with_usage(chunks) == 1
    assert row.output_tokens == 5


def test_left_out_where_the_caller_declined(mode: str, server: Server) -> None:
    """An application that opts out is not overruled."""
    options = {"include_usage": False}
    row = recorded(lambda: read(mode, server, stream_options=options))
    assert server.requests[0].body["stream_options"] == options
    assert row.output_tokens is None


def test_other_stream_options_stay(mode: str, server: Server) -> None:
    """The application's other stream options are sent, too; its own mapping is not touched."""
    options = {"include_obfuscation": False}
    recorded(lambda: read(mode, server, stream_options=options))
    assert server.requests[0].body["stream_options"] == {**options, "include_usage": True}
    assert options == {"include_obfuscation": False}


def test_not_requested_if_disabled(mode: str, server: Server) -> None:
    """`ask_usage=False` leaves requests as they are."""
    row = recorded(lambda: read(mode, server), ask_usage=False)
    assert "stream_options" not in server.requests[0].body
    assert row.output_tokens is None


REJECTIONS = {
    "named": (400, "Unrecognized request argument supplied: stream_options"),
    "other words": (400, "Invalid request body"),
    "forbidden": (403, "policy"),
    "extra field": (422, "extra fields not permitted"),
    "broken by it": (500, "unexpected field"),
}


def rejecting(status: int, message: str) -> Script:
    """Return the script of a server that rejects `stream_options`."""

    def script(request: Request, answer: Answer) -> None:
        with_usage = "stream_options" in request.body
        (answers.error(status, message) if with_usage else answers.chat())(request, answer)

    return script


@pytest.mark.parametrize("rejection", REJECTIONS)
def test_a_server_that_rejects(mode: str, strict: Server, rejection: str) -> None:
    """It gets the application's own request at once, and never an altered one."""
    strict.play(rejecting(*REJECTIONS[rejection]))
    row = recorded(lambda: read(mode, strict))
    assert (row.outcome, row.attempts, row.http_status) == ("success", 2, 200)
    assert row.stages.gateway is not None
    row = recorded(lambda: read(mode, strict))
    assert (row.outcome, row.attempts) == ("success", 1)
    with_usage = ["stream_options" in request.body for request in strict.requests]
    assert with_usage == [True, False, False]


def test_rejected_after_it_was_taken(mode: str, strict: Server) -> None:
    """A server may take the option with one request, and reject it with another."""
    assert recorded(lambda: read(mode, strict)).output_tokens == 5
    strict.play(rejecting(400, "Validation error at #/stream_options"))
    assert recorded(lambda: read(mode, strict)).outcome == "success"
    strict.play(rejecting(500, "unexpected field"))
    assert recorded(lambda: read(mode, strict, model="another")).outcome == "success"


def test_rejected_for_another_reason(mode: str, strict: Server) -> None:
    """The application gets the error of its own request."""
    openai = pytest.importorskip("openai")
    strict.play(answers.error(400, "temperature is out of range"))

    def act() -> None:
        with pytest.raises(openai.BadRequestError, match="temperature"):
            read(mode, strict)

    row = recorded(act)
    assert (row.outcome, row.http_status, row.attempts) == ("error", 400, 2)
    assert ["stream_options" in request.body for request in strict.requests] == [True, False]


@pytest.mark.parametrize("status", [400, 429, 503])
def test_a_server_that_takes_it_is_not_asked_twice(mode: str, strict: Server, status: int) -> None:
    """Once it took the option, what is wrong for a while or again is not sent again."""
    recorded(lambda: read(mode, strict))
    strict.play(answers.error(status, code="some_reason"))
    attempts = [recorded(lambda: raised_by(lambda: read(mode, strict))).attempts for _ in range(2)]
    assert attempts == [2 if status == 400 else 1, 1]
    strict.play(answers.chat())
    assert recorded(lambda: read(mode, strict)).output_tokens == 5


@pytest.mark.parametrize("status", [408, 409, 425, 429, 502, 503, 504, 529])
def test_a_busy_server_is_not_asked_twice(mode: str, strict: Server, status: int) -> None:
    """What is wrong for a while is not the option's fault, and is not sent again at once."""
    strict.play(answers.error(status))
    attempts = [recorded(lambda: raised_by(lambda: read(mode, strict))).attempts for _ in range(2)]
    assert attempts == [1, 1]
    strict.play(answers.chat())
    assert recorded(lambda: read(mode, strict)).output_tokens == 5


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize("code", [None, "some_reason"])
def test_a_server_that_goes_on_failing_is_asked_twice_once(
    mode: str, strict: Server, status: int, code: str | None
) -> None:
    """After both failed, requests are as they were written until one is accepted."""
    strict.play(answers.error(status, code=code))
    for expected in (2, 1, 1):
        assert recorded(lambda: raised_by(lambda: read(mode, strict))).attempts == expected
    with_usage = ["stream_options" in request.body for request in strict.requests]
    assert with_usage == [True, False, False, False]
    strict.play(answers.chat())
    tokens = [recorded(lambda: read(mode, strict)).output_tokens for _ in range(2)]
    assert tokens == [None, 5]


def test_one_request_more_and_no_second_round_of_retries(mode: str, strict: Server) -> None:
    """What the SDK has retried as often as it may is sent unaltered once."""
    strict.play(answers.error(500, headers={"retry-after-ms": "1"}))
    row = recorded(lambda: raised_by(lambda: read(mode, strict, options={"max_retries": 2})))
    assert (row.outcome, row.attempts) == ("error", 4)
    with_usage = ["stream_options" in request.body for request in strict.requests]
    assert with_usage == [True, True, True, False]


def test_a_host_that_is_known_to_reject(mode: str) -> None:
    """It gets what the application wrote."""
    openai = pytest.importorskip("openai")
    library: Any = import_module(openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0])
    bodies: list[dict[str, Any]] = []

    def answer(request: Any) -> Any:
        bodies.append(json.loads(request.content))
        return library.Response(200, headers={"content-type": "text/event-stream"}, content=b"")

    kinds = {"sync": (openai.OpenAI, library.Client)}
    made, http = kinds.get(mode, (openai.AsyncOpenAI, library.AsyncClient))
    create = made(
        base_url="https://api.mistral.ai/v1",
        api_key="none",
        http_client=http(transport=library.MockTransport(answer)),
    ).chat.completions.create
    with capture():
        if mode == "sync":
            create(model="m", messages=HI, stream=True)
        else:
            asyncio.run(create(model="m", messages=HI, stream=True))
    assert ["stream_options" in body for body in bodies] == [False]


def test_rejected_twice(mode: str, strict: Server) -> None:
    """What the second try raises is what the bare client would have raised, and nothing more."""
    openai = pytest.importorskip("openai")

    def reject(request: Request, answer: Answer) -> None:
        with_usage = "stream_options" in request.body
        answers.error(400, "no stream_options" if with_usage else "no model")(request, answer)

    strict.play(reject)

    def act() -> None:
        with pytest.raises(openai.BadRequestError, match="no model") as caught:
            read(mode, strict)
        before: BaseException | None = caught.value
        while (before := before.__context__) is not None:
            assert not isinstance(before, openai.OpenAIError)

    assert recorded(act).attempts == 2


def test_usage_on_every_chunk(mode: str, server: Server) -> None:
    """Chunks that carry usage and text are the application's."""
    chunk = {**answers.delta("text"), "usage": answers.USAGE}
    server.play(answers.events(chunk, answers.delta(finish="stop")))
    chunks: list[Any] = []
    row = recorded(lambda: chunks.extend(read(mode, server)))
    assert len(chunks) == 2
    assert (row.chunks, row.output_tokens) == (1, 5)


def test_hidden_from_a_decorated_function(mode: str, server: Server) -> None:
    """The chunk is hidden inside decorated functions as well."""
    seen: list[Any] = []

    @llmtrace.trace
    def ask() -> None:
        seen.extend(read(mode, server))

    with capture() as rows:
        ask()
    assert with_usage(seen) == 0
    assert rows[0].output_tokens == 5


def test_an_error_that_repeats_the_request_is_no_rejection(mode: str, strict: Server) -> None:
    """A server that quotes the request has other reasons; usage is requested again later."""

    def quoting(request: Request, answer: Answer) -> None:
        answers.error(400, f"too long: {request.body}")(request, answer)

    strict.play(quoting)
    assert recorded(lambda: raised_by(lambda: read(mode, strict))).outcome == "error"
    strict.play(answers.chat())
    recorded(lambda: read(mode, strict))
    assert recorded(lambda: read(mode, strict)).output_tokens == 5
