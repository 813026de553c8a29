"""`@llmtrace.trace` times any function and leaves it as it was."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Self

import anyio
import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import Span, SpanProcessor, TracerProvider

import llmtrace
from llmtrace.core.errors import ConfigError
from llmtrace.core.row import Row
from llmtrace.runtime.runtime import current
from llmtrace.testing import FakeClock, capture, fake_async_stream, fake_stream
from tests.support.taking_time import forever
from tests.support.waiting import auntil

from .reading import eventually

MS = 1_000_000


@pytest.fixture
def clock() -> FakeClock:
    """Return a clock that stands still."""
    return FakeClock()


def only(rows: list[Row]) -> Row:
    """Return the only row, whose stages add up."""
    [row] = rows
    assert row.stages.total == row.e2e_ns
    return row


def each_form(clock: FakeClock) -> dict[str, Callable[[], Any]]:
    """Return functions that give the same stream in every form there is."""

    @llmtrace.trace
    def generator() -> Iterator[str]:
        clock.advance(0.1)
        yield from fake_stream("abc", clock)

    @llmtrace.trace
    def stream() -> Iterator[str]:
        clock.advance(0.1)
        return fake_stream("abc", clock)

    @llmtrace.trace
    def expression() -> Iterator[str]:
        clock.advance(0.1)
        return (chunk for chunk in fake_stream("abc", clock))

    @llmtrace.trace
    async def agenerator() -> AsyncIterator[str]:
        clock.advance(0.1)
        async for chunk in fake_async_stream("abc", clock):
            yield chunk

    @llmtrace.trace
    async def astream() -> AsyncIterator[str]:
        clock.advance(0.1)
        return fake_async_stream("abc", clock)

    @llmtrace.trace
    def later() -> AsyncIterator[str]:
        clock.advance(0.1)
        return fake_async_stream("abc", clock)

    class Bot:
        @llmtrace.trace
        def method(self) -> Iterator[str]:
            clock.advance(0.1)
            yield from fake_stream("abc", clock)

        @llmtrace.trace
        @classmethod
        def of_class(cls) -> Iterator[str]:
            clock.advance(0.1)
            return fake_stream("abc", clock)

        @staticmethod
        @llmtrace.trace(route="chat")
        def static() -> Iterator[str]:
            clock.advance(0.1)
            return fake_stream("abc", clock)

    return {
        "generator": generator,
        "stream": stream,
        "expression": expression,
        "agenerator": agenerator,
        "astream": astream,
        "later": later,
        "method": Bot().method,
        "of_class": Bot.of_class,
        "static": Bot.static,
    }


FORMS = tuple(each_form(FakeClock()))


def consume(stream: Any, each: Callable[[], None] = lambda: None) -> list[Any]:
    """Read whatever a decorated function returned, sync or async, to its end."""
    if hasattr(stream, "__iter__"):
        chunks = []
        for chunk in stream:
            chunks.append(chunk)
            each()
        return chunks

    async def main() -> list[Any]:
        source = await stream if inspect.isawaitable(stream) else stream
        chunks = []
        async for chunk in source:
            chunks.append(chunk)
            each()
        return chunks

    return asyncio.run(main())


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_one_row(clock: FakeClock, form: str) -> None:
    """Whatever gives the stream, the chunks are the same, and so is the row."""
    with capture(clock=clock) as rows:
        chunks = consume(each_form(clock)[form](), lambda: clock.advance(0.03))
    row = only(rows)
    assert chunks == ["a", "b", "c"]
    assert (row.outcome, row.chunks, row.ttft_ns) == ("success", 3, 110 * MS)
    assert (row.stages.decode, row.stages.render) == (20 * MS, 90 * MS)
    assert row.max_gap_ns == 10 * MS


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_recorded_without_init(clock: FakeClock, form: str) -> None:
    """Without a runtime, decorated functions work as if they were not."""
    assert consume(each_form(clock)[form]()) == ["a", "b", "c"]


def test_answer_of_a_coroutine(clock: FakeClock) -> None:
    """A coroutine function that returns a plain response is recorded around its await."""

    @llmtrace.trace(route="ask", model="tiny", shoe_size=44)
    async def ask() -> str:
        clock.advance(0.2)
        return "answer"

    with capture(clock=clock) as rows:
        assert asyncio.run(ask()) == "answer"
    row = only(rows)
    assert (row.outcome, row.e2e_ns, row.ttft_ns, row.stream) == ("success", 200 * MS, None, False)
    assert (row.route, row.model, row.attributes["shoe_size"]) == ("ask", "tiny", 44)


def test_answer_of_a_function(clock: FakeClock) -> None:
    """A function that returns a plain response is recorded around its call."""

    @llmtrace.trace
    def ask() -> dict[str, int]:
        clock.advance(0.2)
        return {"a": 1}

    with capture(clock=clock) as rows:
        assert ask() == {"a": 1}
    assert only(rows).e2e_ns == 200 * MS


def test_kinds_of_functions_stay(clock: FakeClock) -> None:
    """Frameworks that check the kind of a function get the same result as before."""
    forms = each_form(clock)
    assert inspect.isgeneratorfunction(forms["generator"])
    assert inspect.isgeneratorfunction(forms["method"])
    assert inspect.isasyncgenfunction(forms["agenerator"])
    assert inspect.iscoroutinefunction(forms["astream"])
    assert not inspect.isgeneratorfunction(forms["stream"])
    assert forms["generator"].__name__ == "generator"
    with capture(clock=clock):
        assert inspect.isgenerator(forms["generator"]())
        assert inspect.isgenerator(forms["expression"]())
        assert inspect.isasyncgen(forms["agenerator"]())


def test_special_methods_of_what_is_returned() -> None:
    """What a function returns can still be measured, awaited, called and converted to bool."""

    class Answer:
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            return

        def __bool__(self) -> bool:
            return False

        def __len__(self) -> int:
            return 7

        def __await__(self) -> Iterator[Any]:
            yield from asyncio.sleep(0).__await__()
            return "awaited"

    @llmtrace.trace
    def ask() -> Answer:
        return Answer()

    async def main() -> Any:
        return await ask()  # type: ignore[misc]

    with capture() as rows:
        answer = ask()
        assert not answer
        assert len(answer) == 7
        assert isinstance(answer, Answer)
        del answer
        assert asyncio.run(main()) == "awaited"
        gc.collect()
    eventually(lambda: len(rows) == 2)
    assert [row.outcome for row in rows] == ["success", "success"]


def test_what_is_proxied_can_be_called_and_keeps_what_it_returns() -> None:
    """A context manager is a decorator, too, and `close` may return something."""

    @llmtrace.trace
    @contextlib.contextmanager
    def block() -> Iterator[int]:
        yield 1

    class Stream(Iterator[str]):
        def __next__(self) -> str:
            raise StopIteration

        def __call__(self) -> str:
            return "called"

        def __or__(self, other: int) -> int:
            return other

        def close(self) -> str:
            return "closed"

    with capture():
        assert block()(lambda: 2)() == 2
        stream = llmtrace.trace(lambda: Stream())()  # noqa: PLW0108 - a class is no function
        assert (stream(), stream | 3, stream.close()) == ("called", 3, "closed")


def test_a_stream_that_is_no_iterator_itself(clock: FakeClock) -> None:
    """It has to be closed, and has no length: botocore's event streams. A list is an answer."""

    class Stream:
        def __iter__(self) -> Iterator[str]:
            for word in ("a ", "word"):
                clock.advance(1.0)
                yield word

        def close(self) -> None:
            return

    with capture(clock=clock) as rows:
        stream = llmtrace.trace(lambda: Stream())()  # noqa: PLW0108 - a class is no function
        assert "".join(stream) == "a word"
        assert llmtrace.trace(lambda: [1])() == [1]
    streamed, whole = rows
    assert (streamed.ttft_s, streamed.e2e_s, streamed.chunks) == (1.0, 2.0, 2)
    assert (whole.chunks, whole.stream) == (0, False)


def test_what_generators_can_do() -> None:
    """Values sent in, errors thrown in, the returned value and closing all go through."""

    @llmtrace.trace
    def talk() -> Any:
        heard = yield "say"
        try:
            yield f"heard {heard}"
        except LookupError as error:
            yield f"caught {error}"
        return "done"

    with capture() as rows:
        talking = talk()
        assert next(talking) == "say"
        assert talking.send("hello") == "heard hello"
        assert talking.throw(LookupError("oops")) == "caught oops"
        with pytest.raises(StopIteration) as stopped:
            next(talking)
    assert stopped.value.value == "done"
    assert only(rows).chunks == 3


def test_what_async_generators_can_do() -> None:
    """The same holds for async generators."""

    @llmtrace.trace
    async def talk() -> Any:
        heard = yield "say"
        try:
            yield f"heard {heard}"
        except LookupError as error:
            yield f"caught {error}"

    async def main() -> None:
        talking = talk()
        assert await anext(talking) == "say"
        assert await talking.asend("hello") == "heard hello"
        assert await talking.athrow(LookupError("oops")) == "caught oops"
        with pytest.raises(StopAsyncIteration):
            await anext(talking)

    with capture() as rows:
        asyncio.run(main())
    assert only(rows).chunks == 3


def test_errors_go_through(clock: FakeClock) -> None:
    """The very exception comes out, and ends the row."""
    error = LookupError("lost")

    @llmtrace.trace
    def breaks() -> Iterator[str]:
        yield from fake_stream("ab", clock, error=error)

    @llmtrace.trace
    async def abreaks() -> AsyncIterator[str]:
        async for chunk in fake_async_stream("ab", clock, error=error):
            yield chunk

    @llmtrace.trace
    def fails() -> None:
        raise error

    @llmtrace.trace
    async def afails() -> None:
        raise error

    with capture(clock=clock) as rows:
        for act in (
            lambda: consume(breaks()),
            lambda: consume(abreaks()),
            fails,
            lambda: asyncio.run(afails()),
        ):
            with pytest.raises(LookupError) as caught:
                act()
            assert caught.value is error
            assert caught.value.__context__ is None
    assert [row.outcome for row in rows] == ["error"] * 4
    assert {row.error_type for row in rows} == {"LookupError"}
    assert [row.chunks for row in rows] == [2, 2, 0, 0]


def test_break_and_release_of_a_generator(clock: FakeClock) -> None:
    """A generator that is dropped is closed at once, and so is its row."""
    closed = []

    @llmtrace.trace
    def stream() -> Iterator[str]:
        try:
            yield from fake_stream("abc", clock)
        finally:
            closed.append(clock())

    with capture(clock=clock) as rows:
        for _chunk in stream():
            break
        assert closed == [10 * MS]
        assert len(rows) == 1
    assert (only(rows).outcome, only(rows).chunks) == ("cancelled", 1)


def test_break_and_release_of_an_async_generator(clock: FakeClock) -> None:
    """The loop closes a dropped async generator, in its own task, without a complaint."""
    closed: list[bool] = []
    complaints: list[Any] = []

    @llmtrace.trace
    async def stream() -> AsyncIterator[str]:
        try:
            async for chunk in fake_async_stream("abc", clock):
                yield chunk
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, it: complaints.append(it))
        async for _chunk in stream():
            break
        gc.collect()
        assert await auntil(lambda: closed) == [True]

    with capture(clock=clock) as rows:
        asyncio.run(main())
    assert complaints == []
    assert (only(rows).outcome, only(rows).chunks) == ("cancelled", 1)


async def _stalls() -> AsyncIterator[str]:
    yield "one"
    await forever()


def test_timeout_inside_an_async_generator() -> None:
    """`asyncio.timeout` around the yields of a decorated generator still fires."""

    @llmtrace.trace
    async def stream() -> AsyncIterator[str]:
        async with asyncio.timeout(0.05):
            async for chunk in _stalls():
                yield chunk

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async for _chunk in stream():
                pass

    with capture() as rows:
        asyncio.run(main())
    assert (only(rows).outcome, only(rows).error_type) == ("timeout", "TimeoutError")


def test_cancel_scope_inside_an_async_generator() -> None:
    """So does anyio's scope, which must be left by the task that entered it."""

    @llmtrace.trace
    async def stream() -> AsyncIterator[str]:
        with anyio.move_on_after(0.05):
            async for chunk in _stalls():
                yield chunk
        yield "moved on"

    async def main() -> list[str]:
        return [chunk async for chunk in stream()]

    with capture() as rows:
        assert asyncio.run(main()) == ["one", "moved on"]
    assert (only(rows).outcome, only(rows).chunks) == ("success", 2)


@pytest.mark.parametrize("how", ["task", "timeout", "scope"])
def test_cancelled_from_outside(how: str) -> None:
    """A decorated stream is cancelled like any other, and knows a timeout from a cancellation."""

    @llmtrace.trace
    async def stream() -> AsyncIterator[str]:
        async for chunk in _stalls():
            yield chunk

    async def read(began: asyncio.Event) -> None:
        async for _chunk in stream():
            began.set()

    async def main() -> None:
        began = asyncio.Event()
        if how == "task":
            task = asyncio.create_task(read(began))
            await began.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        elif how == "timeout":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await read(began)
        else:
            with anyio.move_on_after(0.05):
                await read(began)

    with capture() as rows:
        asyncio.run(main())
    assert only(rows).outcome == ("cancelled" if how == "task" else "timeout")


@pytest.mark.parametrize("how", ["task", "timeout"])
def test_cancelled_coroutine(how: str) -> None:
    """The same holds for a coroutine that has no stream yet."""

    @llmtrace.trace
    async def ask() -> None:
        await forever()

    async def in_time() -> None:
        async with asyncio.timeout(0.05):
            await ask()

    async def main() -> None:
        if how == "timeout":
            with pytest.raises(TimeoutError):
                await in_time()
            return
        task = asyncio.create_task(ask())
        await asyncio.sleep(0)  # it has begun
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with capture() as rows:
        asyncio.run(main())
    assert only(rows).outcome == ("cancelled" if how == "task" else "timeout")


# --- context -------------------------------------------------------------------------------------

BAG: contextvars.ContextVar[str] = contextvars.ContextVar("bag", default="empty")


@pytest.mark.parametrize("form", FORMS)
def test_the_consumer_sees_nothing_of_ours(clock: FakeClock, form: str) -> None:
    """Between chunks neither our recording nor our span is current, and nothing stays behind."""
    provider = TracerProvider()
    seen = []

    def look() -> None:
        seen.append((current.get(), otel.get_current_span()))

    with capture(clock=clock, tracer_provider=provider):
        stream = each_form(clock)[form]()
        look()
        consume(stream, look)
        look()
    assert {span for _, span in seen} == {otel.INVALID_SPAN}
    assert {recording for recording, _ in seen} == {None}


def test_the_function_sees_its_own_request(clock: FakeClock) -> None:
    """Inside, spans are children of the request's, from the first chunk to the last."""
    tracer = TracerProvider().get_tracer("app")
    inside = []

    @llmtrace.trace
    def stream() -> Iterator[str]:
        for chunk in fake_stream("abc", clock):
            inside.append(otel.get_current_span().get_span_context().span_id)
            yield chunk

    with (
        capture(clock=clock, tracer_provider=TracerProvider()) as rows,
        tracer.start_as_current_span("consumer") as outside,
    ):
        for _chunk in stream():
            assert otel.get_current_span() is outside
    assert inside == [int(only(rows).span_id, 16)] * 3
    assert only(rows).parent_span_id == f"{outside.get_span_context().span_id:016x}"


@pytest.mark.parametrize("ends", ["read", "close", "drop"])
def test_spans_of_the_function_stay_its_own(clock: FakeClock, ends: str) -> None:
    """A span that a generator holds open is current inside at every step, and never outside."""
    tracer = TracerProvider().get_tracer("app")
    inside = []

    @llmtrace.trace
    def stream() -> Iterator[str]:
        with tracer.start_as_current_span("work") as work:
            for chunk in fake_stream("abc", clock):
                inside.append(otel.get_current_span() is work)
                yield chunk

    with (
        capture(clock=clock, tracer_provider=TracerProvider()),
        tracer.start_as_current_span("consumer") as outside,
    ):
        reading = stream()
        for number, _chunk in enumerate(reading):
            assert otel.get_current_span() is outside
            if number == 1 and ends != "read":
                break
        if ends == "close":
            reading.close()  # type: ignore[attr-defined]
        del reading
        assert otel.get_current_span() is outside
    assert inside == [True] * (3 if ends == "read" else 2)


def test_context_variables_are_the_consumers(clock: FakeClock) -> None:
    """What a generator sets in the context reaches its consumer, as without a decorator."""

    @llmtrace.trace
    def stream() -> Iterator[str]:
        BAG.set("full")
        yield BAG.get()

    def check() -> None:
        with capture(clock=clock):
            assert list(stream()) == ["full"]
        assert BAG.get() == "full"

    contextvars.copy_context().run(check)


def test_steps_in_other_contexts(clock: FakeClock) -> None:
    """Each read may come from a context of its own, as in a thread pool."""

    @llmtrace.trace
    def stream() -> Iterator[str]:
        yield from fake_stream("abc", clock)

    with capture(clock=clock, tracer_provider=TracerProvider()) as rows:
        reading = stream()
        chunks = [contextvars.copy_context().run(next, reading, None) for _ in range(4)]
    assert chunks == ["a", "b", "c", None]
    assert only(rows).outcome == "success"


# --- context managers ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [False, True])
def test_context_managers(clock: FakeClock, is_async: bool) -> None:
    """A function that returns a context manager is recorded from the call to the exit."""

    @llmtrace.trace
    @contextlib.contextmanager
    def opened() -> Iterator[Iterator[str]]:
        clock.advance(0.1)
        yield fake_stream("abc", clock)
        clock.advance(0.5)

    @llmtrace.trace
    @contextlib.asynccontextmanager
    async def aopened() -> AsyncIterator[AsyncIterator[str]]:
        clock.advance(0.1)
        yield fake_async_stream("abc", clock)
        clock.advance(0.5)

    async def main() -> list[str]:
        manager = aopened()
        clock.advance(0.04)
        async with manager as stream:
            return [chunk async for chunk in stream]

    with capture(clock=clock) as rows:
        if is_async:
            assert asyncio.run(main()) == ["a", "b", "c"]
        else:
            manager = opened()
            clock.advance(0.04)
            with manager as stream:
                assert list(stream) == ["a", "b", "c"]
    row = only(rows)
    assert (row.outcome, row.chunks, row.ttft_ns) == ("success", 3, 150 * MS)
    assert row.stages.render == 40 * MS


@pytest.mark.parametrize("is_async", [False, True])
def test_context_managers_that_fail(clock: FakeClock, is_async: bool) -> None:
    """An error on entering, or in the block, is the manager's to see, and ends the row."""
    error = LookupError("lost")
    seen: list[BaseException] = []

    @contextlib.contextmanager
    def plain(fails: bool) -> Iterator[None]:
        if fails:
            raise error
        try:
            yield
        except LookupError as inside:
            seen.append(inside)
            raise

    @contextlib.asynccontextmanager
    async def aplain(fails: bool) -> AsyncIterator[None]:
        with plain(fails):
            yield

    async def main(fails: bool) -> None:
        async with llmtrace.trace(aplain)(fails):
            raise error

    def act(fails: bool) -> None:
        if is_async:
            asyncio.run(main(fails))
        with llmtrace.trace(plain)(fails):
            raise error

    with capture(clock=clock) as rows:
        for fails in (True, False):
            with pytest.raises(LookupError) as caught:
                act(fails)
            assert caught.value is error
    assert [row.outcome for row in rows] == ["error", "error"]
    assert seen == [error]


def test_span_of_a_context_manager(clock: FakeClock) -> None:
    """A span that a manager makes current is current in its block, and gone after it."""
    tracer = TracerProvider().get_tracer("app")

    @llmtrace.trace
    @contextlib.contextmanager
    def opened() -> Iterator[otel.Span]:
        with tracer.start_as_current_span("work") as work:
            yield work

    with capture(clock=clock, tracer_provider=TracerProvider()):
        with opened() as work:
            assert otel.get_current_span() is work
        assert otel.get_current_span() is otel.INVALID_SPAN


def test_leaving_a_block_early(clock: FakeClock) -> None:
    """Leaving the block of a stream half read ends its row."""

    @llmtrace.trace
    @contextlib.contextmanager
    def opened() -> Iterator[Iterator[str]]:
        yield fake_stream("abc", clock)

    with capture(clock=clock) as rows, opened() as stream:
        assert next(stream) == "a"
    assert only(rows).outcome == "cancelled"


# --- setup ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [7, "text", type("Class", (), {})])
def test_what_cannot_be_decorated(wrong: Any) -> None:
    """It says so at once."""
    with pytest.raises(ConfigError, match="decorates functions"):
        llmtrace.trace(wrong)


def test_what_cannot_be_recorded() -> None:
    """It says so at decoration, and what to do."""
    with pytest.raises(ConfigError, match=r"user must be .* not list; leave it out"):
        llmtrace.trace(user=[])  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="route must be a string, not int"):
        llmtrace.trace(route=5)  # type: ignore[call-overload]


def test_nested_functions(clock: FakeClock) -> None:
    """Of a decorated function inside another the inner one makes the row."""

    @llmtrace.trace(route="inner")
    def inner() -> str:
        return "in"

    @llmtrace.trace(route="outer")
    def outer() -> Iterator[str]:
        yield inner()

    with capture(clock=clock) as rows:
        assert list(outer()) == ["in"]
    assert [(row.route, row.nested) for row in rows] == [("inner", False)]


def test_concurrent_calls_do_not_mix(clock: FakeClock) -> None:
    """Calls in tasks of their own are distinguished."""

    @llmtrace.trace
    async def ask(number: int) -> int:
        for _ in range(3 - number):  # the last one is done first
            await asyncio.sleep(0)
        llmtrace.annotate(number=number)
        return number

    async def main() -> list[int]:
        return await asyncio.gather(*(ask(number) for number in range(3)))

    with capture(clock=clock) as rows:
        assert asyncio.run(main()) == [0, 1, 2]
    assert [row.attributes["number"] for row in rows] == [2, 1, 0]


def test_torn_down_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    """A read that is thrown away in another context leaves quietly."""
    hangs: asyncio.Future[None]

    @llmtrace.trace
    async def stream() -> AsyncIterator[str]:
        await hangs
        yield "never"

    loop = asyncio.new_event_loop()
    hangs = loop.create_future()
    loop.close()
    with capture(tracer_provider=TracerProvider()) as rows:
        reading: Any = stream()
        step: Any = reading.__anext__()
        contextvars.copy_context().run(step.send, None)
        with pytest.raises(GeneratorExit):
            step.throw(GeneratorExit)
        del step, reading
        gc.collect()
    eventually(lambda: rows)
    assert only(rows).outcome == "cancelled"
    assert caplog.records == []


def test_a_call_whose_arguments_do_not_fit_begins_no_span() -> None:
    """Nothing would end it: the coroutine never comes to be."""
    begun = []

    class Begun(SpanProcessor):
        def on_start(self, span: Span, parent_context: Any = None) -> None:
            begun.append(span)

    provider = TracerProvider()
    provider.add_span_processor(Begun())

    @llmtrace.trace
    async def ask(question: str) -> str:
        return question

    with capture(tracer_provider=provider):
        with pytest.raises(TypeError, match="made_up"):
            asyncio.run(ask(made_up=1))  # type: ignore[call-arg]
        assert asyncio.run(ask("x")) == "x"
    provider.shutdown()

    assert len(begun) >= 1
    assert [span for span in begun if span.end_time is None] == []


def served(endpoint: Any) -> list[bytes]:
    """Return the body of the response that Starlette sends from an endpoint, in its pieces."""
    applications = pytest.importorskip("starlette.applications")
    routing = pytest.importorskip("starlette.routing")
    app = applications.Starlette(routes=[routing.Route("/", endpoint)])
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
    sent: list[bytes] = []

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    asyncio.run(app({**scope, "root_path": "", "client": None}, receive, send))
    return list(filter(None, sent))


@pytest.mark.parametrize("as_async", [True, False])
@pytest.mark.parametrize("turn", [True, False])
def test_an_endpoint_that_returns_a_streaming_response(
    clock: FakeClock, *, as_async: bool, turn: bool
) -> None:
    """It is recorded until its body is sent, with the requests made meanwhile."""
    responses = pytest.importorskip("starlette.responses")

    def words() -> Iterator[str]:
        stream = fake_stream("ab", clock, gaps=0.5)
        for word in llmtrace.wrap(stream, route="inside") if turn else stream:
            yield f"data: {word}\n\n"

    async def awords() -> AsyncIterator[str]:
        for word in words():
            yield word

    decorated: Any = llmtrace.turn("chat") if turn else llmtrace.trace(route="chat")

    @decorated
    async def endpoint(_request: Any) -> Any:
        clock.advance(1)
        return responses.StreamingResponse(awords() if as_async else words())

    with capture(clock=clock) as rows:
        assert served(endpoint) == [b"data: a\n\n", b"data: b\n\n"]
    row = rows[-1]
    assert (row.outcome, row.e2e_s, row.ttft_s) == ("success", 2.0, 1.5)
    if turn:
        assert (row.agent, len(row.parts), len(rows)) == ("chat", 1, 2)
    assert row.route == (None if turn else "chat")


@pytest.mark.parametrize("decorated", [llmtrace.turn("chat"), llmtrace.trace(route="chat")])
def test_a_streaming_response_that_fails(decorated: Any) -> None:
    """What its body raises ends the row, and goes on."""
    responses = pytest.importorskip("starlette.responses")

    async def words() -> AsyncIterator[str]:
        yield "a"
        raise ValueError

    @decorated
    async def endpoint(_request: Any) -> Any:
        return responses.StreamingResponse(words())

    with capture() as rows, pytest.raises(BaseException):  # noqa: B017 - or a group of it
        served(endpoint)
    assert (only(rows).outcome, only(rows).error_type) == ("error", "ValueError")
