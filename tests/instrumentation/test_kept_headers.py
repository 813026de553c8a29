"""A provider's headers are kept on the row, for every client, response and outcome."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llmtrace.core.row import Row, from_dict
from llmtrace.semconv.convert import from_attributes, to_attributes
from llmtrace.testing import capture
from tests.support.sse_server import Server

from . import answers
from .raw import BODY, CLIENTS, ask, url
from .reading import answer, raised_by, read

SAID = {
    "x-request-id": "req_9",
    "Openai-Processing-Ms": "312",
    "X-RateLimit-Remaining-Requests": "0",
    "anthropic-ratelimit-tokens-reset": "2026-11-21T18:00:00Z",
    "retry-after": "7",
    "cf-ray": "9a1b-FRA",
    "set-cookie": "session=secret",
    "openai-organization": "org-secret",
}
KEPT = {
    "x-request-id": "req_9",
    "openai-processing-ms": "312",
    "x-ratelimit-remaining-requests": "0",
    "anthropic-ratelimit-tokens-reset": "2026-11-21T18:00:00Z",
    "retry-after": "7",
    "cf-ray": "9a1b-FRA",
}


def recorded(act: Callable[[], object]) -> Row:
    """Do something that makes one row, and return it as it comes back from everywhere."""
    with capture(instrument=("openai", "anthropic", "httpx", "httpx2", "aiohttp")) as rows:
        act()
    [row] = rows
    assert row.stages.total == row.e2e_ns
    assert from_dict(row.as_dict()) == row
    again = from_attributes(
        to_attributes(row), start=row.start, trace_id=row.trace_id, span_id=row.span_id
    )
    assert again.response_headers == row.response_headers
    return row


@pytest.mark.parametrize("act", [read, answer], ids=["stream", "whole"])
@pytest.mark.parametrize("endpoint", ["chat", "messages"])
def test_of_an_sdks_answer(mode: str, server: Server, endpoint: str, act: Callable) -> None:
    """OpenAI's and Anthropic's SDKs, streamed and whole."""
    script = {"chat": answers.chat(headers=SAID), "messages": answers.messages}[endpoint]
    server.play(script)
    row = recorded(lambda: act(mode, server, endpoint))

    assert row.outcome == "success"
    assert row.response_headers == (KEPT if endpoint == "chat" else {})


@pytest.mark.parametrize("status", [429, 503])
def test_of_an_error(mode: str, server: Server, status: int) -> None:
    """A refusal says what limit was hit, and when to come again."""
    server.play(answers.error(status, headers=SAID))
    row = recorded(lambda: raised_by(lambda: read(mode, server, options={"max_retries": 0})))

    assert (row.outcome, row.http_status, row.response_headers) == ("error", status, KEPT)
    assert row.stages.gateway is not None


def test_of_several_answers_the_last_one(mode: str, server: Server) -> None:
    """What was refused first and answered then has the evidence of the response."""
    refused = {"retry-after": "0.01", "x-ratelimit-remaining-requests": "0"}
    server.play(
        answers.error(429, headers=refused),
        answers.chat(headers={"x-ratelimit-remaining-requests": "9"}),
    )
    row = recorded(lambda: read(mode, server, options={"max_retries": 1}))

    assert (row.attempts, row.response_headers) == (2, {"x-ratelimit-remaining-requests": "9"})


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_without_an_sdk(client: str, stream: bool, server: Server) -> None:
    """Over httpx, httpx2 and aiohttp themselves."""
    server.play(answers.chat(headers=SAID))
    body = {**BODY, "stream": stream}
    row = recorded(lambda: ask(*client.split("-"), url(server), body=body))

    assert (row.outcome, row.response_headers) == ("success", KEPT)


@pytest.mark.parametrize("client", CLIENTS)
def test_of_an_error_without_an_sdk(client: str, server: Server) -> None:
    """Whether an SDK raises or the application looks at the status itself."""
    server.play(answers.error(429, headers=SAID))
    row = recorded(lambda: ask(*client.split("-"), url(server)))

    assert (row.http_status, row.response_headers) == (429, KEPT)
