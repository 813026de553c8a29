"""Is a response of `requests` that a decorated function returns timed, however it is read?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import requests

import llmtrace
from llmtrace.testing import capture
from tests.support.sse_server import Server
from tests.support.taking_time import spend

from . import answers
from .raw import BODY, url

WAYS: dict[str, Callable[[Any], Any]] = {
    "lines": lambda response: list(response.iter_lines()),
    "bytes": lambda response: list(response.iter_content()),
    "pieces": lambda response: list(response.iter_content(64)),
    "iterated": list,
    "content": lambda response: response.content,
}


def sent(server: Server, *, stream: bool) -> Any:
    """Send a request and return its response, with the body still to come if it is a stream."""
    return requests.post(url(server), json={**BODY, "stream": stream}, stream=stream, timeout=9)


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_is_timed_in_every_way_of_reading(server: Server, way: str) -> None:
    """The response stays what it is; its row has what the events report."""
    server.play(answers.chat())
    plain = WAYS[way](sent(server, stream=True))
    with capture(instrument=()) as rows:
        response = llmtrace.trace(sent)(server, stream=True)
        assert isinstance(response, requests.Response)
        assert rows == []
        assert WAYS[way](response) == plain
    [row] = rows
    assert (row.outcome, row.finish_reason, row.chunks) == ("success", "stop", 5)
    assert row.ttft_s is not None


def test_a_stream_that_is_left_is_cancelled(server: Server) -> None:
    """By closing it, or its block; and a wrapped one too."""
    server.play(answers.chat())
    with capture(instrument=()) as rows:
        with llmtrace.trace(sent)(server, stream=True) as response:
            next(response.iter_lines())
        llmtrace.wrap(sent(server, stream=True)).close()
    assert [row.outcome for row in rows] == ["cancelled", "cancelled"]


def test_a_whole_response_ends_the_row_and_is_read(server: Server) -> None:
    """What the caller does with it later is no time of the request."""
    server.play(answers.completion)
    with capture(instrument=()) as rows:
        response = llmtrace.trace(sent)(server, stream=False)
        [row] = rows  # before the caller uses it
        response.json()
    assert (row.outcome, row.finish_reason, row.output_tokens) == ("success", "length", 5)
    with capture(instrument=()) as rows:
        whole = sent(server, stream=False)
        assert llmtrace.wrap(whole) is whole
    assert [row.output_tokens for row in rows] == [None]


def test_a_rejection_is_an_error(server: Server) -> None:
    """Although `requests` raises nothing unless it is asked to."""
    server.play(answers.error(429, code="rate_limit_exceeded"))
    with capture(instrument=()) as rows:
        llmtrace.trace(sent)(server, stream=False)
    assert [(row.outcome, row.error_type) for row in rows] == [("error", "rate_limit_exceeded")]


def test_a_whole_body_read_as_a_stream_is_read_for_what_it_reports(server: Server) -> None:
    """As a unary response is; its first content is not known."""
    server.play(answers.completion)
    with capture(instrument=()) as rows:
        body = {**BODY, "stream": False}
        response = llmtrace.trace(requests.post)(url(server), json=body, stream=True, timeout=9)
        spend(0.1)
        response.json()
    [row] = rows
    assert (row.outcome, row.output_tokens, row.ttft_s) == ("success", 5, None)
    assert row.e2e_s >= 0.1


def test_a_whole_body_may_be_read_as_text(server: Server) -> None:
    """Piece by piece, decoded by `requests`: it reports the same."""
    server.play(answers.completion)
    body = {**BODY, "stream": False}
    with capture(instrument=()) as rows:
        response = llmtrace.trace(requests.post)(url(server), json=body, stream=True, timeout=9)
        response.encoding = "utf-8"
        assert "".join(response.iter_content(1, decode_unicode=True)).startswith("{")
    assert [(row.outcome, row.output_tokens) for row in rows] == [("success", 5)]
