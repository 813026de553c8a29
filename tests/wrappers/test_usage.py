"""Does llmtrace get the usage chunk it needs without the caller noticing?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import llmtrace
from llmtrace.testing import capture
from tests.sse_server import Answer, Request, Server, serve

from . import answers
from .reading import raised_by, read, recorded


@pytest.fixture
def strict() -> Iterator[Server]:
    """Serve on a port nobody has been refused at yet."""
    with serve(answers.chat()) as server:
        yield server


def with_usage(chunks: list[Any]) -> int:
    """Count the chunks that carry usage."""
    return sum(chunk.usage is not None for chunk in chunks)


def test_asked_for_and_hidden(mode: str, server: Server) -> None:
    """The usage is asked for and noted, and its chunk kept from the caller."""
    chunks: list[Any] = []
    row = recorded(lambda: chunks.extend(read(mode, server)))
    assert server.requests[0].body["stream_options"] == {"include_usage": True}
    assert with_usage(chunks) == 0
    assert (row.prompt_tokens, row.output_tokens) == (10, 5)


def test_kept_where_the_caller_asked(mode: str, server: Server) -> None:
    """A caller who asked gets the chunk."""
    options = {"include_usage": True}
    chunks: list[Any] = []
    row = recorded(lambda: chunks.extend(read(mode, server, stream_options=options)))
    assert with_usage(chunks) == 1
    assert row.output_tokens == 5


def test_left_out_where_the_caller_declined(mode: str, server: Server) -> None:
    """A caller who said no is not overruled."""
    options = {"include_usage": False}
    row = recorded(lambda: read(mode, server, stream_options=options))
    assert server.requests[0].body["stream_options"] == options
    assert row.output_tokens is None


def test_other_stream_options_stay(mode: str, server: Server) -> None:
    """What else the caller asked of the stream goes out, too; its own mapping is not touched."""
    options = {"include_obfuscation": False}
    recorded(lambda: read(mode, server, stream_options=options))
    assert server.requests[0].body["stream_options"] == {**options, "include_usage": True}
    assert options == {"include_obfuscation": False}


def test_not_asked_if_told_so(mode: str, server: Server) -> None:
    """`ask_usage=False` leaves requests as they are."""
    row = recorded(lambda: read(mode, server), ask_usage=False)
    assert "stream_options" not in server.requests[0].body
    assert row.output_tokens is None


@pytest.mark.parametrize("status", [400, 422])
def test_a_server_that_refuses(mode: str, strict: Server, status: int) -> None:
    """It is asked again without, at once, and never again with."""

    def refuse(request: Request, answer: Answer) -> None:
        if "stream_options" in request.body:
            message = "Unrecognized request argument supplied: stream_options"
            answers.error(status, message)(request, answer)
        else:
            answers.chat()(request, answer)

    strict.play(refuse)
    row = recorded(lambda: read(mode, strict))
    assert (row.outcome, row.attempts, row.http_status) == ("success", 2, 200)
    assert row.stages.gateway is not None
    row = recorded(lambda: read(mode, strict))
    assert (row.outcome, row.attempts) == ("success", 1)
    asked = ["stream_options" in request.body for request in strict.requests]
    assert asked == [True, False, False]


def test_refused_for_another_reason(mode: str, strict: Server) -> None:
    """A refusal that has nothing to do with it is the caller's, and not repeated."""
    openai = pytest.importorskip("openai")
    strict.play(answers.error(400, "temperature is out of range"))

    def act() -> None:
        with pytest.raises(openai.BadRequestError, match="temperature"):
            read(mode, strict)

    row = recorded(act)
    assert (row.outcome, row.http_status, len(strict.requests)) == ("error", 400, 1)


def test_refused_twice(mode: str, strict: Server) -> None:
    """What the second try raises is what the bare client would have raised, and nothing more."""
    openai = pytest.importorskip("openai")

    def refuse(request: Request, answer: Answer) -> None:
        asked = "stream_options" in request.body
        answers.error(400, "no stream_options" if asked else "no model")(request, answer)

    strict.play(refuse)

    def act() -> None:
        with pytest.raises(openai.BadRequestError, match="no model") as caught:
            read(mode, strict)
        before: BaseException | None = caught.value
        while (before := before.__context__) is not None:
            assert not isinstance(before, openai.OpenAIError)

    assert recorded(act).attempts == 2


def test_usage_on_every_chunk(mode: str, server: Server) -> None:
    """Chunks that carry usage and text are the caller's."""
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


def test_an_error_that_repeats_the_request_is_no_refusal(mode: str, strict: Server) -> None:
    """A server that quotes what it was sent has other reasons, and is asked for usage again."""

    def quoting(request: Request, answer: Answer) -> None:
        answers.error(400, f"too long: {request.body}")(request, answer)

    strict.play(quoting)
    assert recorded(lambda: raised_by(lambda: read(mode, strict))).outcome == "error"
    strict.play(answers.chat())
    assert recorded(lambda: read(mode, strict)).output_tokens == 5
