"""A WebSocket's connection stays the same object, and each question on it makes one row."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import ssl
import threading
import time
import tracemalloc
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import (
    ConcurrencyError,
    ConnectionClosedError,
    ConnectionClosedOK,
    InvalidStatus,
)
from websockets.sync.client import connect as connect_sync

import llmtrace
from llmtrace import websocket
from llmtrace.core.errors import ConfigError
from llmtrace.core.failopen import internal_errors
from llmtrace.core.row import Row
from llmtrace.instrumentation.http import dns
from llmtrace.instrumentation.rpc import websocket_connection, websocket_session
from llmtrace.propagate import trace_headers
from llmtrace.testing import capture
from tests.instrumentation.conftest import certificate
from tests.instrumentation.reading import near, settled
from tests.support.taking_time import aspend
from tests.support.waiting import auntil

from . import servers
from .clients import classify_message

__all__ = ["certificate"]

Talk = Callable[[Any], Awaitable[object]]
Answer = Callable[[ServerConnection, str], Awaitable[object]]

END = "[END]"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Serve responses over WebSocket."""
    with servers.websocket() as url:
        yield url


def last(message: str) -> bool:
    """Return whether a message is the last one."""
    return message == END


async def three(connection: ServerConnection, _question: str) -> None:
    """Respond in three messages."""
    for message in ("one", "two", END):
        await connection.send(message)


def talk(
    does: Talk,
    answers: Answer = three,
    *,
    opened: bool = True,
    settings: dict[str, Any] | None = None,
    host: str = "127.0.0.1",
    sinks: tuple[Any, ...] = (),
    **how: Any,
) -> list[Row]:
    """Let a client talk to a server that responds to each question; return the rows.

    Args:
        does: what the client does with its connection.
        answers: how the server answers.
        opened: whether the opening is recorded, too.
        settings: of both sides.
        host: to connect to.
        sinks: where rows go, too, as soon as they are there.
        **how: the arguments of `websocket.wrap`.
    """
    how = how or {"done": last}

    async def main() -> None:
        async def serves(connection: ServerConnection) -> None:
            async for question in connection:
                await answers(connection, str(question))

        async with serve(serves, "127.0.0.1", 0) as server:
            url = f"ws://{host}:{server.sockets[0].getsockname()[1]}/"
            opens = connect(url, **settings or {})
            async with websocket.wrap(opens, **how) if opened else opens as connection:
                await does(connection if opened else websocket.wrap(connection, **how))

    async def within_reason() -> None:
        async with asyncio.timeout(30):
            await main()

    with capture(sinks=sinks) as rows:
        asyncio.run(within_reason())
    for row in rows:
        assert row.stages.total == row.e2e_ns
    return rows


class Kept:
    """A sink that keeps its rows."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def write(self, row: Row) -> None:
        """Keep a row."""
        self.rows.append(row)


async def ask(connection: Any, question: str = "?") -> list[str]:
    """Ask one question and read the response to its end."""
    await connection.send(question)
    return await read(connection)


async def read(connection: Any) -> list[str]:
    """Read one response to its end."""
    messages = []
    async for message in connection:
        messages.append(message)
        if message == END:
            break
    return messages


# --- one connection, several requests ------------------------------------------------------------


def test_each_question_is_a_row() -> None:
    """The first carries the opening of the connection; the others had nothing to open."""

    async def does(connection: Any) -> None:
        assert await ask(connection) == ["one", "two", END]
        await ask(connection)

    first, second = talk(does, host="localhost")
    opening, later = first.timeline.network, second.timeline.network
    assert [row.outcome for row in (first, second)] == ["success", "success"]
    assert opening.dns is not None
    assert opening.dns > 0
    assert opening.connect is not None
    assert opening.connect > 0
    assert opening.handshake is not None
    assert opening.handshake > 0
    assert opening.tls == 0
    assert (later.dns, later.connect, later.tls, later.handshake) == (0, 0, 0, 0)
    for row in (first, second):
        assert row.timeline.network.send is not None
        assert row.timeline.network.rtt_source == "kernel"
        assert str(row.server).startswith("localhost:")
        assert (row.client, row.http_status, row.stream) == ("websockets", 101, True)
        assert dict(row.attributes) == {"network.protocol.name": "websocket"}
    assert first.trace_id != second.trace_id


def test_a_connection_that_was_open_already() -> None:
    """There was nothing to open, and that was seen."""
    [row] = talk(ask, opened=False)
    network = row.timeline.network
    assert (network.dns, network.connect, network.tls, network.handshake) == (0, 0, 0, 0)
    assert row.outcome == "success"


def test_a_connection_opened_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """No read waited for it: the request begins with the question."""
    monkeypatch.setattr(websocket_session, "_AT_ONCE_NS", 50_000_000)

    async def does(connection: Any) -> None:
        await aspend(0.06)
        await ask(connection)

    [row] = talk(does)
    assert row.timeline.network.handshake == 0
    assert row.timeline.network.known is not None
    assert row.timeline.network.known < 50_000_000


def test_what_comes_before_the_question_is_the_clients_own() -> None:
    """Time between the opening and the first question is spent on the client's side."""

    async def does(connection: Any) -> None:
        await aspend(0.1)
        await ask(connection)

    def check(row: Row) -> None:
        near((row.timeline.client or 0) / 1e9, 0.1)

    settled(lambda: talk(does)[0], check)


def test_the_phases_of_a_secure_connection(certificate: Path) -> None:
    """TCP, TLS and the handshake are distinguished."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate)
    trusting = ssl.create_default_context(cafile=str(certificate))

    async def serves(connection: ServerConnection) -> None:
        async for question in connection:
            await three(connection, str(question))

    async def main() -> None:
        async with serve(serves, "127.0.0.1", 0, ssl=serving) as server:
            url = f"wss://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            async with websocket.wrap(connect(url, ssl=trusting), done=last) as connection:
                await ask(connection)
            await asyncio.to_thread(sync, url)

    def sync(url: str) -> None:
        opens = connect_sync(url, ssl=trusting, legacy=False)
        with websocket.wrap(opens, done=last) as connection:
            connection.send("?")
            assert [connection.recv(timeout=20) for _ in range(3)][-1] == END

    with capture() as rows:
        asyncio.run(main())
    assert [row.outcome for row in rows] == ["success", "success"]
    for row in rows:
        network = row.timeline.network
        assert network.dns is not None
        assert min(network.connect or 0, network.tls or 0, network.handshake or 0) > 0
        assert network.rtt is not None


def test_a_connection_that_cannot_be_opened() -> None:
    """It is a failed request: of the network's, where no server responded."""

    async def main() -> None:
        async with websocket.wrap(connect("ws://127.0.0.1:1/"), done=last):
            raise AssertionError("connection failed")

    with capture() as rows, pytest.raises(OSError, match="127"):
        asyncio.run(main())
    [row] = rows
    assert (row.outcome, row.error_type) == ("error", "ConnectionRefusedError")
    assert row.stages.network == row.e2e_ns - (row.timeline.client or 0)


def test_a_handshake_that_takes_too_long() -> None:
    """A time-out that the server caused is a timeout, and not the network's."""

    async def main() -> None:
        gone = asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            gone.set()

        async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
            url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            with pytest.raises(TimeoutError):
                await websocket.wrap(connect(url, open_timeout=0.1), done=last)
            await gone.wait()

    with capture() as rows:
        asyncio.run(main())
    [row] = rows
    assert (row.outcome, row.error_type) == ("timeout", "TimeoutError")
    assert row.stages.network is not None
    assert row.stages.network < row.e2e_ns / 2


def test_a_connection_that_is_never_used() -> None:
    """There was no question, so there is no row."""

    async def does(connection: Any) -> None:
        await connection.ping()

    assert talk(does) == []


def test_reconnecting(address: str) -> None:
    """Each connection that `async for` opens is recorded anew."""

    async def main() -> None:
        count = 0
        async for connection in websocket.wrap(connect(address), classify=classify_message):
            await connection.send(json.dumps({"ending": "broken" if count == 0 else "refused"}))
            count += 1
            try:
                await connection.recv()
            except ConnectionClosedError:
                continue
            if count == 2:
                break

    async def ends() -> None:
        async with asyncio.timeout(20):
            await main()

    with capture() as rows:
        asyncio.run(ends())
    assert [row.outcome for row in rows] == ["cancelled", "cancelled"]
    assert all(row.timeline.network.handshake for row in rows)


# --- which messages ------------------------------------------------------------------------------


def test_messages_before_the_answer_are_one_question() -> None:
    """A question in parts is one request."""

    async def answers(connection: ServerConnection, question: str) -> None:
        if question == "go":
            await three(connection, question)

    async def does(connection: Any) -> None:
        await connection.send("first, this")
        await connection.send("then that")
        await ask(connection, "go")

    [row] = talk(does, answers)
    assert (row.outcome, row.chunks) == ("success", 3)


def test_messages_that_ask_for_nothing() -> None:
    """Where the application says which messages ask, no other begins a request, or ends one."""

    async def does(connection: Any) -> None:
        await ask(connection, "hello")
        await connection.send("?")
        await connection.recv()
        await connection.send("acknowledged")
        await read(connection)
        await read(connection)

    [row] = talk(does, asks=lambda message: message == "?", done=last)
    assert (row.outcome, row.chunks) == ("success", 3)


def test_the_next_question_comes_too_soon() -> None:
    """The response that is not read any more is cancelled, when it was last read."""

    async def does(connection: Any) -> None:
        await connection.send("?")
        await connection.recv()
        await aspend(0.2)
        await ask(connection)

    first, second = talk(does)
    assert (first.outcome, first.chunks) == ("cancelled", 1)
    assert first.e2e_s < 0.2
    assert second.outcome == "success"


def test_an_answer_that_ends_with_the_connection() -> None:
    """The server's closing is the end where it is said to be, and truncates elsewhere."""

    async def answers(connection: ServerConnection, _question: str) -> None:
        await connection.send("one")
        await connection.close()

    async def does(connection: Any) -> None:
        await connection.send("?")
        assert [message async for message in connection] == ["one"]

    [whole] = talk(does, answers, done="close")
    [cut] = talk(does, answers, done=last)
    assert (whole.outcome, cut.outcome) == ("success", "truncated")
    assert cut.attributes["websocket.close_code"] == 1000


def test_a_question_that_cannot_be_sent() -> None:
    """A connection that was closed meanwhile is an error of the network's."""

    async def answers(connection: ServerConnection, _question: str) -> None:
        await connection.close()

    async def does(connection: Any) -> None:
        await connection.send("?")
        with pytest.raises(ConnectionClosedOK):
            await connection.recv()
        with pytest.raises(ConnectionClosedOK):
            await connection.send("?")

    _, row = talk(does, answers)
    assert (row.outcome, row.error_type) == ("error", "websockets.exceptions.ConnectionClosedOK")
    assert row.stages.network == row.e2e_ns - (row.timeline.client or 0)


def test_fragments() -> None:
    """A response that is one message in parts is read part by part."""

    async def answers(connection: ServerConnection, _question: str) -> None:
        async def parts() -> Any:
            for part in ("one ", "two ", END):
                await aspend(0.02)
                yield part

        await connection.send(parts())

    async def does(connection: Any) -> None:
        await connection.send("?")
        parts = [part async for part in connection.recv_streaming()]
        assert "".join(parts) == f"one two {END}"
        await connection.send("?")
        assert await connection.recv() == f"one two {END}"

    parts, whole = talk(does, answers, done=lambda message: message.endswith(END))
    assert (parts.outcome, parts.chunks) == ("success", 3)
    assert (whole.outcome, whole.chunks) == ("success", 1)


PARTS = ('{"kind": ', '"text"', ', "text": "hi"}')


def kind_in(message: str) -> Any:
    """Read a whole message; half of one raises."""
    event = json.loads(message)
    return {"finish_reason": "stop"} if event["kind"] == "end" else event["kind"]


@pytest.mark.parametrize("how", ["recv", "recv_streaming"])
def test_messages_in_fragments(how: str) -> None:
    """What reads messages gets whole ones, each as of its last part."""

    async def answers(connection: ServerConnection, _question: str) -> None:
        async def parts() -> Any:
            for part in PARTS:
                await aspend(0.02)
                yield part

        await connection.send(parts())
        await connection.send(parts())
        await connection.send('{"kind": "end"}')

    async def does(connection: Any) -> None:
        await connection.send("?")
        message = ""
        while "end" not in message:
            if how == "recv":
                message = await connection.recv()
            else:
                message = ""
                async for part in connection.recv_streaming():
                    message += part
                await aspend(0.3)  # long after the message was there

    [row] = talk(does, answers, classify=kind_in)
    assert (row.outcome, row.finish_reason, row.chunks) == ("success", "stop", 2)
    assert 0.06 <= row.ttft_s < 0.3
    assert row.stages.total == row.e2e_ns


def test_an_error_of_the_applications_own_protocol() -> None:
    """It ends the request, whose connection stays open; the next one is a row of its own."""

    async def answers(connection: ServerConnection, question: str) -> None:
        await connection.send('{"kind": "text"}')
        await connection.send(json.dumps({"kind": "error" if question == "1" else "end"}))

    def classify(message: str) -> Any:
        event = json.loads(message)["kind"]
        return {"error_type": "engine_dead"} if event == "error" else kind_in(message)

    async def does(connection: Any) -> None:
        for question in ("1", "2"):
            await connection.send(question)
            for _ in range(2):
                await connection.recv()

    rows = talk(does, answers, classify=classify)
    assert [(row.outcome, row.error_type) for row in rows] == [
        ("error", "engine_dead"),
        ("success", None),
    ]


def test_a_fragmented_message_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not kept to be read; the next one is."""
    monkeypatch.setattr(websocket_session, "_MAX_LENGTH", 1000)

    async def answers(connection: ServerConnection, _question: str) -> None:
        await connection.send(["x" * 700, "y" * 340])
        await connection.send('{"kind": "end"}')

    async def does(connection: Any) -> None:
        await connection.send("?")
        for _ in range(2):
            async for _part in connection.recv_streaming():
                pass

    [row] = talk(does, answers, classify=kind_in)
    assert (row.outcome, row.chunks) == ("success", 0)


def test_fragments_from_a_thread(address: str) -> None:
    """The same, for a message that comes as one part."""
    with capture() as rows:
        opens = connect_sync(address, legacy=False)
        with websocket.wrap(opens, done=lambda message: "finish" in message) as connection:
            connection.send('{"ending": "success"}')
            while "finish" not in "".join(connection.recv_streaming()):
                pass
    [row] = rows
    assert (row.outcome, row.chunks) == ("success", 4)


# --- OpenAI's events -----------------------------------------------------------------------------


async def realtime(connection: ServerConnection, question: str) -> None:
    """Respond as OpenAI's Realtime API does, one response after the other."""
    event = json.loads(question)
    if event["type"] == "session.update":
        await connection.send('{"type": "session.updated"}')
    elif event["type"] == "response.cancel":
        await finish(connection, "cancelled")
    elif event["type"] == "response.create":
        put = {"type": "response.created", "response": {"id": "resp_1", "model": "tiny"}}
        await connection.send(json.dumps(put))
        delta = {"type": "response.output_text.delta", "delta": "hm", "response_id": "resp_1"}
        await connection.send(json.dumps(delta))
        if event.get("whole", True):
            await finish(connection, "completed")


async def finish(connection: ServerConnection, status: str) -> None:
    """End a response."""
    usage = {"input_tokens": 5, "output_tokens": 2}
    answer = {"id": "resp_1", "status": status, "usage": usage}
    await connection.send(json.dumps({"type": "response.done", "response": answer}))


async def until(connection: Any, kind: str) -> None:
    """Read until an event of a kind has come."""
    while json.loads(await connection.recv())["type"] != kind:
        pass


OPENAI = {"route": "voice"}


def test_openai_events() -> None:
    """A session's own messages are no requests; a response reports its tokens and its model."""

    async def does(connection: Any) -> None:
        await connection.send('{"type": "session.update"}')
        await until(connection, "session.updated")
        await connection.send('{"type": "response.create"}')
        await until(connection, "response.done")

    [row] = talk(does, realtime, **OPENAI)
    assert (row.outcome, row.finish_reason, row.route) == ("success", "completed", "voice")
    assert (row.prompt_tokens, row.output_tokens, row.chunks) == (5, 2, 1)
    assert (row.model, row.response_id) == ("tiny", "resp_1")


def test_barging_in() -> None:
    """The end of a response that was interrupted is not taken for that of the next one."""

    async def does(connection: Any) -> None:
        await connection.send('{"type": "response.create", "whole": false}')
        await until(connection, "response.output_text.delta")
        await connection.send('{"type": "response.cancel"}')
        await connection.send('{"type": "response.create"}')
        await until(connection, "response.done")  # of the first
        await until(connection, "response.done")

    first, second = talk(does, realtime, **OPENAI)
    assert (first.outcome, first.finish_reason) == ("cancelled", None)
    assert (second.outcome, second.finish_reason, second.chunks) == ("success", "completed", 1)


def test_the_openai_sdks_own_connection() -> None:
    """The connection that the SDK's Realtime client reads from is recorded inside it."""
    openai = pytest.importorskip("openai")

    async def main() -> None:
        async def serves(connection: ServerConnection) -> None:
            async for question in connection:
                await realtime(connection, str(question))

        async with serve(serves, "127.0.0.1", 0) as server:
            url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            async with (
                openai.AsyncOpenAI(api_key="none", websocket_base_url=url) as client,
                client.realtime.connect(model="tiny") as connection,
            ):
                assert websocket.wrap(connection, model="ours") is connection
                await connection.response.create()
                async for event in connection:
                    if event.type == "response.done":
                        break

    with capture() as rows:
        asyncio.run(main())
    [row] = rows
    assert (row.outcome, row.output_tokens, row.model) == ("success", 2, "tiny")


# --- reading -------------------------------------------------------------------------------------


async def slow(connection: ServerConnection, _question: str) -> None:
    """Respond after a while."""
    await aspend(0.2)
    await three(connection, "")


def test_polling_from_a_thread(address: str) -> None:
    """A read that times out and is retried ends nothing."""
    with capture() as rows:
        opens = connect_sync(address, legacy=False)
        with websocket.wrap(opens, classify=classify_message) as connection:
            connection.send('{"ending": "success"}')
            timed_out = 0
            while True:
                try:
                    message = connection.recv(timeout=0.001)
                except TimeoutError:
                    timed_out += 1
                    continue
                if "finish_reason" in message:
                    break
    [row] = rows
    assert timed_out
    assert (row.outcome, row.error_type, row.chunks) == ("success", None, 3)


def test_polling_from_a_task() -> None:
    """So it is where every read has a time limit of its own."""

    async def does(connection: Any) -> None:
        await connection.send("?")
        message = ""
        while message != END:
            try:
                message = await asyncio.wait_for(connection.recv(), 0.05)
            except TimeoutError:
                continue

    [row] = talk(does, slow)
    assert (row.outcome, row.chunks) == ("success", 3)


@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_giving_up_on_a_connection_that_is_kept(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no read follows, the request has ended when the reading did."""
    monkeypatch.setattr(websocket_session, "_PATIENCE_S", 0.1)
    kept = Kept()

    async def never(_connection: ServerConnection, _question: str) -> None: ...

    async def does(connection: Any) -> None:
        await connection.send("?")
        if how == "cancel":
            reading = asyncio.create_task(connection.recv())
            await asyncio.sleep(0)  # it has begun
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        else:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await connection.recv()
        assert len(await auntil(lambda: kept.rows)) == 1  # though the connection is still open

    [row] = talk(does, never, sinks=(kept,))
    assert row.outcome == {"timeout": "timeout", "cancel": "cancelled"}[how]
    assert row.e2e_s < 0.3


def test_a_reader_that_waits_before_anybody_asks() -> None:
    """One task reads, another asks: the wait begins with the question."""

    async def does(connection: Any) -> None:
        reader = asyncio.create_task(read(connection))
        await aspend(0.1)
        await connection.send("?")
        await reader

    def check(row: Row) -> None:
        near(row.ttft_s, 0.2)
        assert (row.stages.render or 0) < 50_000_000

    row = settled(lambda: talk(does, slow, opened=False)[0], check)
    assert (row.outcome, row.chunks) == ("success", 3)


def test_a_slow_and_late_reader() -> None:
    """What the consumer does between two reads is its own time."""

    async def does(connection: Any) -> None:
        await connection.send("?")
        await aspend(0.1)
        async for message in connection:
            if message == END:
                break
            await aspend(0.05)

    def check(row: Row) -> None:
        near((row.stages.render or 0) / 1e9, 0.2)
        assert (row.stages.decode or 0) < 20_000_000

    settled(lambda: talk(does)[0], check)


def test_two_readers_at_once() -> None:
    """The library refuses the second; the first reads on."""

    async def does(connection: Any) -> None:
        await connection.send("?")
        reader = asyncio.create_task(read(connection))
        await asyncio.sleep(0)  # it has begun
        with pytest.raises(ConcurrencyError):
            await connection.recv()
        assert await reader == ["one", "two", END]

    [row] = talk(does, slow)
    assert (row.outcome, row.chunks) == ("success", 3)


def test_an_answer_while_the_question_is_still_being_sent() -> None:
    """A server may respond before all of a question is there."""

    async def does(connection: Any) -> None:
        async def question() -> Any:
            yield "a long "
            yield "question"

        reader = asyncio.create_task(read(connection))
        await connection.send(question())
        await reader

    [row] = talk(does)
    assert (row.outcome, row.chunks) == ("success", 3)


def test_a_connection_that_is_released() -> None:
    """It is not closed, and cannot be read any more: that ends the row."""

    class Connection:
        """Stands for one that keeps no socket and no thread alive."""

        async def send(self, message: str) -> None: ...
        async def recv(self) -> str:
            return "one"

    async def main() -> None:
        connection = Connection()
        connection.protocol = type(
            "Protocol", (), {"uri": type("Uri", (), {"host": "x", "port": 1})}
        )
        protocol = websocket_session.Protocol(lambda *_: 1, done=lambda _: False)
        websocket_connection.look_at(
            connection, partial(websocket_session.Conversation, protocol, {}, {})
        )
        await connection.send("?")
        await connection.recv()

    with capture() as rows:
        asyncio.run(main())
    assert [row.outcome for row in rows] == ["cancelled"]


# --- in a decorated function ---------------------------------------------------------------------


def test_a_decorated_function() -> None:
    """The question joins the function's row, and what it sends along leads to that row."""
    sent: list[dict[str, str]] = []

    async def answers(connection: ServerConnection, question: str) -> None:
        sent.append(json.loads(question))
        await three(connection, question)

    @llmtrace.trace(route="chat", model="tiny")
    async def chat(connection: Any) -> Any:
        await connection.send(json.dumps({"text": "hi", **trace_headers()}))
        async for message in connection:
            if message == END:
                return
            yield message

    async def does(connection: Any) -> None:
        assert [message async for message in chat(connection)] == ["one", "two"]
        assert [message async for message in chat(connection)] == ["one", "two"]

    rows = talk(does, answers, opened=False)
    assert [(row.route, row.model, row.outcome, row.chunks) for row in rows] == [
        ("chat", "tiny", "success", 3)
    ] * 2
    for row, question in zip(rows, sent, strict=True):
        assert question["traceparent"] == f"00-{row.trace_id}-{row.span_id}-01"
        assert question["x-request-id"] == row.request_id


def test_a_connection_opened_in_a_decorated_function(address: str) -> None:
    """Its phases are the row's, and the handshake carries the row's trace context."""

    @llmtrace.trace(route="chat")
    async def chat() -> Any:
        async with websocket.wrap(connect(address), classify=classify_message) as connection:
            headers.update(connection.request.headers)
            await aspend(0.05)
            await connection.send('{"ending": "success"}')
            async for message in connection:
                if "finish_reason" in message:
                    break
            await aspend(0.05)

    headers = Headers()
    with capture() as rows:
        asyncio.run(chat())
    [row] = rows
    network = row.timeline.network
    assert (row.outcome, row.route) == ("success", "chat")
    assert (network.handshake or 0) > 0
    assert (row.timeline.client or 0) >= 45_000_000
    assert (row.stages.render or 0) >= 45_000_000
    assert headers["traceparent"] == f"00-{row.trace_id}-{row.span_id}-01"
    assert headers["X-Request-Id"] == row.request_id


def test_a_function_that_cannot_connect() -> None:
    """One row, of the function's; it may retry, and then that counts."""

    @llmtrace.trace
    async def chat(url: str) -> None:
        with pytest.raises(InvalidStatus):
            await websocket.wrap(connect(f"{url}refused"), classify=classify_message)
        async with websocket.wrap(connect(url), classify=classify_message) as connection:
            await connection.send('{"ending": "empty"}')
            await connection.recv()

    with servers.websocket() as url, capture() as rows:
        asyncio.run(chat(url))
    [row] = rows
    assert (row.outcome, row.attempts, row.http_status) == ("success", 2, 101)
    assert row.stages.sources["gateway"] == "client"


def test_two_connections_of_one_function(address: str) -> None:
    """Each question is a request, inside the function's span."""

    @llmtrace.trace
    async def chat(other: Any) -> None:
        async with websocket.wrap(connect(address), classify=classify_message) as connection:
            for used in (other, connection):
                await used.send('{"ending": "empty"}')
                await used.recv()

    async def main() -> None:
        async with connect(address) as other:
            await chat(websocket.wrap(other, classify=classify_message))

    with capture() as rows:
        asyncio.run(main())
    first, second = rows
    assert first.parent_span_id is not None
    assert first.parent_span_id == second.parent_span_id
    assert [row.outcome for row in rows] == ["success", "success"]
    assert all(row.timeline.network.handshake == 0 for row in rows)
    assert all(row.stages.total == row.e2e_ns for row in rows)


@pytest.mark.parametrize("ending", ["return", "raise"])
def test_a_function_that_ends_before_its_answer(ending: str) -> None:
    """It has left the response, unless it says itself that something went wrong."""

    @llmtrace.trace
    async def chat(connection: Any) -> None:
        await connection.send("?")
        await connection.recv()
        if ending == "raise":
            raise LookupError

    async def does(connection: Any) -> None:
        with suppress(LookupError):
            await chat(connection)
        if ending == "return":
            await read(connection)  # the rest of the response belongs to no request

    [row] = talk(does)
    assert row.outcome == {"return": "success", "raise": "error"}[ending]


def test_a_generator_that_ends_before_its_answer() -> None:
    """The consumer has left it."""

    @llmtrace.trace
    async def chat(connection: Any) -> Any:
        await connection.send("?")
        yield await connection.recv()

    async def does(connection: Any) -> None:
        assert [message async for message in chat(connection)] == ["one"]

    [row] = talk(does)
    assert (row.outcome, row.chunks) == ("cancelled", 1)


# --- the connection itself -----------------------------------------------------------------------


def test_the_connection_is_the_same_object() -> None:
    """It is of its class, and all it can do it does."""

    async def does(connection: Any) -> None:
        assert isinstance(connection, ClientConnection)
        assert repr(type(connection)) == repr(ClientConnection)
        assert websocket.wrap(connection, done=last) is connection
        await (await connection.ping())
        await ask(connection)
        await connection.close(1000, "bye")
        assert (connection.close_code, connection.close_reason) == (1000, "bye")

    assert len(talk(does)) == 1


def test_the_callers_own_headers_stay(address: str) -> None:
    """What the application sends along wins over what we would."""

    async def main() -> None:
        own = [("traceparent", "00-" + "1" * 32 + "-" + "2" * 16 + "-01"), ("X-Key", "a")]
        opens = connect(address, additional_headers=own)
        async with websocket.wrap(opens, classify=classify_message) as connection:
            headers = connection.request.headers
            assert headers.get_all("traceparent") == [own[0][1]]
            assert headers["x-key"] == "a"
            assert "x-request-id" in headers

    with capture():
        asyncio.run(main())


def test_nothing_is_done_without_init(address: str) -> None:
    """The connection is left alone."""

    async def main() -> None:
        opens = connect(address)
        assert websocket.wrap(opens, done=last) is opens
        assert type(opens) is connect

    asyncio.run(main())


def test_shutdown_in_between() -> None:
    """A connection that outlives llmtrace goes on as it would without."""
    before = []

    async def does(connection: Any) -> None:
        await ask(connection)
        before.append(llmtrace.runtime.runtime.capture(None))
        try:
            assert await ask(connection) == ["one", "two", END]
        finally:
            llmtrace.runtime.runtime.capture(before.pop())

    assert len(talk(does)) == 1


def test_a_warning_is_the_callers(address: str) -> None:
    """The library warns of how a connection was opened in the name of the code that opened it."""
    with capture():
        connection = websocket.wrap(connect_sync(address), classify=classify_message)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                connection.send('{"ending": "success"}')
                connection.recv()
        finally:
            connection.close()
    assert [warning.filename for warning in caught] in ([], [__file__])


def test_what_goes_wrong_inside_does_no_harm(faulty: None) -> None:
    """A function of the application's that raises is counted; the messages come all the same."""
    del faulty

    def broken(_: str) -> bool:
        raise LookupError

    async def does(connection: Any) -> None:
        assert await ask(connection) == ["one", "two", END]

    [row] = talk(does, done=broken)
    assert row.outcome == "cancelled"
    assert internal_errors()["websocket"] == 3
    assert talk(does, asks=broken, done=last) == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"done": "end"},
        {"done": 5},
        {"asks": "?"},
        {"classify": {}},
        {"asks": len},
        {"model": 5},
        {"other": object()},
    ],
)
def test_wrong_arguments(arguments: dict[str, Any]) -> None:
    """They are found when the connection is wrapped; the message says where."""
    with capture(), pytest.raises(ConfigError, match=r"llmtrace\.websocket\.wrap"):
        websocket.wrap(connect("ws://127.0.0.1:1/"), **arguments)


@pytest.mark.parametrize("wrong", [object(), "ws://127.0.0.1/", connect, iter(())])
def test_what_is_no_connection(wrong: Any) -> None:
    """The message says what else there is, whether or not anything is recorded."""
    with pytest.raises(ConfigError, match=r"llmtrace\.wrap"):
        websocket.wrap(wrong, done=last)
    with capture(), pytest.raises(ConfigError, match=r"llmtrace\.wrap"):
        websocket.wrap(wrong, done=last)


def test_threads_that_ask_and_read(address: str) -> None:
    """One thread asks and another reads, for many questions on one connection."""
    count = 20
    with capture() as rows:
        opens = connect_sync(address, legacy=False)
        with websocket.wrap(opens, classify=classify_message) as connection:
            answered = threading.Semaphore(0)

            def reads() -> None:
                for message in connection:
                    if "finish_reason" in message:
                        answered.release()

            reader = threading.Thread(target=reads)
            reader.start()
            for _ in range(count):
                connection.send('{"ending": "empty"}')
                assert answered.acquire(timeout=10)
        reader.join()
    assert [row.outcome for row in rows] == ["success"] * count
    assert all(row.stages.total == row.e2e_ns for row in rows)
    assert max(row.e2e_s for row in rows) < time.monotonic()


def test_names_are_timed_while_connecting() -> None:
    """After the last connect, name resolution is as it was."""
    plain = socket.getaddrinfo

    async def does(_: Any) -> None:
        async with websocket.wrap(connect("ws://localhost:1/"), done=last):
            raise AssertionError("connection failed")

    with suppress(OSError):
        talk(does)
    assert socket.getaddrinfo is plain
    undo = dns.install()
    try:
        wanted = socket.getaddrinfo
        with suppress(OSError):
            talk(does)
        assert socket.getaddrinfo is wanted
    finally:
        undo()
        undo()
    assert socket.getaddrinfo is plain


def test_a_long_answer_takes_no_more_room() -> None:
    """What is kept of a request does not grow with its messages."""

    async def answers(connection: ServerConnection, _question: str) -> None:
        for _ in range(3_000):
            await connection.send("word")
        await connection.send(END)

    async def does(connection: Any) -> None:
        await connection.send("?")
        for _ in range(500):
            await connection.recv()
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.take_snapshot()
            for _ in range(2_000):
                await connection.recv()
            after = tracemalloc.take_snapshot()
        finally:
            tracemalloc.stop()
        ours = tracemalloc.Filter(
            inclusive=True, filename_pattern=f"{Path(llmtrace.__file__).parent}/*"
        )
        grown = after.filter_traces([ours]).compare_to(before.filter_traces([ours]), "filename")
        assert sum(stat.size_diff for stat in grown) < 2_000
        await read(connection)

    [row] = talk(does, answers)
    assert row.chunks == 3_001
