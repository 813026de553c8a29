"""The application's own objects come through untouched; requests to no model are no rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import llmtrace
from llmtrace.core.attempt_clock import LiveAttempt
from llmtrace.core.failopen import internal_errors
from llmtrace.instrumentation.http import phases
from llmtrace.testing import capture
from tests.support.sse_server import Server

from .answers import chat
from .reading import client

REQUEST: Any = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hello"}],
    "stream": True,
}


def test_a_usage_chunk_asked_for_in_the_extra_body_stays(server: Server) -> None:
    """However the application asks for it, the chunk is the application's."""
    server.play(chat())
    extra = {"stream_options": {"include_usage": True}}
    with capture(instrument=["openai"]) as rows, client("sync", server) as made:
        chunks = list(made.chat.completions.create(**REQUEST, extra_body=extra))

    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] != []
    assert rows[0].output_tokens is not None


def test_a_message_of_a_thread_is_no_request_to_a_model(server: Server) -> None:
    """OpenAI's `/threads/…/messages` writes to a database: no row, and no error of ours."""
    server.play(chat())
    with capture(instrument=["openai"]) as rows, client("sync", server) as made:
        made.post("/threads/t/messages", body={}, cast_to=str)

    assert rows == []
    assert internal_errors() == {}


def test_asking_a_proxy_for_a_tunnel_is_not_sending_the_request() -> None:
    """Behind an HTTPS proxy the handshake after CONNECT is TLS, and the send comes after it."""

    class Request:
        def __init__(self, method: bytes) -> None:
            self.method = method

    attempt = LiveAttempt(started=0)
    now = 0

    def clock() -> int:
        nonlocal now
        now += 10
        return now

    note = phases.noting(attempt, clock, lambda: None)
    connect, post = {"request": Request(b"CONNECT")}, {"request": Request(b"POST")}
    for name, info in (
        ("connection.connect_tcp.started", {}),
        ("connection.connect_tcp.complete", {}),
        ("http11.send_request_headers.started", connect),
        ("http11.send_request_body.complete", {}),
        ("http_proxy.start_tls.started", {}),
        ("http_proxy.start_tls.complete", {}),
        ("http11.send_request_headers.started", post),
        ("http11.send_request_body.complete", {}),
    ):
        if name == "http_proxy.start_tls.started":
            assert not attempt.sent
        note(name, info)

    assert (attempt.tls, attempt.send, attempt.sent) == (10, 10, True)


class Lines:
    """A response whose attributes say how it is to be read, as `requests` has them."""

    def __init__(self) -> None:
        self.encoding: str | None = None

    def __iter__(self) -> Iterator[str | bytes]:
        return self

    def __next__(self) -> str | bytes:
        return b"x" if self.encoding is None else "x"


def test_what_is_set_on_a_stand_in_is_set_on_the_stream() -> None:
    """An attribute the application sets changes what it reads, as it would without llmtrace."""
    with capture():
        lines = llmtrace.wrap(Lines())
        lines.encoding = "utf-8"

        assert next(lines) == "x"
