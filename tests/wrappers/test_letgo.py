"""Can the garbage collector end a row anywhere, without a lock that waits for itself?"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import llmtrace
from llmtrace.rows import Row
from llmtrace.testing import capture
from tests.sse_server import Server

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


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def drops_stream(made: Any) -> None:
    """Leave a half-read stream in a reference cycle behind."""
    create, asked = method(made)
    stream = create(**asked, stream=True)
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


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("drops", [drops_stream, drops_generator, drops_wrapped])
def test_collected_inside_a_sink(server: Server, drops: Callable[[Any], None]) -> None:
    """A row that the collector ends while a sink holds its lock is handed on later, once."""
    pytest.importorskip("openai")
    sink = Locked()
    with capture(sinks=(sink,)), client("sync", server) as made:
        drops(made)
        assert sink.rows == []
        create, asked = method(made)
        create(**asked)
        eventually(lambda: sink.stuck or len(sink.rows) == 2)
    assert not sink.stuck
    assert [row.outcome for row in sink.rows] == ["success", "cancelled"]
