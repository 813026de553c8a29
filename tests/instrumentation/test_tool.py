"""`@llmtrace.tool` leaves a function as it was, and makes a span of each call."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import llmtrace
from llmtrace.core.content import ARGUMENTS, RESULT, ContentPolicy
from llmtrace.core.errors import ConfigError
from llmtrace.core.failopen import internal_errors
from llmtrace.testing import FakeClock, capture, fake_stream
from tests.support.sse_server import Server

from .reading import client, eventually, method
from .scopes import Spans, turn_of, watched

MS = 1_000_000


@pytest.fixture
def clock() -> FakeClock:
    """Return a clock that stands still."""
    return FakeClock()


@pytest.fixture
def exported() -> InMemorySpanExporter:
    """Keep what the application's provider exports."""
    return InMemorySpanExporter()


@pytest.fixture
def provider(exported: InMemorySpanExporter) -> Iterator[TracerProvider]:
    """Make an application's own provider."""
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(exported))
    yield made
    made.shutdown()


# --- the span -----------------------------------------------------------------------------------


def test_a_call_is_a_span(clock: FakeClock) -> None:
    """It has OpenTelemetry's name and attributes, lies in its turn, and is as long as the call."""

    @llmtrace.tool(unit="C", route="weather")
    def weather(city: str, tool_call_id: str = "") -> float:
        clock.advance(1.5)
        llmtrace.annotate(cached=False, tenant="acme")
        return len(city) / 2

    turn_ = llmtrace.turn("trip", session="s-1")
    with watched(clock=clock, labels={"region": "eu"}) as (rows, spans), turn_:
        clock.advance(0.25)
        assert weather("Paris", tool_call_id="call_1") == 2.5
    turn = turn_of(rows)
    [span] = spans.all

    assert (span.name, span.kind, span.service, span.error) == (
        "execute_tool weather", "internal", "test", None,
    )  # fmt: skip
    assert (span.trace_id, span.parent_span_id) == (turn.trace_id, turn.span_id)
    assert span.duration_ns == 1_500 * MS
    assert span.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "weather",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "call_1",
        "gen_ai.agent.name": "trip",
        "gen_ai.conversation.id": "s-1",
        "session.id": "s-1",
        "llmtrace.outcome": "success",
        "llmtrace.route": "weather",
        "llmtrace.tenant": "acme",
        "llmtrace.region": "eu",
        "llmtrace.tool.round": 0,
        "unit": "C",
        "cached": False,
    }


def test_arguments_and_results_are_not_recorded() -> None:
    """By default no argument or result of a tool is on its span or in the row."""

    @llmtrace.tool
    def log_in(password: str) -> dict[str, str]:
        return {"token": password[::-1]}

    with watched() as (rows, spans), llmtrace.turn("trip"):
        log_in("hunter2-password")

    everything = repr((rows, spans.all))
    assert "hunter2" not in everything
    assert "2retnuh" not in everything


def test_arguments_and_results_if_asked_for() -> None:
    """As JSON, by name, redacted and within the limit; a method's own object is none."""

    class Bot:
        @llmtrace.tool
        def search(self, query: str, *more: str, most: int = 3, **options: Any) -> list[str]:
            return [query, *more][:most]

    policy = ContentPolicy(redact=lambda text: text.replace("hunter2", "[secret]"))
    with watched(content=policy) as (_, spans):
        Bot().search("tea", "milk", "hunter2", safe=True)
    [span] = spans.all

    assert json.loads(str(span.attributes[ARGUMENTS])) == {
        "query": "tea", "args": ["milk", "[secret]"], "safe": True,
    }  # fmt: skip
    assert json.loads(str(span.attributes[RESULT])) == ["tea", "milk", "[secret]"]


def test_a_tool_by_itself(clock: FakeClock) -> None:
    """Without a turn a call is still a span: in the trace around it, or in one of its own."""

    @llmtrace.tool
    def alone() -> None:
        clock.advance(0.1)

    @llmtrace.trace
    def request() -> Iterator[str]:
        alone()
        yield "a"

    with watched(clock=clock) as (rows, spans):
        alone()
        list(request())
    first, second = spans.all

    assert first.parent_span_id is None
    assert (second.trace_id, second.parent_span_id) == (rows[0].trace_id, rows[0].span_id)
    assert "gen_ai.agent.name" not in first.attributes


@pytest.mark.parametrize(
    ("error", "outcome", "text"),
    [
        (ValueError("secret"), "error", "the tool failed: ValueError"),
        (TimeoutError("secret"), "timeout", "the tool failed: TimeoutError"),
        (asyncio.CancelledError(), "cancelled", None),
    ],
)
def test_what_is_raised_is_on_the_span(
    error: BaseException, outcome: str, text: str | None
) -> None:
    """By its type: what an error says may quote what the tool was given."""

    @llmtrace.tool
    def failing() -> None:
        raise error

    raises = pytest.raises(type(error))
    with watched() as (rows, spans), llmtrace.turn("trip"), raises as caught:
        failing()
    [span] = spans.all

    assert caught.value is error
    assert (span.attributes["llmtrace.outcome"], span.error) == (outcome, text)
    assert str(span.attributes["error.type"]).endswith(type(error).__name__)
    assert "secret" not in repr(span)
    assert turn_of(rows).parts[0].outcome == outcome


# --- every form ---------------------------------------------------------------------------------


def test_functions_of_every_kind(clock: FakeClock) -> None:
    """Each stays what it is, with its name, and each call is a span."""

    @llmtrace.tool
    def plain(word: str) -> str:
        """Say a word."""
        return word

    @llmtrace.tool
    async def coroutine(word: str) -> str:
        await asyncio.sleep(0)
        return word

    @llmtrace.tool
    def generator(word: str) -> Iterator[str]:
        for letter in word:
            clock.advance(0.1)
            yield letter

    @llmtrace.tool
    async def agenerator(word: str) -> AsyncIterator[str]:
        for letter in word:
            clock.advance(0.1)
            yield letter

    class Bot:
        @llmtrace.tool
        def method(self, word: str) -> str:
            return word

        @llmtrace.tool(name="klass")
        @classmethod
        def klass(cls, word: str) -> str:
            return word

        @staticmethod
        @llmtrace.tool
        def static(word: str) -> str:
            return word

    class Caller:
        def __call__(self, word: str) -> str:
            return word

    called = llmtrace.tool(Caller())

    async def main() -> list[str]:
        return [await coroutine("ab"), "".join([letter async for letter in agenerator("ab")])]

    with watched(clock=clock) as (_, spans):
        words = [plain("ab"), *asyncio.run(main()), "".join(generator("ab"))]
        words += [Bot().method("ab"), Bot.klass("ab"), Bot.static("ab"), called("ab")]

    assert words == ["ab"] * 8
    assert [span.attributes["gen_ai.tool.name"] for span in spans.all] == [
        "plain", "coroutine", "agenerator", "generator", "method", "klass", "static", "Caller",
    ]  # fmt: skip
    assert {span.attributes["llmtrace.outcome"] for span in spans.all} == {"success"}
    assert spans.named("generator").duration_ns == 200 * MS
    assert inspect.iscoroutinefunction(coroutine)
    assert inspect.isgeneratorfunction(generator)
    assert inspect.isasyncgenfunction(agenerator)
    assert (plain.__name__, plain.__doc__) == ("plain", "Say a word.")


def test_a_function_that_returns_a_coroutine(clock: FakeClock) -> None:
    """Its call lasts until that has been awaited."""

    @llmtrace.tool
    def later() -> Any:
        async def work() -> str:
            clock.advance(0.5)
            return "done"

        return work()

    async def main() -> None:
        assert await later() == "done"

    with watched(clock=clock) as (_, spans):
        asyncio.run(main())

    assert spans.named("later").duration_ns == 500 * MS


def test_a_generators_items_are_its_result(clock: FakeClock) -> None:
    """A later call that is given one of them needed it."""

    @llmtrace.tool
    def search() -> Iterator[str]:
        yield "https://example.org/first"
        yield "https://example.org/second"

    @llmtrace.tool
    def fetch(_url: str) -> None:
        clock.advance(0.1)

    with watched(clock=clock) as (rows, _), llmtrace.turn("trip"):
        *_, last = search()
        fetch(last)

    assert turn_of(rows).parts[1].needs == (0,)


def test_a_generator_that_is_left_ends_its_span() -> None:
    """Closed, left or released: once, and as cancelled."""

    @llmtrace.tool
    def numbers() -> Iterator[int]:
        yield from range(9)

    @llmtrace.tool
    async def anumbers() -> AsyncIterator[int]:
        for number in range(9):
            yield number

    async def read() -> None:
        async with contextlib.aclosing(anumbers()) as running:  # type: ignore[type-var]
            async for _ in running:
                break

    with watched() as (_, spans):
        for _ in numbers():
            break
        gc.collect()
        asyncio.run(read())
        eventually(lambda: len(spans.all) == 2)

    assert [span.attributes["llmtrace.outcome"] for span in spans.all] == ["cancelled"] * 2


@pytest.mark.parametrize("form", ["sync", "async"])
def test_what_a_generator_raises_and_is_thrown(form: str) -> None:
    """It goes through as it is, either way, and ends the call."""

    @llmtrace.tool
    def numbers() -> Any:
        try:
            yield 1
        except KeyError as error:
            yield f"caught {error}"
        raise ValueError("secret")

    @llmtrace.tool(name="numbers")
    async def anumbers() -> Any:
        try:
            yield 1
        except KeyError as error:
            yield f"caught {error}"
        raise ValueError("secret")

    async def main() -> None:
        running = anumbers()
        assert await anext(running) == 1
        assert await running.athrow(KeyError("x")) == "caught 'x'"
        with pytest.raises(ValueError, match="secret"):
            await running.asend(5)

    with watched() as (_, spans):
        if form == "sync":
            running = numbers()
            assert next(running) == 1
            assert running.throw(KeyError("x")) == "caught 'x'"
            with pytest.raises(ValueError, match="secret"):
                running.send(5)
        else:
            asyncio.run(main())

    assert spans.named("numbers").attributes["llmtrace.outcome"] == "error"


def test_a_coroutine_that_raises() -> None:
    """So does what is awaited."""

    @llmtrace.tool
    async def failing() -> None:
        raise TimeoutError

    with watched() as (_, spans), pytest.raises(TimeoutError):
        asyncio.run(failing())

    assert spans.named("failing").attributes["llmtrace.outcome"] == "timeout"


def test_a_function_in_c() -> None:
    """What does not report its parameters can be a tool, too."""
    largest = llmtrace.tool(max)
    with watched(content=ContentPolicy()) as (_, spans):
        assert largest(3, 7, 5) == 7

    assert spans.named("max").attributes[ARGUMENTS] == '{"args": [3, 7, 5]}'


def test_an_unread_generator_is_no_call() -> None:
    """Nothing of it runs, so nothing is recorded."""

    @llmtrace.tool
    def numbers() -> Iterator[int]:
        yield 1

    with watched() as (_, spans):
        numbers()

    assert spans.all == []


# --- nesting ------------------------------------------------------------------------------------


def test_tools_inside_tools(clock: FakeClock) -> None:
    """A tool that a tool calls lies in it, and its time is the outer one's."""

    @llmtrace.tool
    def inner() -> None:
        clock.advance(0.5)

    @llmtrace.tool
    def outer() -> None:
        inner()
        inner()

    with watched(clock=clock) as (rows, spans), llmtrace.turn("trip"):
        outer()
    turn = turn_of(rows)
    one, two, around = spans.all

    assert {one.parent_span_id, two.parent_span_id} == {around.span_id}
    assert (turn.tool_calls, turn.tool_serial_s, turn.tool_serial_loss_s) == (1, 1.0, 0.0)
    assert [(part.name, part.depth) for part in turn.parts] == [
        ("outer", 1), ("inner", 2), ("inner", 2),
    ]  # fmt: skip


def test_requests_inside_tools(clock: FakeClock) -> None:
    """They are the tool's children, their stages the turn's, and no new round of it."""

    @llmtrace.tool
    def summarise() -> None:
        for _ in llmtrace.wrap(fake_stream("ab", clock, gaps=0.5), model="small"):
            pass

    with watched(clock=clock) as (rows, spans), llmtrace.turn("trip"):
        summarise()
        summarise()
    turn = turn_of(rows)
    requests = [row for row in rows if not row.is_turn]

    assert [row.parent_span_id for row in requests] == [span.span_id for span in spans.all]
    assert turn.stages.decode == 1_000 * MS
    assert turn.tool_serial_loss_s == 1.0
    assert {part.round for part in turn.parts if part.kind == "tool"} == {0}


def test_a_tools_request_is_not_its_callers(server: Server, mode: str) -> None:
    """An SDK's call in a tool in a decorated function is a request of its own, not the outer's."""

    @llmtrace.tool
    def sync_tool() -> None:
        with client("sync", server) as made:
            create, call_options = method(made)
            create(**call_options)

    @llmtrace.trace(route="outer")
    def function() -> str:
        sync_tool()
        return "done"

    @llmtrace.trace(route="outer")
    async def afunction() -> str:
        await asyncio.to_thread(sync_tool)
        return "done"

    with watched() as (rows, spans):
        assert (function() if mode == "sync" else asyncio.run(afunction())) == "done"
    inner, outer = rows
    [span] = spans.all

    assert (outer.route, outer.response_id, outer.server) == ("outer", None, None)
    assert inner.response_id is not None
    assert inner.parent_span_id == span.span_id
    assert span.parent_span_id == outer.span_id


# --- an application's own provider --------------------------------------------------------------


def named(exported: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    """Return the exported spans that are no stages, by name."""
    return {
        span.name: span
        for span in exported.get_finished_spans()
        if "llmtrace.stage.name" not in (span.attributes or {})
    }


def span_id(span: ReadableSpan) -> int:
    """Return the id of a span."""
    assert span.context is not None
    return span.context.span_id


def parent_id(span: ReadableSpan) -> int:
    """Return the id of a span's parent."""
    assert span.parent is not None
    return span.parent.span_id


def test_through_an_applications_own_provider(
    clock: FakeClock, provider: TracerProvider, exported: InMemorySpanExporter
) -> None:
    """Turn, tools and requests are its spans, each the child of what it lies in."""
    tracer = provider.get_tracer("app")

    @llmtrace.tool
    def outer() -> None:
        with tracer.start_as_current_span("app's own"):
            for _ in llmtrace.wrap(fake_stream("ab", clock, gaps=0.5), model="small"):
                pass
            inner()

    @llmtrace.tool
    def inner() -> None:
        clock.advance(0.25)
        raise ValueError("secret")

    with (
        watched(clock=clock, tracer_provider=provider) as (rows, spans),
        tracer.start_as_current_span("root"),
        llmtrace.turn("trip", session="s-1"),
        contextlib.suppress(ValueError),
    ):
        outer()
    found = named(exported)
    turn = found["invoke_agent trip"]

    assert spans.all == []
    assert parent_id(turn) == span_id(found["root"])
    assert parent_id(found["execute_tool outer"]) == span_id(turn)
    assert parent_id(found["app's own"]) == span_id(found["execute_tool outer"])
    assert parent_id(found["chat small"]) == span_id(found["app's own"])
    assert parent_id(found["execute_tool inner"]) == span_id(found["app's own"])
    assert turn.kind == found["execute_tool inner"].kind == SpanKind.INTERNAL
    assert found["chat small"].kind == SpanKind.CLIENT
    assert found["execute_tool inner"].status.status_code == StatusCode.ERROR
    attributes = dict(found["execute_tool outer"].attributes or {})
    assert attributes["gen_ai.tool.name"] == "outer"
    assert attributes["session.id"] == "s-1"
    row = turn_of(rows)
    assert dict(turn.attributes or {})["llmtrace.tool_calls"] == row.tool_calls == 1
    assert (turn.end_time or 0) - (turn.start_time or 0) == row.e2e_ns
    ours = [one for one in exported.get_finished_spans() if one.name not in {"root", "app's own"}]
    assert "secret" not in "".join(span.to_json() for span in ours)


def test_what_runs_inside_sees_the_span(provider: TracerProvider) -> None:
    """The tool's span is the current one inside it, and the application's own again after it."""
    seen = []

    @llmtrace.tool
    def look() -> None:
        seen.append(otel.get_current_span().get_span_context().span_id)

    with watched(tracer_provider=provider), llmtrace.turn("trip"):
        before = otel.get_current_span()
        look()
        assert otel.get_current_span() is before

    assert seen != [before.get_span_context().span_id]
    assert not otel.get_current_span().get_span_context().is_valid


# --- never in the way ---------------------------------------------------------------------------


def test_without_init() -> None:
    """The function runs as if it were not decorated, and is not inspected."""

    class Trap:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    @llmtrace.tool
    def plain(trap: object) -> int:
        return id(trap)

    @llmtrace.tool
    async def coroutine(trap: object) -> int:
        return id(trap)

    @llmtrace.tool
    def generator(trap: object) -> Iterator[int]:
        yield id(trap)

    @llmtrace.tool
    async def agenerator(trap: object) -> AsyncIterator[int]:
        yield id(trap)

    async def read() -> list[int]:
        return [await coroutine(trap), *[one async for one in agenerator(trap)]]

    trap = Trap()
    assert [plain(trap), *generator(trap), *asyncio.run(read())] == [id(trap)] * 4


def test_an_argument_that_breaks_when_looked_at(faulty: None) -> None:
    """The tool gets it all the same, and the call is recorded; what it needed is not known."""

    class Trap:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("secret")

    @llmtrace.tool
    def take(trap: Trap) -> int:
        return id(trap)

    trap = Trap()
    with watched() as (rows, spans), llmtrace.turn("trip"):
        assert take(trap) == id(trap)

    assert turn_of(rows).tool_calls == len(spans.all) == 1
    assert internal_errors() == {"tool.look": 1}


def test_a_result_that_breaks_when_looked_at(faulty: None) -> None:
    """It comes back as it is."""

    class Trap:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("secret")

    trap = Trap()

    @llmtrace.tool
    def give() -> Trap:
        return trap

    with watched() as (rows, _), llmtrace.turn("trip"):
        assert give() is trap

    assert turn_of(rows).tool_calls == 1
    assert internal_errors() == {"tool.look": 1}


@pytest.mark.parametrize("wrong", [5, int, None])
def test_what_cannot_be_decorated(wrong: Any) -> None:
    """It is said where it is decorated."""
    with pytest.raises(ConfigError, match=r"@llmtrace\.tool decorates functions"):
        llmtrace.tool()(wrong)


@pytest.mark.parametrize("settings", [{"name": 5}, {"unit": ["C"]}, {"route": 5}])
def test_what_cannot_be_recorded(settings: dict[str, Any]) -> None:
    """So is a label that cannot be one."""
    with pytest.raises(ConfigError, match=r"@llmtrace\.tool"):
        llmtrace.tool(**settings)


def test_a_sampled_out_tool_is_counted_and_not_written() -> None:
    """No span is written of what the user's sampling leaves out; metrics still count it."""

    class Counter:
        every_row = every_span = True

        def __init__(self) -> None:
            self.names: list[str] = []

        def write(self, item: Any) -> None:
            self.names.append(getattr(item, "name", item.__class__.__name__))

    counter = Counter()

    @llmtrace.tool
    def search() -> None:
        """Find nothing."""

    with watched(sample=0.0) as (_, spans), llmtrace.turn("trip"):
        search()
    with capture(sample=0.0, sinks=[counter]), llmtrace.turn("trip"):
        search()

    assert (spans.all, spans.rows) == ([], [])
    assert counter.names == ["execute_tool search", "Row"]


def test_a_tools_cost() -> None:
    """Looking at a large result takes a bounded time: well below what fetching it took."""

    @llmtrace.tool
    def large() -> str:
        return "some words of it " * 100_000

    def seconds() -> float:
        begun = time.process_time()
        with watched(), llmtrace.turn("trip"):
            large()
        return time.process_time() - begun

    assert min(seconds() for _ in range(5)) < 0.1


# --- called with arguments it does not take -----------------------------------------------------


def test_a_call_with_wrong_arguments_is_an_error(kind_of_tool: Any) -> None:
    """Models make arguments up: the call is recorded as failed, and is over."""
    wrong = pytest.raises(TypeError, match="unexpected keyword argument 'made_up'")
    with watched() as (rows, spans), llmtrace.turn("trip"), wrong:
        kind_of_tool(made_up=1)

    [part] = turn_of(rows).parts
    assert part.outcome == "error"
    assert spans.named("look").attributes["error.type"] == "TypeError"


def _plain() -> Any:
    @llmtrace.tool
    def look(where: str) -> str:
        return where

    return look


def _coroutine() -> Any:
    @llmtrace.tool
    async def look(where: str) -> str:
        return where

    return lambda **given: asyncio.run(look(**given))


def _generator() -> Any:
    @llmtrace.tool
    def look(where: str) -> Iterator[str]:
        yield where

    return lambda **given: list(look(**given))


def _async_generator() -> Any:
    @llmtrace.tool
    async def look(where: str) -> AsyncIterator[str]:
        yield where

    return lambda **given: asyncio.run(anext(look(**given)))  # type: ignore[arg-type]


@pytest.fixture(params=[_plain, _coroutine, _generator, _async_generator])
def kind_of_tool(request: pytest.FixtureRequest) -> Any:
    """Make a tool of each kind, and what calls it to its end."""
    return request.param()


def test_a_tool_call_open_at_shutdown_ends_as_cancelled() -> None:
    """Its span is written while the exporters still take it, and then its turn; once each."""
    spans = Spans()
    spans.every_row = True

    @llmtrace.tool
    def search() -> Iterator[str]:
        yield "one"
        yield "two"

    llmtrace.init("test", exporters=[spans])
    with llmtrace.turn("trip"):
        found = search()
        assert next(found) == "one"
        llmtrace.shutdown()
        assert spans.named("search").attributes["llmtrace.outcome"] == "cancelled"
        [turn] = spans.rows
        assert (turn.outcome, turn.parts[0].outcome) == ("cancelled", "cancelled")
        assert list(found) == ["two"]

    assert (len(spans.all), len(spans.rows)) == (1, 1)
