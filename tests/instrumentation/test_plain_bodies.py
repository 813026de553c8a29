"""Are bodies timed that a decorated function returns from libraries without an instrumentation?"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sys
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import requests
import urllib3

import llmtrace
from llmtrace.testing import capture
from tests.support.sse_server import Server

from . import answers
from .raw import BODY, url

POOL = urllib3.PoolManager()
WAIT_S = 0.1  # for the first content


def opened(server: Server, *, stream: bool) -> Any:
    """Send a request by the standard library."""
    body = json.dumps({**BODY, "stream": stream}).encode()
    request = urllib.request.Request(url(server), body, {"content-type": "application/json"})
    return urllib.request.urlopen(request, timeout=9)


def pooled(server: Server, *, stream: bool) -> Any:
    """Send a request by urllib3, with the body still to come."""
    body = {**BODY, "stream": stream}
    return POOL.request("POST", url(server), json=body, preload_content=False)


def raw(server: Server, *, stream: bool) -> Any:
    """Send a request by `requests`, and take what is below its response."""
    body = {**BODY, "stream": stream}
    return requests.post(url(server), json=body, stream=True, timeout=9).raw


def read_into(body: Any) -> bytes:
    """Read pieces into a buffer."""
    found, piece = b"", bytearray(50)
    while read := body.readinto(piece):
        found += piece[:read]
    return found


WAYS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "read": (opened, lambda body: body.read()),
    "pieces": (opened, lambda body: b"".join(iter(lambda: body.read(64), b""))),
    "lines": (opened, lambda body: b"".join(iter(body.readline, b""))),
    "all lines": (opened, lambda body: b"".join(body.readlines())),
    "buffer": (opened, read_into),
    "text": (opened, lambda body: io.TextIOWrapper(body).read().encode()),
    "urllib3 read": (pooled, lambda body: body.read()),
    "urllib3 stream": (pooled, lambda body: b"".join(body.stream(64))),
    "urllib3 chunks": (pooled, lambda body: b"".join(body.read_chunked())),
    "urllib3 data": (pooled, lambda body: body.data),
    "raw": (raw, lambda body: b"".join(body.stream())),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_body_is_timed_in_every_way_of_reading(server: Server, way: str) -> None:
    """What is read is the same; the row has what the events report, and no time of a renderer."""
    server.play(answers.chat(first_s=WAIT_S))
    send, read = WAYS[way]
    plain = read(send(server, stream=True))
    with capture(instrument=()) as rows:
        assert read(llmtrace.trace(send)(server, stream=True)) == plain
    [row] = rows
    assert (row.outcome, row.finish_reason) == ("success", "stop")
    assert row.ttft_s is not None
    assert row.e2e_ns - row.stages.render > 0.9e9 * WAIT_S


@pytest.mark.parametrize("send", [opened, pooled])
def test_a_whole_answer_is_read_by_json(server: Server, send: Any) -> None:
    """Its row ends with its last byte, and has its tokens."""
    server.play(answers.completion)
    with capture(instrument=()) as rows:
        body = llmtrace.trace(send)(server, stream=False)
        read = body.json() if hasattr(body, "json") else json.load(body)
        assert read["object"] == "text_completion"
    [row] = rows
    assert (row.outcome, row.output_tokens) == ("success", 5)


def test_a_body_that_was_read_inside_is_an_answer(server: Server) -> None:
    """urllib3 reads it before it returns: nothing is left to time."""
    server.play(answers.completion)
    with capture(instrument=()) as rows:
        body = llmtrace.trace(POOL.request)("POST", url(server), json={**BODY, "stream": False})
        assert body.json()["object"] == "text_completion"
    assert [row.outcome for row in rows] == ["success"]


def test_a_body_that_is_left_is_cancelled(server: Server) -> None:
    """By its block, after one line."""
    server.play(answers.chat())
    with capture(instrument=()) as rows, llmtrace.trace(opened)(server, stream=True) as body:
        assert body.readline()
    assert [row.outcome for row in rows] == ["cancelled"]


def test_a_context_manager_gives_a_response_of_requests(server: Server) -> None:
    """As functions do that close what they open."""
    server.play(answers.chat())

    @llmtrace.trace
    @contextlib.contextmanager
    def asking() -> Iterator[Any]:
        with requests.post(url(server), json=BODY, stream=True, timeout=9) as response:
            yield response

    with capture(instrument=()) as rows, asking() as response:
        assert len(list(response.iter_lines())) > 5
    [row] = rows
    assert (row.outcome, row.finish_reason) == ("success", "stop")


@pytest.mark.parametrize("way", ["block", "content", "text", "json"])
def test_a_response_of_aiohttp_is_timed_without_its_instrumentation(
    server: Server, way: str
) -> None:
    """Read by a block, by its content, or whole."""
    server.play(answers.completion if way == "json" else answers.chat(first_s=WAIT_S))

    async def main() -> None:
        async with aiohttp.ClientSession() as session:

            @llmtrace.trace
            def ask() -> Any:
                return session.post(url(server), json={**BODY, "stream": way != "json"})

            if way == "block":
                async with ask() as response:
                    assert len([line async for line in response.content]) > 5
                return
            response = await ask()
            if way == "content":
                assert len(await response.content.read()) > 100
            else:
                await (response.text() if way == "text" else response.json())

    with capture(instrument=()) as rows:
        asyncio.run(main())
    [row] = rows
    assert row.outcome == "success"
    if way != "json":
        assert row.finish_reason == "stop"
        assert row.ttft_s is not None
        assert row.e2e_ns - row.stages.render > 0.9e9 * WAIT_S
    else:
        assert row.output_tokens == 5


def test_a_coroutine_that_is_never_started_warns_as_without_us() -> None:
    """A task that is cancelled before its first step: Python has nothing to complain of."""

    async def inner() -> None:
        raise AssertionError

    async def main() -> None:
        @llmtrace.trace
        def ask() -> Any:
            return inner()

        task = asyncio.ensure_future(ask())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with warnings.catch_warnings(record=True) as warned, capture(instrument=()) as rows:
        warnings.simplefilter("always")
        asyncio.run(main())
    assert [str(one.message) for one in warned] == []
    assert len(rows) <= 1


def test_a_future_of_a_thread_ends_the_row() -> None:
    """Not when it is made, but when it is done."""
    with capture(instrument=()) as rows, ThreadPoolExecutor(1) as threads:
        done = threads.submit(lambda: "an answer")

        @llmtrace.trace
        def ask() -> Any:
            return threads.submit(lambda: (done.result(), "answer")[1])

        assert ask().result() == "answer"
    assert [row.outcome for row in rows] == ["success"]


@pytest.mark.parametrize(
    "place",
    [
        ("werkzeug.wrappers", "Response", "response"),
        ("django.http", "StreamingHttpResponse", "streaming_content"),
        ("quart", "Response", "response.iter"),
        ("litestar.response", "Stream", "iterator"),
        ("aiohttp.web", "Response", "_body._iter"),
    ],
)
@pytest.mark.parametrize("status", [False, True])
@pytest.mark.parametrize("decorator", [llmtrace.trace, llmtrace.turn])
def test_a_frameworks_body_is_recorded_until_it_is_sent(
    place: tuple[str, str, str], decorator: Any, status: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same response, whose generator is read later, alone or before a status."""
    module, name, path = place
    kind = type(name, (), {})
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{name: kind}))
    *holder, attribute = path.split(".")

    @decorator
    def view() -> Any:
        response = kind()
        held = SimpleNamespace() if holder else response
        setattr(response, *holder or ["unused"], held)
        setattr(held, attribute, (word for word in ("an ", "answer")))
        return (response, 200) if status else response

    with capture(instrument=()) as rows:
        response = view()
        if status:
            response, code = response
            assert code == 200
        assert type(response) is kind
        assert rows == []
        held = getattr(response, *holder or ["unused"])
        assert "".join(getattr(held, attribute)) == "an answer"
    assert [row.outcome for row in rows] == ["success"]


def test_two_generators_are_the_caller_s():
    """A tuple that is no endpoint's response is returned as it is: which is the stream?"""
    both = (n for n in "ab"), (n for n in "cd")

    with capture(instrument=()):
        assert llmtrace.trace(lambda: both)() is both


@pytest.mark.parametrize("decorator", [llmtrace.trace, llmtrace.turn])
def test_a_generator_before_a_status(decorator: Any) -> None:
    """Flask and Quart take both as a tuple."""

    @decorator
    def view() -> Any:
        return (word for word in ("an ", "answer")), 200, {"x": "y"}

    with capture(instrument=()) as rows:
        body, *rest = view()
        assert rest == [200, {"x": "y"}]
        assert rows == []
        assert "".join(body) == "an answer"
    assert [row.outcome for row in rows] == ["success"]
