"""A starved client of a WebSocket is no slow server either: to 5 ms, over real sockets."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as connect_sync
from websockets.sync.server import ServerConnection, serve

from llmtrace import websocket
from llmtrace.core.row import Row
from tests.instrumentation.arrivals import (
    BLOCKED_S,
    FOR_S,
    SENT_S,
    Sent,
    arrived_by_s,
    at,
    blocked,
    exact_s,
    expect_bound,
    expect_on_time,
    lag_s,
)
from tests.instrumentation.reading import recorded, settled
from tests.support.taking_time import spend

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO is read on Linux only")

END = "[END]"
MODES = ["sync", "async", "uvloop"]


@dataclass
class Slow:
    """A server that sends a message after each wait, and the last one when the client is back."""

    url: str = ""
    waits_s: tuple[float, ...] = ()
    sent: Sent = field(default_factory=Sent)

    def answer(self, connection: ServerConnection) -> None:
        """Answer each question of a connection."""
        with suppress(ConnectionClosed):
            for _ in connection:
                self.sent.spans.clear()
                for wait_s in self.waits_s:
                    spend(wait_s)
                    self.sent.send(lambda: connection.send("word"))
                spend(FOR_S)
                connection.send(END)


@pytest.fixture(scope="module")
def slow() -> Iterator[Slow]:
    """Serve on loopback."""
    made = Slow()
    with serve(made.answer, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        made.url = f"ws://127.0.0.1:{server.socket.getsockname()[1]}/"
        yield made
        server.shutdown()
        thread.join()


def wrapped(connection: Any) -> None:
    """Have what is sent on a connection recorded."""
    websocket.wrap(
        connection,
        done=lambda message: message == END,
        classify=lambda message: None if message == END else "text",
    )


def call(mode: str, slow: Slow, *, late_s: float, block: tuple[float, float]) -> None:
    """Ask, and read the whole response.

    Args:
        mode: `sync`, `async` or `uvloop`.
        slow: the server.
        late_s: how late the consumer is.
        block: after how long the thread, or the loop, is blocked, and for how long.
    """

    async def main() -> None:
        async with connect(slow.url) as connection:
            wrapped(connection)
            if block[1]:
                asyncio.get_running_loop().call_later(block[0], spend, block[1])
            await connection.send("question")
            await asyncio.to_thread(spend, late_s)
            while await connection.recv() != END:
                pass

    if mode != "sync":
        runner = pytest.importorskip("uvloop").run if mode == "uvloop" else asyncio.run
        runner(main())
        return
    with connect_sync(slow.url) as connection, blocked(*block):
        wrapped(connection)
        connection.send("question")
        spend(late_s)
        while connection.recv() != END:
            pass


def measured(
    mode: str,
    slow: Slow,
    check: Callable[[Row], None],
    *,
    late_s: float = 0.0,
    block: tuple[float, float] = (0.0, 0.0),
) -> None:
    """Record a call until a check passes: a busy machine blocks it in other places, too."""
    settled(lambda: recorded(lambda: call(mode, slow, late_s=late_s, block=block)), check)


@pytest.mark.parametrize("mode", MODES)
def test_a_starved_client_is_not_a_slow_server(mode: str, slow: Slow) -> None:
    """The loop, or the thread, was blocked while the first message came in."""
    slow.waits_s = (SENT_S,)

    def check(row: Row) -> None:
        expect_bound(at(row, arrived_by_s(row)), slow.sent.spans[0])
        assert row.ttft_s is not None
        assert row.ttft_s > arrived_by_s(row) + (FOR_S - SENT_S) / 2
        assert abs(lag_s(row) - (row.ttft_s - arrived_by_s(row))) < exact_s()

    measured(mode, slow, check, block=(BLOCKED_S, FOR_S))


@pytest.mark.parametrize("mode", MODES)
def test_a_late_consumer_is_not_a_slow_server(mode: str, slow: Slow) -> None:
    """Who reads late learns when the first message was here at the latest."""
    slow.waits_s = (SENT_S,)

    def check(row: Row) -> None:
        expect_bound(at(row, arrived_by_s(row)), slow.sent.spans[0])
        assert lag_s(row) < exact_s()  # it is the consumer's time, in render

    measured(mode, slow, check, late_s=FOR_S)


@pytest.mark.parametrize("mode", MODES)
def test_a_later_message_that_was_noticed_late(mode: str, slow: Slow) -> None:
    """A gap in the middle of a response is split between the server and a busy client."""
    slow.waits_s = (0.0, SENT_S)

    def check(row: Row) -> None:
        assert row.last_content_ns is not None
        assert row.chunks == 2
        expect_bound(at(row, row.last_content_ns / 1e9 - lag_s(row)), slow.sent.spans[1])
        assert lag_s(row) > (FOR_S - SENT_S) / 2

    measured(mode, slow, check, block=(BLOCKED_S, FOR_S))


@pytest.mark.parametrize("mode", MODES)
def test_a_client_on_time_has_no_lag(mode: str, slow: Slow) -> None:
    """A slow server stays one."""
    slow.waits_s = (0.1, 0.1)

    def check(row: Row) -> None:
        expect_on_time(row)

    measured(mode, slow, check)
