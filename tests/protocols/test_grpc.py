"""A gRPC call stays gRPC's own, and makes one row."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc.experimental import ChannelOptions

import llmtrace
from llmtrace.core.errors import ConfigError
from llmtrace.core.failopen import internal_errors
from llmtrace.core.row import Row
from llmtrace.grpc import aio_client_interceptors, client_interceptors
from llmtrace.testing import capture
from tests.instrumentation.reading import eventually, near, settled
from tests.support.taking_time import aspend, spend
from tests.support.waiting import auntil

from . import servers
from .servers import SERVICE, WORDS

STREAM = f"/{SERVICE}/Stream"
ASK = f"/{SERVICE}/Ask"
BYTES = [word.encode() for word in WORDS]


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    """Serve responses over gRPC."""
    with servers.rpc() as where:
        yield where


Does = Callable[[Any], object]


def sync(target: str, does: Does, *around: Any, **how: Any) -> list[Row]:
    """Do something with a recorded channel; return the rows."""
    options = how.pop("options", None)
    with capture() as rows, grpc.insecure_channel(target, options=options) as plain:
        does(grpc.intercept_channel(plain, *around, *client_interceptors(**how)))
    return checked(rows)


def aio(target: str, does: Does, *around: Any, **how: Any) -> list[Row]:
    """Do the same with asyncio's."""

    async def main() -> None:
        interceptors = [*around, *aio_client_interceptors(**how)]
        async with (
            asyncio.timeout(30),
            grpc.aio.insecure_channel(target, interceptors=interceptors) as channel,
        ):
            await does(channel)  # type: ignore[misc]

    with capture() as rows:
        asyncio.run(main())
    return checked(rows)


def checked(rows: list[Row]) -> list[Row]:
    """Return rows whose stages add up, whatever happened."""
    for row in rows:
        assert row.stages.total == row.e2e_ns
    return rows


class Metadata(grpc.ServerInterceptor):  # type: ignore[misc]
    """Notes the metadata of each call a server gets."""

    def __init__(self) -> None:
        self.got: list[list[tuple[str, str]]] = []

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Note it, and go on."""
        self.got.append([(key, value) for key, value in details.invocation_metadata])
        return continuation(details)


# --- what goes along -----------------------------------------------------------------------------


def test_the_join_keys_go_along() -> None:
    """Trace context and request id are the row's; the application's own metadata stays."""
    noted = Metadata()

    def does(channel: Any) -> None:
        list(channel.unary_stream(STREAM)(b"success", metadata=[("x-key", "a"), ("x-key", "b")]))

    with servers.rpc(noted) as target:
        [row] = sync(target, does)
    [got] = noted.got
    sent = dict(got)
    assert sent["traceparent"] == f"00-{row.trace_id}-{row.span_id}-01"
    assert sent["x-request-id"] == row.request_id
    assert [value for key, value in got if key == "x-key"] == ["a", "b"]
    assert not any("llmtrace" in key for key in sent)


def test_the_callers_own_join_keys_win() -> None:
    """A `traceparent` or request id that is set goes out once, and is the row's id."""
    noted = Metadata()
    own = (("traceparent", "00-" + "1" * 32 + "-" + "2" * 16 + "-01"), ("x-request-id", "mine"))

    async def does(channel: Any) -> None:
        async for _ in channel.unary_stream(STREAM)(b"success", metadata=own):
            pass

    with servers.rpc(noted) as target:
        [row] = aio(target, does)
    [got] = noted.got
    assert [pair for pair in got if pair[0] in dict(own)] == list(own)
    assert row.request_id == "mine"


# --- the call itself -----------------------------------------------------------------------------


def test_a_call_can_do_all_it_could(target: str) -> None:
    """Status, metadata, deadline, callbacks; and it is of its class."""
    done = threading.Event()

    def does(channel: Any) -> None:
        call = channel.unary_stream(STREAM)(b"success", timeout=30)
        assert isinstance(call, grpc.Call)
        assert isinstance(call, grpc.Future)
        assert type(call).__name__ == "_MultiThreadedRendezvous"
        assert 0 < call.time_remaining() <= 30
        assert call.is_active()
        call.add_done_callback(lambda _: done.set())
        assert [*call] == [*BYTES, b""]
        assert call.code() is grpc.StatusCode.OK
        assert dict(call.trailing_metadata())["server-timing"]
        assert done.wait(10)
        assert not call.cancel()
        assert "_llmtrace" not in repr(type(call).__mro__)

    [row] = sync(target, does)
    assert (row.outcome, row.client, row.http_status) == ("success", "grpc", None)
    assert row.attributes["rpc.method"] == f"{SERVICE}/Stream"
    assert row.attributes["rpc.response.status_code"] == "OK"


def test_an_error_is_still_the_call(target: str) -> None:
    """What is raised is the very object that was read, as ever."""

    def does(channel: Any) -> None:
        call = channel.unary_stream(STREAM)(b"broken")
        with pytest.raises(grpc.RpcError) as raised:
            list(call)
        assert raised.value is call
        with pytest.raises(grpc.RpcError):
            next(call)

    [row] = sync(target, does)
    assert (row.outcome, row.error_type, row.chunks) == ("error", "INTERNAL", 2)


def test_a_call_without_a_thread(target: str) -> None:
    """Streams that need no thread, an experiment of gRPC's, work the same."""
    options = [(ChannelOptions.SingleThreadedUnaryStream, 1)]

    def does(channel: Any) -> None:
        assert [*channel.unary_stream(STREAM)(b"success")] == [*BYTES, b""]

    [row] = sync(target, does, options=options)
    assert (row.outcome, row.chunks) == ("success", 3)
    assert row.stages.gateway == 3_500_000


def test_asyncios_call_can_do_all_it_could(target: str) -> None:
    """Status, metadata, callbacks, and reading message by message."""
    done: list[Any] = []

    async def does(channel: Any) -> None:
        call = channel.unary_stream(STREAM)(b"success")
        call.add_done_callback(done.append)
        await call.wait_for_connection()
        messages = []
        while (message := await call.read()) is not grpc.aio.EOF:
            messages.append(message)
        assert messages == [*BYTES, b""]
        assert await call.code() is grpc.StatusCode.OK
        assert (await call.trailing_metadata())["server-timing"]
        assert done == [call]

    [row] = aio(target, does)
    assert (row.outcome, row.chunks) == ("success", 3)


def test_cancelling_a_call(target: str) -> None:
    """Its row ends then, though no read follows."""

    def does(channel: Any) -> None:
        call = channel.unary_stream(STREAM)(b"cancelled")
        assert [next(call), next(call)] == BYTES[:2]
        assert call.cancel()
        with pytest.raises(grpc.RpcError):
            next(call)
        assert call.cancelled()

    async def adoes(channel: Any) -> None:
        call = channel.unary_stream(STREAM)(b"cancelled")
        assert [await call.read(), await call.read()] == BYTES[:2]
        assert call.cancel()
        await auntil(call.cancelled)

    for [row] in (sync(target, does), aio(target, adoes)):
        assert (row.outcome, row.error_type, row.chunks) == ("cancelled", "CANCELLED", 2)
        assert row.attributes["rpc.response.status_code"] == "CANCELLED"


def test_cancelling_a_call_that_is_being_read(target: str) -> None:
    """The read ends with what gRPC raises, and so does the row."""

    def does(channel: Any) -> None:
        call = channel.unary_stream(STREAM)(b"cancelled")
        threading.Timer(0.1, call.cancel).start()
        with pytest.raises(grpc.RpcError):
            list(call)

    async def adoes(channel: Any) -> None:
        call = channel.unary_stream(STREAM)(b"cancelled")
        asyncio.get_running_loop().call_later(0.1, call.cancel)
        with pytest.raises(asyncio.CancelledError):
            [message async for message in call]

    for [row] in (sync(target, does), aio(target, adoes)):
        assert (row.outcome, row.chunks) == ("cancelled", 2)


def test_letting_a_call_go(target: str) -> None:
    """A call without references is cancelled by gRPC; its row says so."""

    def does(channel: Any) -> None:
        for _ in channel.unary_stream(STREAM)(b"success"):
            break
        channel.unary_stream(STREAM)(b"success")

    read, unread = sync(target, does)
    assert (read.outcome, read.chunks) == ("cancelled", 1)
    assert (unread.outcome, unread.ttft_ns) == ("cancelled", None)


def test_closing_the_channel(target: str) -> None:
    """Calls under asyncio end with their channel, and their rows, too."""

    async def does(channel: Any) -> None:
        async for _ in channel.unary_stream(STREAM)(b"success"):
            break
        gc.collect()

    [row] = aio(target, does)
    assert (row.outcome, row.chunks) == ("cancelled", 1)


def test_an_interrupted_read(target: str) -> None:
    """What is no error of the call's does not make anybody wait for its end."""

    def does(channel: Any) -> None:
        call = channel.unary_stream(STREAM)(b"cancelled")
        kind = type(call).__mro__[1]
        plain, kind.__next__ = kind.__next__, interrupted
        try:
            with pytest.raises(KeyboardInterrupt):
                next(call)
        finally:
            kind.__next__ = plain
        assert call.is_active()
        call.cancel()

    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    [row] = sync(target, does)
    assert (row.outcome, row.error_type) == ("cancelled", "KeyboardInterrupt")


# --- whole responses
# -------------------------------------------------------------------------------


def test_whole_answers(target: str) -> None:
    """A plain call, one with its call object, a future; and what the trailing metadata reports."""

    def does(channel: Any) -> None:
        ask = channel.unary_unary(ASK)
        assert ask(b"success") == b"".join(BYTES)
        answer, call = ask.with_call(b"success")
        assert (answer, call.code()) == (b"".join(BYTES), grpc.StatusCode.OK)
        future = ask.future(b"success")
        assert future.result(timeout=30) == b"".join(BYTES)
        eventually(lambda: len(future_rows) == 3)

    future_rows: list[Row] = []
    sink = type("Sink", (), {"write": staticmethod(future_rows.append)})
    with capture(sinks=(sink,)), grpc.insecure_channel(target) as plain:
        does(grpc.intercept_channel(plain, *client_interceptors()))
    for row in checked(future_rows):
        assert (row.outcome, row.stream, row.stages.gateway) == ("success", False, 3_500_000)


def test_a_future_that_fails(target: str) -> None:
    """It ends its row with its status, in whatever thread that is."""
    rows: list[Row] = []
    sink = type("Sink", (), {"write": staticmethod(rows.append)})
    with capture(sinks=(sink,)), grpc.insecure_channel(target) as plain:
        ask = grpc.intercept_channel(plain, *client_interceptors()).unary_unary(ASK)
        future = ask.future(b"refused")
        with pytest.raises(grpc.RpcError):
            future.result(timeout=30)
        eventually(lambda: rows)
    assert (rows[0].outcome, rows[0].error_type) == ("error", "RESOURCE_EXHAUSTED")


def test_a_response_that_is_not_awaited(target: str) -> None:
    """Under asyncio it goes on by itself; how it ended is noted all the same."""

    async def does(channel: Any) -> None:
        ask = channel.unary_unary(ASK)
        for ending in (b"success", b"refused"):
            call = ask(ending)
            assert (await call.code()).name in {"OK", "RESOURCE_EXHAUSTED"}
            del call
        gc.collect()

    answered, refused = aio(target, does)
    assert (answered.outcome, answered.stages.gateway) == ("success", 3_500_000)
    assert (refused.outcome, refused.error_type) == ("error", "RESOURCE_EXHAUSTED")


def test_an_answer_that_is_awaited_twice(target: str) -> None:
    """It is the same response, and one row."""

    async def does(channel: Any) -> None:
        call = channel.unary_unary(ASK)(b"success")
        assert await call == await call

    assert len(aio(target, does)) == 1


# --- what is recorded ----------------------------------------------------------------------------


def test_which_methods(target: str) -> None:
    """All, or those that are named; gRPC's own never."""

    def does(channel: Any) -> None:
        assert [*channel.unary_stream(STREAM)(b"success")]
        assert channel.unary_unary(ASK)(b"success")
        with pytest.raises(grpc.RpcError):
            channel.unary_unary("/grpc.health.v1.Health/Check")(b"")

    assert len(sync(target, does)) == 2
    [row] = sync(target, does, methods=[f"{SERVICE}/Stream"])
    assert row.stream


def test_what_messages_tell(target: str) -> None:
    """A function of the application's says what they carry."""

    def classify(message: bytes) -> Any:
        if message == b"one ":
            return "reasoning"
        return "text" if message else {"finish_reason": "stop", "output_tokens": 3}

    def does(channel: Any) -> None:
        list(channel.unary_stream(STREAM)(b"success"))

    [row] = sync(target, does, classify=classify, model="tiny", route="chat", user="ada")
    assert (row.finish_reason, row.output_tokens, row.chunks) == ("stop", 3, 3)
    assert (row.model, row.route, row.attributes["user.id"]) == ("tiny", "chat", "ada")
    assert row.first_reasoning_ns is not None
    assert row.first_text_ns is not None
    assert row.first_reasoning_ns <= row.first_text_ns


def test_a_slow_and_late_reader(target: str) -> None:
    """What the consumer does between two reads is its own time."""

    def does(channel: Any) -> None:
        call = channel.unary_stream(STREAM)(b"success")
        spend(0.1)
        for _ in call:
            spend(0.05)

    async def adoes(channel: Any) -> None:
        call = channel.unary_stream(STREAM)(b"success")
        await aspend(0.1)
        async for _ in call:
            await aspend(0.05)

    def check(row: Row) -> None:
        held = row.timeline.held_before + row.timeline.held_after
        near(held / 1e9, 0.3)

    settled(lambda: sync(target, does)[0], check)
    settled(lambda: aio(target, adoes)[0], check)


def test_what_goes_wrong_inside_does_no_harm(target: str, faulty: None) -> None:
    """A function of the application's that raises is counted; the messages come all the same."""
    del faulty

    def does(channel: Any) -> None:
        assert [*channel.unary_stream(STREAM)(b"success")] == [*BYTES, b""]

    async def adoes(channel: Any) -> None:
        messages = [message async for message in channel.unary_stream(STREAM)(b"success")]
        assert messages == [*BYTES, b""]

    for [row] in (
        sync(target, does, classify=json.loads),
        aio(target, adoes, classify=json.loads),
    ):
        assert (row.outcome, row.chunks) == ("success", 0)
    assert internal_errors() == {"record": 8}


def test_nothing_is_done_without_init() -> None:
    """Calls go through untouched."""
    noted = Metadata()
    with servers.rpc(noted) as target, grpc.insecure_channel(target) as plain:
        channel = grpc.intercept_channel(plain, *client_interceptors())
        assert [*channel.unary_stream(STREAM)(b"success")] == [*BYTES, b""]
    assert "traceparent" not in dict(noted.got[0])


@pytest.mark.parametrize("make", [client_interceptors, aio_client_interceptors])
@pytest.mark.parametrize(
    "arguments",
    [{"classify": {}}, {"done": "end"}, {"methods": "Ask"}, {"methods": [5]}, {"model": 5}],
)
def test_wrong_arguments(make: Any, arguments: dict[str, Any]) -> None:
    """They are found when the interceptors are made; the message says where."""
    with pytest.raises(ConfigError, match=rf"llmtrace\.grpc\.{make.__name__}"):
        make(**arguments)


# --- with other interceptors, and in decorated functions ---------------------------------------


class Passing(grpc.UnaryStreamClientInterceptor):  # type: ignore[misc]
    """Another library's, that makes a generator of every call, as OpenTelemetry's does."""

    def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        """Hand on what comes."""
        yield from continuation(details, request)


@pytest.mark.parametrize("inside", [True, False])
def test_beside_another_interceptor(target: str, inside: bool) -> None:
    """Whichever of the two is closer to the channel."""
    with capture() as rows, grpc.insecure_channel(target) as plain:
        ours, theirs = client_interceptors()[:1], (Passing(),)
        around = (*ours, *theirs) if inside else (*theirs, *ours)
        channel = grpc.intercept_channel(plain, *around)
        assert [*channel.unary_stream(STREAM)(b"success")] == [*BYTES, b""]
    [row] = checked(rows)
    assert (row.outcome, row.chunks) == ("success", 3)


class AioPassing(grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[misc]
    """The same for asyncio."""

    async def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        """Hand on what comes."""

        async def responses() -> Any:
            async for message in call:
                yield message

        call = await continuation(details, request)
        return responses()


@pytest.mark.parametrize("inside", [True, False])
def test_beside_another_interceptor_of_asyncios(target: str, inside: bool) -> None:
    """Whichever of the two is closer to the channel."""

    async def main() -> None:
        ours, theirs = aio_client_interceptors(), [AioPassing()]
        around = [*ours, *theirs] if inside else [*theirs, *ours]
        async with grpc.aio.insecure_channel(target, interceptors=around) as channel:
            call = channel.unary_stream(STREAM)(b"success")
            assert [message async for message in call] == [*BYTES, b""]

    with capture() as rows:
        asyncio.run(main())
    [row] = checked(rows)
    assert (row.outcome, row.chunks) == ("success", 3)


def test_in_a_decorated_function(target: str) -> None:
    """The call joins the function's row, sync and async, streamed and whole."""

    def does(channel: Any) -> None:
        @llmtrace.trace(route="words")
        def words() -> Iterator[bytes]:
            yield from channel.unary_stream(STREAM)(b"success")

        @llmtrace.trace(route="whole")
        def whole() -> Any:
            return channel.unary_unary(ASK)(b"success")

        assert [*words()] == [*BYTES, b""]
        assert whole() == b"".join(BYTES)

    async def adoes(channel: Any) -> None:
        @llmtrace.trace(route="words")
        async def words() -> Any:
            async for message in channel.unary_stream(STREAM)(b"success"):
                yield message

        @llmtrace.trace(route="whole")
        async def whole() -> Any:
            return await channel.unary_unary(ASK)(b"success")

        assert [message async for message in words()] == [*BYTES, b""]
        assert await whole() == b"".join(BYTES)

    for words, whole in (sync(target, does), aio(target, adoes)):
        assert (words.route, words.outcome, words.chunks) == ("words", "success", 3)
        assert (whole.route, whole.outcome, whole.stream) == ("whole", "success", False)
        assert words.stages.gateway == whole.stages.gateway == 3_500_000


def test_errors_of_a_decorated_function(target: str) -> None:
    """They go by gRPC's status, wherever they are raised."""

    def does(channel: Any) -> None:
        @llmtrace.trace
        def words(ending: bytes, timeout: float | None) -> Iterator[bytes]:
            yield from channel.unary_stream(STREAM)(ending, timeout=timeout)

        for ending, timeout in ((b"broken", None), (b"refused", None), (b"timeout", 0.1)):
            with pytest.raises(grpc.RpcError):
                list(words(ending, timeout))

    rows = sync(target, does)
    assert [(row.outcome, row.error_type) for row in rows] == [
        ("error", "INTERNAL"),
        ("error", "RESOURCE_EXHAUSTED"),
        ("timeout", "DEADLINE_EXCEEDED"),
    ]


def test_a_function_that_leaves_its_call(target: str) -> None:
    """What it did not read to its end it has left."""

    def does(channel: Any) -> None:
        @llmtrace.trace
        def first() -> Iterator[bytes]:
            for message in channel.unary_stream(STREAM)(b"success"):
                yield message
                return

        assert [*first()] == BYTES[:1]

    [row] = sync(target, does)
    assert (row.outcome, row.chunks) == ("cancelled", 1)
