"""Every way a stream can end makes one row, with the right outcome, at the right time."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

import llmtrace
from llmtrace.core.content import ContentPolicy
from llmtrace.core.row import Row
from llmtrace.testing import FakeClock, capture
from tests.support.sse_server import Answer, Request, Server
from tests.support.taking_time import forever
from tests.support.waiting import auntil

from .answers import WORDS, chat, delta, events, messages
from .reading import (
    CALLS,
    client,
    eventually,
    method,
    near,
    raised_by,
    read,
    recorded,
    seconds,
    settled,
)
from .test_endpoints import SCRIPTS


def started(server: Server, made: Any) -> Any:
    """Request a stream."""
    create, call_options = method(made)
    return create(**call_options, stream=True)


def sync_run(server: Server, act: Callable[[Any], object]) -> list[Row]:
    """Do something with a sync client; return the rows."""
    with capture() as rows, client("sync", server) as made:
        act(made)
    eventually(lambda: rows)
    return checked(rows)


def async_run(server: Server, act: Callable[[Any], Awaitable[object]]) -> list[Row]:
    """Do something with an async client; return the rows."""

    async def main() -> None:
        async with client("async", server) as made:
            await act(made)

    with capture() as rows:
        asyncio.run(main())
    eventually(lambda: rows)
    return checked(rows)


def checked(rows: list[Row]) -> list[Row]:
    """Return rows whose stages add up, whatever happened."""
    for row in rows:
        assert row.stages.total == row.e2e_ns
    return rows


def stalls(_request: Request, answer: Answer) -> None:
    """Send two words, then nothing for long."""
    answer.event(delta("one "))
    answer.event(delta("two "))
    answer.wait(30)


# --- the consumer stops --------------------------------------------------------------------------


def test_break_with_the_stream_still_held(server: Server) -> None:
    """A stream one may still read on has not ended; read on, and it is whole."""
    with capture() as rows, client("sync", server) as made:
        stream = started(server, made)
        for _chunk in stream:
            break
        assert rows == []
        rest = list(stream)
        assert len(rest) == len(WORDS) + 1
    [row] = checked(rows)
    assert (row.outcome, row.chunks) == ("success", len(WORDS))


def test_break_with_the_async_stream_still_held(server: Server) -> None:
    """A stream one may still read on has not ended; read on, and it is whole."""

    async def act(made: Any) -> None:
        stream = await started(server, made)
        async for _chunk in stream:
            break
        assert len([chunk async for chunk in stream]) == len(WORDS) + 1

    [row] = async_run(server, act)
    assert (row.outcome, row.chunks) == ("success", len(WORDS))


def test_break_and_close(server: Server) -> None:
    """Closing ends the row at once."""
    with capture() as rows, client("sync", server) as made:
        stream = started(server, made)
        next(stream)
        next(stream)
        stream.close()
        [row] = checked(rows)
    assert (row.outcome, row.error_type, row.chunks) == ("cancelled", None, 1)


def test_break_and_close_async(server: Server) -> None:
    """Closing ends the row at once."""
    with capture() as rows:

        async def main() -> None:
            async with client("async", server) as made:
                stream = await started(server, made)
                await anext(stream)
                await anext(stream)
                await stream.close()
                assert len(rows) == 1

        asyncio.run(main())
    [row] = checked(rows)
    assert (row.outcome, row.chunks) == ("cancelled", 1)


def test_break_out_of_with(server: Server) -> None:
    """Leaving the block ends the row; so does an error of the consumer's own."""

    def act(made: Any) -> None:
        with started(server, made) as stream:
            for chunk in stream:
                if chunk.choices[0].delta.content:
                    break
        with pytest.raises(LookupError), started(server, made) as stream:
            raise LookupError(next(stream))

    one, two = sync_run(server, act)
    assert (one.outcome, one.chunks) == ("cancelled", 1)
    assert (two.outcome, two.chunks) == ("cancelled", 0)


def test_break_out_of_messages(mode: str, server: Server) -> None:
    """The same holds for Anthropic's streams."""
    server.play(messages)

    async def main() -> None:
        async with client("async", server, "anthropic") as made:
            create, call_options = method(made, "messages")
            async with await create(**call_options, stream=True) as stream:
                async for event in stream:
                    if event.type == "content_block_delta":
                        break

    def act() -> None:
        if mode == "async":
            asyncio.run(main())
            return
        with client("sync", server, "anthropic") as made:
            create, call_options = method(made, "messages")
            with create(**call_options, stream=True) as stream:
                for event in stream:
                    if event.type == "content_block_delta":
                        break

    row = recorded(act)
    assert (row.outcome, row.chunks) == ("cancelled", 1)


def test_break_out_of_async_with(server: Server) -> None:
    """Leaving the block ends the row."""

    async def act(made: Any) -> None:
        async with await started(server, made) as stream:
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    break

    [row] = async_run(server, act)
    assert (row.outcome, row.chunks) == ("cancelled", 1)


class ConsumerError(Exception):
    """What the body of a loop over a stream raises."""


def breaks(stream: Iterator[Any]) -> None:
    """Leave the loop after the first chunk."""
    for _chunk in stream:
        break


def returns(stream: Iterator[Any]) -> Any:
    """Return the first chunk out of the loop."""
    for chunk in stream:
        return chunk
    return None


def raises(stream: Iterator[Any]) -> None:
    """Fail at the first chunk."""
    with suppress(ConsumerError):
        for _chunk in stream:
            raise ConsumerError


def drops(stream: Iterator[Any]) -> None:
    """Read one chunk, without a loop."""
    next(stream)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("leave", [breaks, returns, raises, drops])
@pytest.mark.parametrize("endpoint", ["chat", "messages"])
def test_left_and_released(endpoint: str, leave: Callable[[Any], object], server: Server) -> None:
    """A stream that is left and referred to no more ends at once, and so does its connection."""
    server.play(messages if endpoint == "messages" else chat())
    with capture() as rows, client("sync", server, CALLS[endpoint][0]) as made:
        create, call_options = method(made, endpoint)
        stream = create(**call_options, stream=True)
        response = stream.response
        leave(stream)
        assert not rows  # it could be read on
        del stream
        [row] = checked(rows)
    assert (row.outcome, response.is_closed) == ("cancelled", True)


@pytest.mark.usefixtures("no_collector")
def test_closing_what_was_released_is_no_render(server: Server) -> None:
    """The row of a released stream ends before its connection is closed, which may take time."""
    clock = FakeClock()

    def slow() -> None:
        clock.advance(1)

    with capture(clock=clock) as rows, client("sync", server) as made:
        stream = started(server, made)
        stream.response.stream._stream.close = slow
        breaks(stream)
        del stream
    assert [(row.outcome, row.e2e_ns) for row in rows] == [("cancelled", 0)]


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("endpoint", ["chat", "messages"])
def test_left_and_released_async(endpoint: str, server: Server) -> None:
    """The same, as soon as the loop has closed what `async for` held."""
    server.play(messages if endpoint == "messages" else chat())
    with capture() as rows:

        async def main() -> None:
            async with client("async", server, CALLS[endpoint][0]) as made:
                create, call_options = method(made, endpoint)
                stream = await create(**call_options, stream=True)
                response = stream.response
                async for _chunk in stream:
                    break
                del stream
                await auntil(lambda: rows and response.is_closed)

        asyncio.run(main())
    [row] = checked(rows)
    assert row.outcome == "cancelled"


def test_never_read(server: Server) -> None:
    """A stream that is never read still makes a row."""

    def act(made: Any) -> None:
        started(server, made)
        gc.collect()

    [row] = sync_run(server, act)
    assert (row.outcome, row.ttft_s) == ("cancelled", None)


def test_never_read_async(server: Server) -> None:
    """A stream that is never read still makes a row."""

    async def act(made: Any) -> None:
        await started(server, made)
        gc.collect()

    [row] = async_run(server, act)
    assert (row.outcome, row.ttft_s) == ("cancelled", None)


def test_break_after_the_finish_reason(server: Server) -> None:
    """Who stops after the finish reason has the whole response."""

    def act(made: Any) -> None:
        with started(server, made) as stream:
            for chunk in stream:
                if chunk.choices and chunk.choices[0].finish_reason:
                    break

    [row] = sync_run(server, act)
    assert row.outcome == "success"


def test_time_until_the_close_is_render(server: Server) -> None:
    """What the consumer does between the last read and the close is its own time."""

    def act(made: Any) -> None:
        with started(server, made) as stream:
            next(stream)
            next(stream)
            threading.Event().wait(0.1)

    def check(row: Row) -> None:
        near(seconds(row, "render"), 0.1)

    settled(lambda: sync_run(server, act)[0], check)


# --- the server stops ----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["drop", "reset"])
def test_connection_lost_in_the_middle(mode: str, server: Server, how: str) -> None:
    """A lost connection is an error, with what the SDK raises as its type."""

    def script(_request: Request, answer: Answer) -> None:
        answer.event(delta("one "))
        answer.wait(0.1)
        getattr(answer, how)()

    server.play(script)
    raised: list[Exception] = []

    row = recorded(lambda: raised.append(raised_by(lambda: read(mode, server))))
    kind = type(raised[0])
    assert (row.outcome, row.chunks) == ("error", 1)
    assert row.error_type == f"{kind.__module__}.{kind.__qualname__}"
    assert row.max_gap_s is not None
    assert row.max_gap_s > 0.08


@pytest.mark.parametrize("endpoint", CALLS)
@pytest.mark.parametrize("page", [False, True])
def test_no_stream_in_place_of_one(mode: str, endpoint: str, page: bool, server: Server) -> None:
    """A whole response with a finish reason is one; a login page under status 200 is not."""

    def script(request: Request, answer: Answer) -> None:
        unary = Request(request.method, request.path, request.headers, {"stream": False})
        if page:
            answer.whole({"html": "login"})
        else:
            SCRIPTS[endpoint](unary, answer)

    server.play(script)
    row = recorded(lambda: read(mode, server, endpoint))
    assert row.outcome == ("truncated" if page else "success")
    assert row.output_tokens == (None if page else 5)


def test_stream_without_finish_reason(mode: str, server: Server) -> None:
    """A stream that just stops is truncated, not a success."""
    server.play(chat(finish=None))
    row = recorded(lambda: read(mode, server))
    assert (row.outcome, row.finish_reason, row.chunks) == ("truncated", None, len(WORDS))


@pytest.mark.parametrize("endpoint", ["chat", "completions", "messages"])
def test_an_empty_finish_reason(mode: str, endpoint: str, server: Server) -> None:
    """It is none: some gateways send one with every chunk."""
    choice = {"index": 0, "delta": {"content": "a"}, "text": "a", "finish_reason": ""}
    stop = {"type": "message_delta", "delta": {"stop_reason": ""}, "usage": {}}
    server.play(events(stop if endpoint == "messages" else {"choices": [choice]}, done=False))
    row = recorded(lambda: read(mode, server, endpoint))
    assert (row.outcome, row.finish_reason) == ("truncated", None)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_chunks_without_a_list_of_choices(mode: str, endpoint: str, server: Server) -> None:
    """They are read, and report nothing."""
    end = {"index": 0, "delta": {}, "text": "", "finish_reason": "stop"}
    server.play(events({"choices": None}, {"hook_results": {}}, {"choices": [end]}))
    row = recorded(lambda: read(mode, server, endpoint), content=ContentPolicy())
    assert (row.outcome, row.chunks) == ("success", 0)


def test_a_decorated_function_that_is_cancelled_later(server: Server) -> None:
    """Its stream came whole, and what it did then did not."""
    server.play(chat())

    @llmtrace.trace
    async def asks(made: Any) -> None:
        async for _chunk in await started(server, made):
            pass
        await forever()

    async def act(made: Any) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asks(made), 1.0)

    [row] = async_run(server, act)
    assert row.outcome == "cancelled"


@pytest.mark.parametrize("finish", ["stop", None])
def test_cancelled_after_the_finish_reason(finish: str | None, server: Server) -> None:
    """Who is cancelled before the body ends has the whole response, as who closes it."""

    def script(_request: Request, answer: Answer) -> None:
        answer.head()
        answer.event(delta("a", finish=finish))
        answer.wait(30)

    server.play(script)

    async def act(made: Any) -> None:
        read: list[Any] = []
        task = asyncio.create_task(_reads_all(server, made, read))
        await auntil(lambda: read)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    [row] = async_run(server, act)
    assert row.outcome == ("cancelled" if finish is None else "success")


def test_error_inside_the_stream(mode: str, server: Server) -> None:
    """An error event under status 200 is an error."""
    openai = pytest.importorskip("openai")
    server.play(events(delta("one "), {"error": {"message": "CUDA error", "type": "server"}}))

    def act() -> None:
        with pytest.raises(openai.APIError, match="CUDA error"):
            read(mode, server)

    row = recorded(act)
    assert (row.outcome, row.error_type) == ("error", "server")
    assert (row.http_status, row.chunks) == (200, 1)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_error_event_of_the_responses_api(mode: str, server: Server) -> None:
    """The SDK hands it on as any other event."""
    event = {"type": "error", "code": "rate_limit_exceeded", "message": "no", "param": None}
    server.play(events({**event, "sequence_number": 0}, done=False))
    row = recorded(lambda: read(mode, server, "responses"))
    assert (row.outcome, row.error_type) == ("error", "rate_limit_exceeded")


def test_error_inside_a_messages_stream(mode: str, server: Server) -> None:
    """Anthropic's error event is an error, too."""
    anthropic = pytest.importorskip("anthropic")

    def script(_request: Request, answer: Answer) -> None:
        body = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
        answer.event(body, name="error")

    server.play(script)

    def act() -> None:
        with pytest.raises(anthropic.APIError):
            read(mode, server, "messages")

    row = recorded(act)
    assert (row.outcome, row.error_type) == ("error", "overloaded_error")


def test_silence_until_the_time_out(mode: str, server: Server) -> None:
    """A server that falls silent is a timeout; the silence is decode, and the longest gap."""
    server.play(stalls)

    def act() -> None:
        error = raised_by(lambda: read(mode, server, options={"timeout": 0.2}))
        assert "Timeout" in type(error).__name__

    def check(row: Row) -> None:
        near(seconds(row, "decode"), 0.2)
        near(row.max_gap_s, 0.2)

    row = settled(lambda: recorded(act), check)
    assert (row.outcome, row.chunks) == ("timeout", 2)


# --- another task stops it ----------------------------------------------------------------------


def test_keyboard_interrupt(mode: str, server: Server) -> None:
    """Control-C in the middle of a read goes through, and the row is made."""

    def script(_request: Request, answer: Answer) -> None:
        answer.event(delta("one "))
        answer.wait(0.05)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        answer.wait(30)

    server.play(script)

    def act() -> None:
        with pytest.raises(KeyboardInterrupt):
            read(mode, server)

    row = recorded(act)
    named = {"sync": "KeyboardInterrupt", "async": "asyncio.exceptions.CancelledError"}
    assert (row.outcome, row.error_type) == ("cancelled", named[mode])
    assert row.chunks == 1


async def _reads_all(server: Server, made: Any, read: list[Any] | None = None) -> None:
    async for chunk in await started(server, made):
        if read is not None:
            read.append(chunk)


def test_cancelled_task(server: Server) -> None:
    """A cancelled task's row says so, and the cancellation goes through."""
    server.play(stalls)

    async def act(made: Any) -> None:
        read: list[Any] = []
        task = asyncio.create_task(_reads_all(server, made, read))
        await auntil(lambda: len(read) == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    [row] = async_run(server, act)
    assert (row.outcome, row.chunks) == ("cancelled", 2)
    assert row.error_type == "asyncio.exceptions.CancelledError"


@pytest.mark.parametrize("before_the_head", [False, True])
def test_asyncio_timeout(server: Server, before_the_head: bool) -> None:
    """`asyncio.timeout` is a timeout, wherever it strikes."""

    def silent(_request: Request, answer: Answer) -> None:
        answer.wait(30)

    server.play(silent if before_the_head else stalls)

    async def act(made: Any) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await _reads_all(server, made)

    [row] = async_run(server, act)
    assert (row.outcome, row.error_type) == ("timeout", "TimeoutError")
    assert row.e2e_s == pytest.approx(0.1, rel=0.3)


def test_asyncio_wait_for(server: Server) -> None:
    """`asyncio.wait_for` is a timeout where it differs from a cancelled task: from 3.12 on."""
    server.play(stalls)

    async def act(made: Any) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_reads_all(server, made), 0.1)

    [row] = async_run(server, act)
    distinguishable = sys.version_info >= (3, 12)
    assert row.outcome == ("timeout" if distinguishable else "cancelled")


@pytest.mark.parametrize(
    ("cancel", "outcome"), [(False, "timeout"), (True, "cancelled")], ids=["deadline", "cancel"]
)
def test_anyio_cancel_scope(server: Server, cancel: bool, outcome: str) -> None:
    """A scope whose deadline passed is a timeout; one that was cancelled is not."""
    server.play(stalls)

    async def act(made: Any) -> None:
        with anyio.CancelScope(deadline=anyio.current_time() + (30 if cancel else 0.1)) as scope:
            if cancel:
                asyncio.get_running_loop().call_later(0.1, scope.cancel)
            await _reads_all(server, made)
        assert scope.cancelled_caught

    [row] = async_run(server, act)
    assert row.outcome == outcome


def test_cancelled_while_the_consumer_is_busy(server: Server) -> None:
    """A task that is cancelled between two reads makes its row, too."""
    server.play(chat())

    async def dawdles(made: Any) -> None:
        async with asyncio.timeout(1.0), await started(server, made) as stream:
            async for _chunk in stream:
                await forever()

    async def act(made: Any) -> None:
        with pytest.raises(TimeoutError):
            await dawdles(made)

    [row] = async_run(server, act)
    assert row.outcome == "cancelled"


# --- size ----------------------------------------------------------------------------------------


def test_an_open_stream_does_not_grow(server: Server) -> None:
    """The memory of a recording is the same after 3,000 chunks as after 500."""
    server.play(chat(("x ",) * 3_100))

    def act(made: Any) -> None:
        with started(server, made) as stream:
            for _ in range(500):
                next(stream)
            gc.collect()
            tracemalloc.start()
            try:
                before = tracemalloc.take_snapshot()
                for _ in range(2_500):
                    next(stream)
                gc.collect()
                after = tracemalloc.take_snapshot()
            finally:
                tracemalloc.stop()
        place = Path(llmtrace.__file__).parent
        ours = tracemalloc.Filter(inclusive=True, filename_pattern=f"{place}/*")
        grown = after.filter_traces([ours]).compare_to(before.filter_traces([ours]), "filename")
        # A few integers are replaced by larger ones; a byte a chunk would be more than this.
        assert sum(stat.size_diff for stat in grown) < 2_500

    [row] = sync_run(server, act)
    assert row.chunks == 2_999
