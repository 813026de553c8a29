"""`llmtrace.wrap` times any stream, and forwards everything else the stream can do."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Self

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import llmtrace
from llmtrace.testing import FakeClock, capture, fake_async_stream, fake_stream
from tests.support.internal_errors import reset_internal_errors
from tests.support.sse_server import Server

from .reading import client, method, read, recorded

MS = 1_000_000


class Stream:
    """A stream of some client llmtrace has never heard of."""

    def __init__(self, clock: FakeClock) -> None:
        self._chunks = fake_stream("abc", clock)
        self.status = 200
        self.closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        return next(self._chunks)

    def __len__(self) -> int:
        return 3

    def close(self) -> str:
        """Close, and say so."""
        self.closed = True
        return "closed"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncStream:
    """The same, to be awaited."""

    def __init__(self, clock: FakeClock) -> None:
        self._chunks = fake_async_stream("abc", clock)
        self.closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        return await anext(self._chunks)

    async def aclose(self) -> None:
        """Close."""
        self.closed = True

    def close(self) -> None:
        """Close, without being awaited."""
        self.closed = True


def test_any_stream() -> None:
    """It stands for the stream in every way, and times it."""
    clock = FakeClock()
    with capture(clock=clock) as rows:
        plain = Stream(clock)
        stream = llmtrace.wrap(plain, model="tiny", route="chat", tenant="acme", shoe_size=44)
        assert isinstance(stream, Stream)
        assert (stream.status, len(stream)) == (200, 3)
        assert list(stream) == ["a", "b", "c"]
        stream.close()
        assert plain.closed
    [row] = rows
    assert (row.outcome, row.chunks, row.ttft_ns) == ("success", 3, 10 * MS)
    assert (row.model, row.route, row.tenant) == ("tiny", "chat", "acme")
    assert row.attributes == {"shoe_size": 44}


def test_any_async_stream() -> None:
    """So it does for an async stream; a `close` that is not async stays so."""
    clock = FakeClock()

    async def main() -> None:
        plain = AsyncStream(clock)
        stream = llmtrace.wrap(plain)
        assert await anext(stream) == "a"
        assert stream.close() is None  # type: ignore[func-returns-value]
        assert plain.closed
        other = llmtrace.wrap(AsyncStream(clock))
        await other.aclose()
        whole = llmtrace.wrap(AsyncStream(clock))
        assert [chunk async for chunk in whole] == ["a", "b", "c"]

    with capture(clock=clock) as rows:
        asyncio.run(main())
    assert [row.outcome for row in rows] == ["cancelled", "cancelled", "success"]


class EitherStream(AsyncStream):
    """A stream that can be read either way, as LiteLLM's can."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self._either = Stream(clock)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        return next(self._either)


def test_a_stream_read_either_way(mode: str) -> None:
    """A stream that is both kinds of iterator is timed whichever way it is read."""
    clock = FakeClock()

    async def main(stream: Any) -> list[str]:
        return [chunk async for chunk in stream]

    with capture(clock=clock) as rows:
        stream: Any = llmtrace.wrap(EitherStream(clock))
        words = list(stream) if mode == "sync" else asyncio.run(main(stream))
        assert words == ["a", "b", "c"]
    [row] = rows
    assert (row.outcome, row.chunks, row.e2e_s) == ("success", 3, 0.03)


def test_with() -> None:
    """A stream that is a context manager is left as one."""
    clock = FakeClock()
    plain = Stream(clock)
    with capture(clock=clock) as rows, llmtrace.wrap(plain) as stream:
        assert next(stream) == "a"
        assert rows == []
    assert plain.closed
    assert [row.outcome for row in rows] == ["cancelled"]


def test_async_with() -> None:
    """So is an async one, whether or not it is a context manager of its own."""
    clock = FakeClock()

    class Entered(AsyncStream):
        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_: object) -> None:
            await self.aclose()

    async def main() -> None:
        for plain in (Entered(clock), AsyncStream(clock)):
            async with llmtrace.wrap(plain) as stream:  # type: ignore[attr-defined]
                assert await anext(stream) == "a"
            assert plain.closed

    with capture(clock=clock) as rows:
        asyncio.run(main())
    assert [row.outcome for row in rows] == ["cancelled", "cancelled"]


def test_error_of_the_consumer() -> None:
    """An error inside the block goes through and ends the row."""
    clock = FakeClock()
    error = LookupError("lost")

    def leave() -> None:
        with llmtrace.wrap(Stream(clock)):
            raise error

    with capture(clock=clock) as rows:
        with pytest.raises(LookupError) as caught:
            leave()
        assert caught.value is error
    assert [(row.outcome, row.error_type) for row in rows] == [("error", "LookupError")]


def test_async_iterable() -> None:
    """An object that only provides an async iterator is read through that."""
    clock = FakeClock()

    class Iterable:
        def __aiter__(self) -> AsyncIterator[str]:
            return fake_async_stream("abc", clock)

    async def main() -> list[str]:
        return [chunk async for chunk in llmtrace.wrap(Iterable())]

    with capture(clock=clock) as rows:
        assert asyncio.run(main()) == ["a", "b", "c"]
    assert rows[0].chunks == 3


def test_twice() -> None:
    """What is recorded already comes back as it is."""
    with capture() as rows:
        stream = llmtrace.wrap(iter("abc"))
        assert llmtrace.wrap(stream) is stream
        assert list(stream) == ["a", "b", "c"]
    assert len(rows) == 1


def test_stream_of_an_instrumented_client(mode: str, server: Server) -> None:
    """A stream that its client records already comes back as it is."""
    pytest.importorskip("openai")

    async def main() -> None:
        async with client("async", server) as made:
            create, call_options = method(made)
            stream = await create(**call_options, stream=True)
            assert llmtrace.wrap(stream) is stream
            assert [chunk async for chunk in stream]

    with capture() as rows:
        if mode == "async":
            asyncio.run(main())
        else:
            with client("sync", server) as made:
                create, call_options = method(made)
                stream = create(**call_options, stream=True)
                assert llmtrace.wrap(stream) is stream
                assert list(stream)
    assert len(rows) == 1


@pytest.mark.parametrize("wrong", [[1, 2], "text", 5, None])
def test_what_is_no_stream(wrong: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It comes back as it is, and the log says what to do: a request is no place to raise."""
    with capture() as rows, caplog.at_level("WARNING", logger="llmtrace"):
        assert llmtrace.wrap(wrong) is wrong
    assert rows == []
    assert "iter(…)" in caplog.text
    reset_internal_errors()


def test_a_label_that_cannot_be_recorded(caplog: pytest.LogCaptureFixture) -> None:
    """The stream comes back as it is; the log names the argument, and not its value."""
    plain = iter("abc")
    with capture() as rows, caplog.at_level("WARNING", logger="llmtrace"):
        assert llmtrace.wrap(plain, tenant={"key": "secret"}) is plain  # type: ignore[arg-type]
    assert rows == []
    assert "tenant" in caplog.text
    assert "secret" not in caplog.text
    reset_internal_errors()


def test_without_init() -> None:
    """Without a runtime the stream comes back as it is."""
    plain = iter("abc")
    assert llmtrace.wrap(plain) is plain


def test_dropped() -> None:
    """A proxy that is released ends its row at once, and does not close its stream."""
    clock = FakeClock()
    plain = Stream(clock)
    with capture(clock=clock) as rows:
        stream = llmtrace.wrap(plain)
        next(stream)
        del stream
        assert [row.outcome for row in rows] == ["cancelled"]
    assert not plain.closed


def test_empty_chunks_are_not_content() -> None:
    """The first chunk is the first that holds something."""
    clock = FakeClock()
    with capture(clock=clock) as rows:
        list(llmtrace.wrap(fake_stream(["", None, "a", b""], clock)))
    assert (rows[0].chunks, rows[0].ttft_ns) == (1, 30 * MS)


def test_no_events_on_spans(mode: str, server: Server) -> None:
    """Chunks are figures on the request's span, not events, of which only 128 would be kept."""
    pytest.importorskip("openai")
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    row = recorded(lambda: read(mode, server), tracer_provider=provider)
    spans = exporter.get_finished_spans()
    assert {event for span in spans for event in span.events} == set()
    ours = [span for span in spans if f"{span.context.span_id:016x}" == row.span_id]
    assert len(ours) == 1
    assert all(span.parent.span_id == ours[0].context.span_id for span in spans if span.parent)


# --- cost ----------------------------------------------------------------------------------------

ITEMS = 20_000


def _plain() -> Iterator[str]:
    for _ in range(ITEMS):
        yield "x"


async def _aplain() -> AsyncIterator[str]:
    for _ in range(ITEMS):
        yield "x"


def _cpu(act: Callable[[], Any]) -> float:
    gc.collect(0)
    began = time.process_time()
    act()
    return (time.process_time() - began) / ITEMS


_TRACED = sys.gettrace() is not None or (
    sys.version_info >= (3, 12) and sys.monitoring.get_tool(sys.monitoring.COVERAGE_ID) is not None
)


@pytest.mark.skipif(_TRACED, reason="coverage costs more than what is measured")
@pytest.mark.parametrize("is_async", [False, True])
def test_cost_of_a_decorated_generator(is_async: bool) -> None:
    """A chunk costs less than a task for each would, on the same machine at the same time."""

    async def nothing() -> None:
        pass

    async def tasks() -> None:
        for _ in range(ITEMS):
            await asyncio.create_task(nothing())

    def once(function: Callable[[], Any]) -> Callable[[], None]:
        async def main() -> None:
            async for _chunk in function():
                pass

        def act() -> None:
            if is_async:
                asyncio.run(main())
            else:
                for _chunk in function():
                    pass

        return act

    plain: Any = _aplain if is_async else _plain
    bare, traced = once(plain), once(llmtrace.trace(plain))
    with capture():
        shares = [
            (_cpu(traced) - _cpu(bare)) / _cpu(lambda: asyncio.run(tasks())) for _ in range(7)
        ]
    assert statistics.median(shares) < 0.8  # measured: 0.3 sync, 0.4 async


def test_a_copy_reads_what_is_left() -> None:
    """A wrapped iterator is copied as what it stands for is; the copy is in no row."""
    with capture() as rows:
        words = llmtrace.wrap(iter(["a", "b", "c"]))
        assert next(words) == "a"
        copies = copy.copy(words), copy.deepcopy(words), pickle.loads(pickle.dumps(words))
        assert [list(one) for one in copies] == [["b", "c"]] * 3
        assert list(words) == ["b", "c"]
        generator = llmtrace.wrap(word for word in ["a"])
        with pytest.raises(TypeError, match="generator"):
            copy.copy(generator)
        list(generator)
    assert [row.chunks for row in rows] == [3, 1]
