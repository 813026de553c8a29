"""No failure inside llmtrace reaches the application.

Every hook is made to raise in turn; what the application gets is compared with the bare client's.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import count
from typing import Any

import pytest
from opentelemetry.sdk.trace import Span, TracerProvider

import llmtrace
from llmtrace.core import failopen
from llmtrace.core.recording import Recording
from llmtrace.instrumentation import join_call
from llmtrace.instrumentation.headers import propagation
from llmtrace.instrumentation.http import httpx, httpx_bodies, phases, tcp_info
from llmtrace.instrumentation.llm_sdks import chunks, endpoints
from llmtrace.instrumentation.llm_sdks import patch as calls
from llmtrace.instrumentation.llm_sdks import responses as delivered
from llmtrace.instrumentation.streams import cancellation, iterators
from llmtrace.runtime import trace_context
from llmtrace.runtime.runtime import Runtime
from llmtrace.testing import capture
from tests.support.sse_server import Answer, Request, Script, Server

from . import answers
from .reading import MODES, client, eventually, method

pytest.importorskip("openai")
pytestmark = pytest.mark.usefixtures("faulty")


class Broken(Exception):  # noqa: N818 - what the test breaks
    """What broken hooks raise."""


def breaks(*_: Any, **__: Any) -> Any:
    """Stand for any function of llmtrace's, and fail."""
    raise Broken


# Every place where llmtrace's own code runs inside the application's.
HOOKS: tuple[tuple[Any, str], ...] = (
    (Runtime, "start"),
    (trace_context, "of_request"),
    (Runtime, "_emit"),
    (Recording, "_row"),
    (Recording, "switch_interval"),
    (Recording, "event"),
    (Recording, "opened"),
    (Recording, "attempt"),
    (chunks, "_usage"),
    (chunks, "_identity"),
    (chunks, "_reports"),
    (calls, "_known"),
    (join_call, "join"),
    (calls, "_prepare"),
    (calls, "endpoint_at"),
    (delivered, "deliver"),
    (delivered, "adopt"),
    (delivered, "_copy"),
    (delivered, "timed_reads atimed_reads"),
    (propagation, "outgoing"),
    (propagation, "incoming"),
    (httpx_bodies, "watch"),
    (httpx, "_socket"),
    (httpx, "_add_headers"),
    (httpx_bodies, "_body"),
    (tcp_info, "look"),
    (phases, "noting"),
    (iterators, "make_proxy"),
)
HOOK_IDS = [f"{getattr(owner, '__name__', owner)}.{name}" for owner, name in HOOKS]


def cut_short(request: Request, answer: Answer) -> None:
    """Lose the connection after two words."""
    answer.event(answers.delta("one "))
    answer.event(answers.delta("two "))
    answer.drop()


# What the server does, and what the application does with it.
CASES: tuple[tuple[str, Script, tuple[str, ...]], ...] = (
    ("good", answers.chat(), ("stream", "decorated", "early", "whole", "raw")),
    ("cut", cut_short, ("stream", "decorated")),
    ("refused", answers.error(400), ("stream", "decorated", "whole")),
    (
        "error",
        answers.events(answers.delta("x"), {"error": {"message": "CUDA error"}}),
        ("stream", "decorated"),
    ),
)


def acts(made: Any, into: list[Any]) -> dict[str, Callable[[], None]]:
    """Return what an application does with a client; what it gets goes into the list."""
    create, call_options = method(made)

    def stream() -> None:
        for chunk in create(**call_options, stream=True):
            into.append(chunk)

    @llmtrace.trace
    def generator() -> Iterator[Any]:
        yield from create(**call_options, stream=True)

    def decorated() -> None:
        for chunk in generator():
            into.append(chunk)

    def early() -> None:
        with create(**call_options, stream=True) as opened:
            into.append(next(opened))
        assert opened.response.is_closed

    def whole() -> None:
        into.append(create.__self__.with_raw_response.create(**call_options).parse())

    def raw() -> None:
        for chunk in create.__self__.with_raw_response.create(**call_options, stream=True).parse():
            into.append(chunk)

    return {one.__name__: one for one in (stream, decorated, early, whole, raw)}


def async_acts(made: Any, into: list[Any]) -> dict[str, Callable[[], Awaitable[None]]]:
    """Do the same with an async client."""
    create, call_options = method(made)

    async def stream() -> None:
        async for chunk in await create(**call_options, stream=True):
            into.append(chunk)

    @llmtrace.trace
    async def generator() -> AsyncIterator[Any]:
        async for chunk in await create(**call_options, stream=True):
            yield chunk

    async def decorated() -> None:
        async for chunk in generator():
            into.append(chunk)

    async def early() -> None:
        async with await create(**call_options, stream=True) as opened:
            into.append(await anext(opened))
        assert opened.response.is_closed

    async def whole() -> None:
        into.append((await create.__self__.with_raw_response.create(**call_options)).parse())

    async def raw() -> None:
        answer = await create.__self__.with_raw_response.create(**call_options, stream=True)
        async for chunk in answer.parse():
            into.append(chunk)

    return {one.__name__: one for one in (stream, decorated, early, whole, raw)}


Seen = dict[tuple[str, str], tuple[list[Any], str | None]]


def everything(mode: str, server: Server) -> Seen:
    """Do all of it once, and note for each case what came and how it ended."""
    seen: Seen = {}

    def note(way: str, name: str, into: list[Any], error: Exception | None) -> None:
        plain = [one.model_dump() if hasattr(one, "model_dump") else one for one in into]
        into.clear()
        seen[way, name] = plain, None if error is None else f"{type(error).__name__}: {error}"

    async def main() -> None:
        into: list[Any] = []
        async with client("async", server) as made:
            for way, script, names in CASES:
                for name in names:
                    server.play(script)
                    caught = None
                    try:
                        await async_acts(made, into)[name]()
                    except Exception as error:
                        caught = error
                    note(way, name, into, caught)

    if mode == "async":
        asyncio.run(main())
        return seen
    into: list[Any] = []
    with client("sync", server) as made:
        for way, script, names in CASES:
            for name in names:
                server.play(script)
                caught = None
                try:
                    acts(made, into)[name]()
                except Exception as error:
                    caught = error
                note(way, name, into, caught)
    return seen


@pytest.fixture(scope="module")
def bare(_server: Server) -> dict[str, Seen]:
    """Return what an application sees without llmtrace."""
    return {mode: everything(mode, _server) for mode in MODES}


def test_what_is_compared(mode: str, server: Server, bare: dict[str, Seen]) -> None:
    """Unbroken, all of it is as without llmtrace, and made a row each."""
    with capture() as rows:
        assert everything(mode, server) == bare[mode]
        gc.collect(1)  # the streams just dropped; all of the heap takes long
    eventually(lambda: len(rows) == sum(len(names) for _, _, names in CASES))
    assert len({chunks != [] for chunks, _ in bare[mode].values()}) == 2


@pytest.fixture(params=HOOKS, ids=HOOK_IDS)
def _broken_hook(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, names = request.param
    for name in names.split():
        monkeypatch.setattr(owner, name, breaks)


@pytest.mark.usefixtures("_broken_hook")
def test_broken_hooks(mode: str, server: Server, bare: dict[str, Seen]) -> None:
    """Whatever hook is broken, the application sees what it would have seen without llmtrace."""
    with capture():
        assert everything(mode, server) == bare[mode]
        gc.collect(1)  # the streams just dropped; all of the heap takes long
    assert failopen.internal_errors(), "the broken hook was never called"


@pytest.mark.parametrize("name", ["is_stream", "classify_for"])
def test_broken_hooks_of_streams_that_are_found(
    mode: str, server: Server, bare: dict[str, Seen], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same holds where a decorated function returns a stream of a client not instrumented."""
    monkeypatch.setattr(endpoints, name, breaks)

    @llmtrace.trace
    def ask(made: Any) -> Any:
        create, call_options = method(made)
        return create(**call_options, stream=True)

    async def main() -> list[Any]:
        async with client("async", server) as made:
            return [chunk.model_dump() async for chunk in await ask(made)]

    with capture(instrument=()):
        if mode == "async":
            seen = asyncio.run(main())
        else:
            with client("sync", server) as made:
                seen = [chunk.model_dump() for chunk in ask(made)]
    assert seen == bare[mode]["good", "stream"][0]
    assert failopen.internal_errors()


@pytest.mark.parametrize("calls", [1, 2, 3, 5, 8, 13, 21, 34])
def test_a_clock_that_breaks(mode: str, server: Server, bare: dict[str, Seen], calls: int) -> None:
    """A clock may fail at any call."""
    ticks = count(1)

    def clock() -> int:
        if next(ticks) % calls == 0:
            raise Broken
        return time.perf_counter_ns()

    with capture(clock=clock):
        assert everything(mode, server) == bare[mode]
        gc.collect(1)  # the streams just dropped; all of the heap takes long
    assert failopen.internal_errors()


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [(Recording, "_row", breaks), (cancellation, "_settle", lambda *_: breaks)],
    ids=["row", "settle"],
)
def test_cancellation_goes_through(
    server: Server, owner: Any, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task is cancelled as ever, whatever breaks while its row is made."""
    monkeypatch.setattr(owner, name, broken)

    async def read(began: asyncio.Event) -> None:
        async with client("async", server) as made:
            create, call_options = method(made)
            async for _chunk in await create(**call_options, stream=True):
                began.set()

    async def main() -> None:
        began = asyncio.Event()
        task = asyncio.create_task(read(began))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    def stalls(_request: Request, answer: Answer) -> None:
        answer.event(answers.delta("one "))
        answer.wait(30)

    server.play(stalls)
    with capture() as rows:
        asyncio.run(main())
    assert rows == []
    assert failopen.internal_errors()


def test_a_sink_that_breaks(mode: str, server: Server, bare: dict[str, Seen]) -> None:
    """A sink that raises costs its own rows, not the application's, nor the other sinks'."""

    class Sink:
        every_row = True
        write = breaks

    with capture(sinks=(Sink(),)) as rows:
        assert everything(mode, server) == bare[mode]
        gc.collect(1)  # the streams just dropped; all of the heap takes long
    eventually(lambda: len(rows) == sum(len(names) for _, _, names in CASES))


def test_a_log_handler_that_breaks(mode: str, server: Server, bare: dict[str, Seen]) -> None:
    """Not even telling about it can break the application."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise Broken

    handler = Handler()
    logging.getLogger("llmtrace").addHandler(handler)
    try:
        with capture(clock=breaks):
            assert everything(mode, server) == bare[mode]
    finally:
        logging.getLogger("llmtrace").removeHandler(handler)


@pytest.mark.parametrize("name", ["set_attributes", "end", "update_name"])
def test_a_tracer_provider_that_breaks(
    mode: str,
    server: Server,
    bare: dict[str, Seen],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The application's own tracer may fail, too."""
    monkeypatch.setattr(Span, name, breaks)
    with capture(tracer_provider=TracerProvider()):
        assert everything(mode, server) == bare[mode]
        gc.collect(1)  # the streams just dropped; all of the heap takes long
    assert failopen.internal_errors()
