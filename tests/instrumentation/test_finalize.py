"""The garbage collector can end a row anywhere, without a lock that waits for itself."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import httpx2
import pytest

import llmtrace
from llmtrace.core.row import Row
from llmtrace.runtime import runtime
from llmtrace.testing import FakeClock, capture, fake_stream
from tests.support.sse_server import Answer, Request, Server

from . import answers
from .reading import client, eventually, method


class Locked:
    """A sink with a lock that cannot be taken twice, in which garbage is collected."""

    every_row = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.rows: list[Row] = []
        self.stuck = False

    def write(self, row: Row) -> None:
        """Take a row, and have garbage collected meanwhile."""
        if not self._lock.acquire(timeout=2):
            self.stuck = True
            return
        try:
            gc.collect()
            self.rows.append(row)
        finally:
            self._lock.release()


def drops_stream(made: Any) -> None:
    """Leave a half-read stream in a reference cycle behind."""
    create, call_options = method(made)
    stream = create(**call_options, stream=True)
    next(stream)
    stream.itself = stream


def drops_generator(_: Any) -> None:
    """Leave a half-read decorated generator in a reference cycle behind."""
    cycle: list[Any] = []

    @llmtrace.trace
    def words() -> Iterator[Any]:
        yield cycle
        yield "never"

    reading = words()
    cycle.append(reading)
    next(reading)


def drops_wrapped(_: Any) -> None:
    """Leave a wrapped stream in a reference cycle behind."""
    stream: Any = llmtrace.wrap(iter("abc"))
    stream.itself = stream
    next(stream)


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("drops", [drops_stream, drops_generator, drops_wrapped])
def test_collected_inside_a_sink(server: Server, drops: Callable[[Any], None]) -> None:
    """A row that the collector ends while a sink holds its lock is handed on later, once."""
    pytest.importorskip("openai")
    sink = Locked()
    with capture(sinks=(sink,)), client("sync", server) as made:
        drops(made)
        assert sink.rows == []
        create, call_options = method(made)
        create(**call_options)
        eventually(lambda: sink.stuck or len(sink.rows) == 2)
    assert not sink.stuck
    assert [row.outcome for row in sink.rows] == ["success", "cancelled"]


class Slow:
    """A sink that takes its time."""

    every_row = True

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self.rows: list[Row] = []

    def write(self, row: Row) -> None:
        """Take a row, after a while."""
        self.begun.set()
        self.may_end.wait(0.2)
        self.rows.append(row)


@pytest.mark.usefixtures("no_collector")
def test_finalized_rows_are_captured() -> None:
    """Once the block of `capture` is left, rows that the collector ended are there."""
    slow = Slow()
    with capture(sinks=(slow,)) as rows:
        drops_wrapped(None)
        gc.collect()
    assert [row.outcome for row in rows] == ["cancelled"]
    assert rows == slow.rows


@pytest.mark.usefixtures("no_collector")
def test_finalized_rows_are_flushed() -> None:
    """`flush` waits for rows that the collector ended, and says if it waited in vain."""
    slow = Slow()
    llmtrace.init("test", exporters=[slow], instrument=())
    try:
        drops_wrapped(None)
        gc.collect()
        assert slow.begun.wait(10)
        assert llmtrace.flush(0.01) is False
        slow.may_end.set()
        assert llmtrace.flush(10) is True
        assert [row.outcome for row in slow.rows] == ["cancelled"]
    finally:
        slow.may_end.set()
        llmtrace.shutdown()


@pytest.mark.usefixtures("no_collector")
def test_the_time_until_collection_is_not_counted() -> None:
    """A stream that the collector finds late ended with its last read."""
    clock = FakeClock()
    with capture(clock=clock) as rows:
        stream: Any = llmtrace.wrap(fake_stream("abc", clock, gaps=0.1))
        stream.itself = stream
        next(stream)
        clock.advance(0.2)
        next(stream)
        del stream
        clock.advance(3_600)
        gc.collect()
    [row] = rows
    assert (row.outcome, row.e2e_s, row.stages.render) == ("cancelled", 0.4, 200_000_000)


@pytest.mark.usefixtures("no_collector")
def test_a_function_goes_on_after_the_collection(server: Server) -> None:
    """A decorated function ends when it returns, also if its stream was collected before."""
    clock = FakeClock()

    @llmtrace.trace
    def answer(made: Any) -> str:
        drops_stream(made)
        clock.advance(1)
        gc.collect()
        clock.advance(1)
        return "done"

    with capture(clock=clock) as rows, client("sync", server) as made:
        answer(made)
    assert [(row.outcome, row.e2e_s) for row in rows] == [("cancelled", 2)]


def test_the_time_until_the_exit_is_not_counted() -> None:
    """A stream still open at the exit ended with its last read; a running call ends now."""
    clock = FakeClock()

    @llmtrace.trace
    def answer() -> None:
        clock.advance(1)
        runtime.end_open()

    with capture(clock=clock) as rows:
        stream = llmtrace.wrap(fake_stream("abc", clock, gaps=0.1))
        next(stream)
        clock.advance(3_600)
        answer()
    assert [(row.outcome, row.e2e_s) for row in rows] == [("cancelled", 1), ("cancelled", 0.1)]


@pytest.mark.usefixtures("no_collector")
def test_an_earlier_response_that_is_collected_does_not_end_the_row(server: Server) -> None:
    """What a decorated function reads beforehand, to quote it, is not what it answers with."""
    server.play(answers.events("a document"), answers.chat())
    with capture() as rows, client("sync", server) as made, httpx.Client() as library:

        @llmtrace.trace
        def quotes() -> Any:
            with library.stream("GET", server.root) as document:
                document.read()
            document.itself = document  # type: ignore[attr-defined]
            create, call_options = method(made)
            return create(**call_options, stream=True)

        chunks = 0
        for _ in quotes():
            chunks += 1
            gc.collect()
    assert [row.outcome for row in rows] == ["success"]
    assert rows[0].chunks == len(answers.WORDS) < chunks


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_a_body_that_is_released_at_its_end_was_read(server: Server, library: Any) -> None:
    """httpx2 drops a body at once; what a decorated generator yields after it is in its row."""

    def script(_: Request, answer: Answer) -> None:
        answer.head(headers={"content-type": "text/plain"})
        answer.data(b"one\n")
        answer.data(b"two\n")

    server.play(script)

    @llmtrace.trace
    def lines() -> Iterator[str]:
        with library.Client() as sender, sender.stream("GET", server.root) as response:
            yield from response.iter_lines()
        yield "and a last word"

    with capture() as rows:
        pieces = len(list(lines()))
    assert [(row.outcome, row.error_type) for row in rows] == [("success", None)]
    assert rows[0].chunks == pieces
