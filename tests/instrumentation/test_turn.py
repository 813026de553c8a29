"""`llmtrace.turn` makes one row of a turn, with the position of all that ran inside it."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry import trace as otel

import llmtrace
from llmtrace.agents.scopes import MAX_REQUESTS, MAX_TOOLS
from llmtrace.core.errors import ConfigError
from llmtrace.core.failopen import internal_errors
from llmtrace.core.row import from_dict
from llmtrace.semconv.convert import from_attributes, to_attributes
from llmtrace.testing import FakeClock, capture, fake_async_stream, fake_stream
from tests.support.sse_server import Server
from tests.support.taking_time import aspend, forever, spend
from tests.support.waiting import auntil

from . import answers
from .reading import client, eventually, method
from .scopes import figures, turn_of, watched

MS = 1_000_000


@pytest.fixture
def clock() -> FakeClock:
    """Return a clock that stands still."""
    return FakeClock()


def ask(clock: FakeClock, seconds: float = 1.0, model: str = "tiny") -> None:
    """Make one streamed request that takes so long."""
    stream = fake_stream(["a", "b"], clock, gaps=seconds / 2)
    for _ in llmtrace.wrap(stream, model=model):
        pass


def tools(clock: FakeClock, *names: str, seconds: float = 1.5, result: object = None) -> list[Any]:
    """Make tools that take so long each, and return the same thing, or what they were given."""

    def make(name: str) -> Any:
        @llmtrace.tool(name=name)
        def run(argument: Any = None) -> Any:
            clock.advance(seconds)
            return argument if result is None else result

        return run

    return [make(name) for name in names]


# --- the row ------------------------------------------------------------------------------------


def test_a_turn_is_a_row(clock: FakeClock) -> None:
    """It has a name, whom it is for, and an outcome; its requests are its children."""
    labelled = llmtrace.turn("trip", session="s-1", user=7, route="travel", tries=2)
    with watched(clock=clock) as (rows, _), labelled:
        ask(clock)
        clock.advance(0.5)
        ask(clock)
    one, two, turn = rows

    assert (turn.operation, turn.agent, turn.route, turn.outcome) == (
        "invoke_agent", "trip", "travel", "success",
    )  # fmt: skip
    assert dict(turn.attributes) == {
        "session.id": "s-1", "gen_ai.conversation.id": "s-1", "user.id": "7", "tries": 2,
    }  # fmt: skip
    assert (turn.e2e_s, turn.ttft_s, turn.nested) == (2.5, 2.0, False)
    for request in (one, two):
        assert (request.trace_id, request.parent_span_id) == (turn.trace_id, turn.span_id)
        assert request.nested
        assert request.attributes["session.id"] == "s-1"
        assert request.agent is None


def test_where_a_turns_time_went(clock: FakeClock) -> None:
    """Its requests' stages, and the time between them, tools included, as render."""
    [search] = tools(clock, "search")
    with watched(clock=clock) as (rows, _), llmtrace.turn("trip"):
        ask(clock)
        search()
        clock.advance(0.25)
        ask(clock)
    turn = turn_of(rows)

    assert turn.e2e_s == 3.75
    assert turn.stages.decode == 1_000 * MS
    assert turn.stages.unattributed == 1_000 * MS
    assert turn.stages.render == 1_750 * MS
    assert turn.stages.queue is None
    lay = [(part.kind, part.name, part.start // MS, part.duration // MS) for part in turn.parts]
    assert lay == [
        ("request", "tiny", 0, 1000),
        ("tool", "search", 1000, 1500),
        ("request", "tiny", 2750, 1000),
    ]


def test_a_turns_first_content_is_that_of_its_last_stream(clock: FakeClock) -> None:
    """What a plan streams is not what the user sees; a request that is no stream shows nothing."""
    [search] = tools(clock, "search")
    with watched(clock=clock) as (rows, _), llmtrace.turn("voice"):
        ask(clock)
        search()
        ask(clock)
        clock.advance(2)
    turn = turn_of(rows)

    assert (turn.ttft_s, turn.ttft_arrival_s, turn.tpot_s) == (3.0, None, None)
    assert turn.stages.render == 3_500 * MS  # the first content divides none of its time
    assert from_dict(turn.as_dict()) == turn
    written = to_attributes(turn)
    assert written["gen_ai.response.time_to_first_chunk"] == 3.0
    read = from_attributes(written, start=0, trace_id=turn.trace_id, span_id=turn.span_id)
    assert (read.ttft_s, read.stages) == (3.0, turn.stages)


def test_a_turn_without_a_stream_has_no_first_content(clock: FakeClock) -> None:
    """It is not known what its user saw, and when."""
    [search] = tools(clock, "search")
    with watched(clock=clock) as (rows, _), llmtrace.turn("voice"):
        search()

    assert turn_of(rows).ttft_s is None


def test_the_application_says_when_it_shows_something(clock: FakeClock) -> None:
    """The first time wins over what was streamed, in the turn and in those around it."""
    with watched(clock=clock) as (rows, _), llmtrace.turn("outer"):
        clock.advance(0.25)
        with llmtrace.turn("voice") as voice:
            clock.advance(0.5)
            voice.first_content()
            ask(clock)
            voice.first_content()
    inner, outer = (row for row in rows if row.is_turn)

    assert (inner.ttft_s, outer.ttft_s) == (0.5, 0.75)
    voice.first_content()  # outside of any turn: nothing to say it of
    assert internal_errors() == {}


def test_a_bare_thread_says_when_it_shows_something(clock: FakeClock) -> None:
    """A player's own thread is in no turn: the object that runs one knows which is meant."""
    with watched(clock=clock) as (rows, _), llmtrace.turn("voice") as voice:
        clock.advance(0.5)
        player = threading.Thread(target=voice.first_content)
        player.start()
        player.join()
        clock.advance(0.5)

    assert turn_of(rows).ttft_s == 0.5


def test_a_decorated_function_says_when_it_shows_something(clock: FakeClock) -> None:
    """By the object that decorates it."""
    answering = llmtrace.turn("voice")

    @answering
    def answer() -> None:
        clock.advance(0.5)
        answering.first_content()
        clock.advance(0.5)

    with watched(clock=clock) as (rows, _):
        answer()

    assert turn_of(rows).ttft_s == 0.5


def test_requests_side_by_side_count_once() -> None:
    """The turn's stages add up to its own time, whatever its requests come to together."""

    async def request() -> None:
        async def slow() -> AsyncIterator[str]:
            for word in "abc":
                await aspend(0.02)
                yield word

        async for _ in llmtrace.wrap(slow()):
            pass

    async def main() -> None:
        async with llmtrace.turn("crowd"):
            await asyncio.gather(*(request() for _ in range(5)))

    with capture() as rows:
        asyncio.run(main())
    turn = turn_of(rows)
    requests = [row for row in rows if not row.is_turn]

    assert len(requests) == 5
    assert {row.parent_span_id for row in requests} == {turn.span_id}
    assert (turn.stages.decode or 0) < sum(row.stages.decode or 0 for row in requests)
    assert turn.e2e_ns < sum(row.e2e_ns for row in requests)


def test_a_turn_without_anything(clock: FakeClock) -> None:
    """Nothing ran: no tools, and all of the time its own."""
    with watched(clock=clock) as (rows, _), llmtrace.turn("idle"):
        clock.advance(0.1)

    assert figures(turn_of(rows)) == (0, 0.0, 0.0, 0.0, 0.0)
    assert turn_of(rows).stages.render == 100 * MS


# --- tools --------------------------------------------------------------------------------------


def test_three_tools_in_turn(clock: FakeClock) -> None:
    """Three tools of 1.5 s: 4.5 s, of which 3 could have been saved."""
    with watched(clock=clock) as (rows, _), llmtrace.turn("trip"):
        for run in tools(clock, "search", "weather", "news"):
            run()

    assert figures(turn_of(rows)) == (3, 4.5, 4.5, 1.5, 3.0)


def test_three_tools_together() -> None:
    """The same three at once lose next to nothing, and take what one takes."""

    @llmtrace.tool
    async def look_up(_what: str) -> None:
        await aspend(0.15)

    async def main() -> None:
        async with llmtrace.turn("together"):
            await asyncio.gather(*(look_up(what) for what in ("search", "weather", "news")))
        async with llmtrace.turn("in turn"):
            for what in ("search", "weather", "news"):
                await look_up(what)

    with capture() as rows:
        asyncio.run(main())
    together, in_turn = rows

    assert together.tool_calls == in_turn.tool_calls == 3
    for row in rows:
        assert row.tool_serial_s is not None
        assert row.tool_serial_s >= 0.45
    # Compared within one run: each of them slept three times, side by side or not.
    assert together.tool_wall_s is not None
    assert in_turn.tool_wall_s is not None
    assert in_turn.tool_wall_s == pytest.approx(in_turn.tool_serial_s, rel=1e-6)
    assert in_turn.tool_serial_loss_s is not None
    assert in_turn.tool_serial_loss_s >= 0.3
    assert together.tool_serial_loss_s is not None
    assert together.tool_serial_loss_s < together.tool_wall_s
    assert together.tool_wall_s <= (together.tool_serial_s or 0) - 0.2


def test_a_tool_that_needs_another(clock: FakeClock) -> None:
    """What one found is in the next one's arguments: they had to take turns."""
    with watched(clock=clock) as (rows, spans), llmtrace.turn("trip"):
        [search] = tools(clock, "search", result={"url": "https://example.org/a-page"})
        fetch, weather = tools(clock, "fetch", "weather")
        fetch(search("tea")["url"])
        weather("Paris")
    turn = turn_of(rows)

    assert figures(turn) == (3, 4.5, 4.5, 3.0, 1.5)
    assert [part.needs for part in turn.parts] == [(), (0,), ()]
    assert spans.named("fetch").attributes["llmtrace.tool.needs"] == (
        spans.named("search").span_id,
    )


def test_what_the_model_asked_for_later_is_no_loss(clock: FakeClock) -> None:
    """Between two rounds the model saw the results, though the arguments do not show it."""
    one, two, three = tools(clock, "one", "two", "three")
    with watched(clock=clock) as (rows, _), llmtrace.turn("trip"):
        ask(clock)
        one(), two()
        ask(clock)
        three()
    turn = turn_of(rows)

    assert figures(turn) == (3, 4.5, 4.5, 3.0, 1.5)
    assert [part.round for part in turn.parts if part.kind == "tool"] == [1, 1, 2]


def test_what_was_known_in_an_earlier_round(clock: FakeClock) -> None:
    """A word that a call was given long ago does not make a later one wait for its echo."""
    echo, other = tools(clock, "echo", "other")
    with watched(clock=clock) as (rows, _), llmtrace.turn("trip"):
        other("hotels in Copenhagen")
        ask(clock)
        echo({"found": "Copenhagen"})
        other("Copenhagen")

    assert turn_of(rows).tool_serial_loss_s == 1.5


def test_more_tools_than_are_kept(clock: FakeClock, faulty: None) -> None:
    """All are counted, to the nanosecond; chains are looked for among the first, and that said."""
    [run] = tools(clock, "run", seconds=0.5)
    with watched(clock=clock) as (rows, spans), llmtrace.turn("many"):
        for _ in range(MAX_TOOLS + 10):
            run()
            clock.advance(0.1)
    turn = turn_of(rows)

    assert (turn.tool_calls, turn.tool_wall_s) == (MAX_TOOLS + 10, (MAX_TOOLS + 10) / 2)
    assert turn.tool_serial_s == turn.tool_wall_s
    assert len(turn.parts) == MAX_TOOLS
    assert len(spans.all) == MAX_TOOLS + 10
    assert internal_errors() == {"turn.tools": 10}


def test_more_requests_than_are_kept(clock: FakeClock, faulty: None) -> None:
    """Those beyond are rows all the same; in the turn their time is its own, and that is said."""
    with watched(clock=clock) as (rows, _), llmtrace.turn("many"):
        for _ in range(MAX_REQUESTS + 3):
            ask(clock, 0.01)

    assert len(rows) == MAX_REQUESTS + 4
    assert len(turn_of(rows).parts) == MAX_REQUESTS
    assert internal_errors() == {"turn.requests": 3}


def test_a_tool_still_running_when_the_turn_ends() -> None:
    """It counts up to there, and says that it was still running."""

    @llmtrace.tool
    async def slow(over: asyncio.Event) -> None:
        await over.wait()

    async def main() -> None:
        over = asyncio.Event()
        async with llmtrace.turn("hasty"):
            left = asyncio.create_task(slow(over))
            await asyncio.sleep(0)  # it has begun
        over.set()
        await left

    with capture() as rows:
        asyncio.run(main())
    turn = turn_of(rows)
    [part] = turn.parts

    assert part.outcome is None
    assert part.end == turn.e2e_ns
    assert turn.tool_calls == 1


# --- nesting ------------------------------------------------------------------------------------


def test_turns_inside_turns(clock: FakeClock) -> None:
    """An agent that calls another: each has a row, and the outer one's time holds both."""
    [search] = tools(clock, "search")
    with watched(clock=clock) as (rows, spans), llmtrace.turn("outer", session="s-1"):
        ask(clock, model="big")
        with llmtrace.turn("inner"):
            ask(clock, model="small")
            search()
    requests, (inner, outer) = rows[:2], rows[2:]

    assert (inner.agent, inner.parent_span_id, inner.nested) == ("inner", outer.span_id, True)
    assert inner.attributes["session.id"] == "s-1"
    assert requests[1].parent_span_id == inner.span_id
    assert spans.named("search").parent_span_id == inner.span_id
    assert (inner.tool_calls, outer.tool_calls) == (1, 0)
    assert outer.stages.decode == 1_000 * MS
    assert inner.stages.decode == 500 * MS
    assert [(part.kind, part.name, part.depth) for part in outer.parts] == [
        ("request", "big", 1),
        ("turn", "inner", 1),
        ("request", "small", 2),
        ("tool", "search", 2),
    ]


def test_a_turn_inside_a_request(clock: FakeClock) -> None:
    """A decorated function around a turn stays one request, and the turn a child of it."""

    @llmtrace.trace(route="all")
    def everything() -> str:
        with llmtrace.turn("inside"):
            ask(clock)
        return "done"

    with watched(clock=clock) as (rows, _):
        everything()
    request, turn, outer = rows

    assert (turn.parent_span_id, request.parent_span_id) == (outer.span_id, turn.span_id)
    assert (outer.route, outer.is_turn, outer.chunks) == ("all", False, 0)


def test_a_request_that_is_still_open_when_the_turn_ends(clock: FakeClock) -> None:
    """Its time up to there cannot be split yet; its own row comes with its end."""
    with watched(clock=clock) as (rows, _):
        with llmtrace.turn("hasty"):
            stream = llmtrace.wrap(fake_stream("ab", clock, gaps=1.0))
            next(stream)
        list(stream)
    turn, request = rows

    assert turn.stages.unattributed == turn.e2e_ns == 1_000 * MS
    assert turn.parts[0].outcome is None
    assert request.parent_span_id == turn.span_id
    assert request.outcome == "success"


def test_what_begins_after_the_turn_is_not_in_it() -> None:
    """A task that outlives its turn belongs to what is around that; its trace stays."""

    async def later(go: asyncio.Event) -> None:
        await go.wait()
        async for _ in llmtrace.wrap(fake_async_stream("ab", FakeClock())):
            pass

    async def main() -> None:
        go = asyncio.Event()
        async with llmtrace.turn("outer"):
            async with llmtrace.turn("inner"):
                task = asyncio.create_task(later(go))
            go.set()
            await task

    with capture() as rows:
        asyncio.run(main())
    inner, request, outer = rows

    assert inner.parts == ()
    assert [part.kind for part in outer.parts] == ["turn", "request"]
    assert request.trace_id == outer.trace_id


# --- every form ---------------------------------------------------------------------------------


def test_decorated_functions_of_every_kind(clock: FakeClock) -> None:
    """Each stays what it is, and each call is a turn."""

    @llmtrace.turn("plain")
    def plain(word: str) -> str:
        ask(clock)
        return word

    @llmtrace.turn("coroutine")
    async def coroutine(word: str) -> str:
        await asyncio.sleep(0)
        ask(clock)
        return word

    @llmtrace.turn("generator")
    def generator(word: str) -> Iterator[str]:
        ask(clock)
        yield from word

    @llmtrace.turn("agenerator")
    async def agenerator(word: str) -> AsyncIterator[str]:
        ask(clock)
        for letter in word:
            yield letter

    class Bot:
        @llmtrace.turn("method")
        def method(self, word: str) -> str:
            return word

        @llmtrace.turn("static")
        @staticmethod
        def static(word: str) -> str:
            return word

    async def main() -> list[str]:
        return [await coroutine("ab"), "".join([letter async for letter in agenerator("ab")])]

    with watched(clock=clock) as (rows, _):
        words = [plain("ab"), *asyncio.run(main()), "".join(generator("ab"))]
        words += [Bot().method("ab"), Bot.static("ab")]
    turns = [row for row in rows if row.is_turn]

    assert words == ["ab"] * 6
    assert [row.agent for row in turns] == [
        "plain", "coroutine", "agenerator", "generator", "method", "static",
    ]  # fmt: skip
    assert all(row.outcome == "success" and row.stages.total == row.e2e_ns for row in turns)
    assert inspect.iscoroutinefunction(coroutine)
    assert inspect.isgeneratorfunction(generator)
    assert inspect.isasyncgenfunction(agenerator)


def test_a_generators_consumer_is_not_in_the_turn(clock: FakeClock) -> None:
    """Between two steps what runs is the consumer's; its requests are not the turn's."""

    @llmtrace.turn("generator")
    def generator() -> Iterator[int]:
        for number in range(2):
            ask(clock, model="inside")
            yield number

    with watched(clock=clock) as (rows, _):
        for _ in generator():
            assert not otel.get_current_span().get_span_context().is_valid
            ask(clock, model="outside")
    turn = turn_of(rows)
    by_model = {row.model: row for row in rows if not row.is_turn}

    assert [part.name for part in turn.parts] == ["inside", "inside"]
    assert by_model["outside"].parent_span_id is None
    assert by_model["inside"].parent_span_id == turn.span_id


def test_a_generator_in_a_turn_is_sent_to_and_thrown_into(clock: FakeClock) -> None:
    """What a consumer sends, throws and gets back goes through as it is."""

    @llmtrace.turn("echo")
    def echo() -> Any:
        try:
            said = yield "ready"
            while True:
                said = yield said
        except KeyError as error:
            yield f"caught {error}"
        return "returned"

    with watched(clock=clock) as (rows, _):
        running = echo()
        assert [next(running), running.send(1), running.send(2)] == ["ready", 1, 2]
        assert running.throw(KeyError("x")) == "caught 'x'"
        with pytest.raises(StopIteration) as stop:
            next(running)

    assert stop.value.value == "returned"
    assert turn_of(rows).outcome == "success"


@pytest.mark.parametrize("form", ["sync", "async"])
def test_a_generator_that_is_left(form: str) -> None:
    """Closed before its end, a turn is cancelled; its generator's own clean-up runs inside it."""
    cleaned = []

    @llmtrace.turn("left")
    def generator() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            cleaned.append(otel.get_current_span().get_span_context().is_valid)

    @llmtrace.turn("left")
    async def agenerator() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            cleaned.append(otel.get_current_span().get_span_context().is_valid)

    async def main() -> None:
        running = agenerator()
        await anext(running)
        await running.aclose()  # type: ignore[attr-defined]

    with capture() as rows:
        if form == "sync":
            running = generator()
            next(running)
            running.close()  # type: ignore[attr-defined]
        else:
            asyncio.run(main())

    assert turn_of(rows).outcome == "cancelled"
    assert cleaned == [True]


def test_a_generator_that_is_released() -> None:
    """Collected as garbage, even in a cycle, a turn still ends."""

    @llmtrace.turn("released")
    def generator(holding: list[Any]) -> Iterator[int]:
        yield 1
        yield len(holding)

    def begin() -> None:
        holding: list[Any] = []
        holding.append(generator(holding))
        next(holding[0])

    with capture() as rows:
        begin()
        gc.collect()
        eventually(lambda: rows)

    assert turn_of(rows).outcome == "cancelled"


def test_one_turn_entered_by_many_at_a_time() -> None:
    """Tasks may share one object, and each ends its own turn."""
    shared = llmtrace.turn("shared")

    async def enter(number: int) -> None:
        async with shared:
            for _ in range(number % 3):  # they end in another order
                await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(enter(number) for number in range(9)))

    with capture() as rows:
        asyncio.run(main())

    assert len({row.span_id for row in rows}) == 9
    assert {row.outcome for row in rows} == {"success"}


# --- how it ends --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "outcome", "error_type"),
    [
        (ValueError("secret"), "error", "ValueError"),
        (TimeoutError(), "timeout", "TimeoutError"),
        (KeyboardInterrupt(), "cancelled", "KeyboardInterrupt"),
        (GeneratorExit(), "cancelled", None),
    ],
)
def test_what_is_raised_ends_the_turn(
    error: BaseException, outcome: str, error_type: str | None
) -> None:
    """It goes through as it is, and the row says what it was."""
    with capture() as rows, pytest.raises(type(error)) as caught, llmtrace.turn("failing"):
        raise error

    assert caught.value is error
    assert (turn_of(rows).outcome, turn_of(rows).error_type) == (outcome, error_type)


def test_a_turn_that_is_cancelled() -> None:
    """A task's cancellation passes, and is distinguished from a time-out."""

    async def slow() -> None:
        async with llmtrace.turn("slow"):
            await forever()

    async def main() -> None:
        task = asyncio.create_task(slow())
        await asyncio.sleep(0)  # it has begun
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await slow()
        await auntil(lambda: len(rows) == 2)

    with capture() as rows:
        asyncio.run(main())

    assert [(row.outcome, row.error_type) for row in rows] == [
        ("cancelled", "asyncio.exceptions.CancelledError"),
        ("timeout", "TimeoutError"),
    ]


def test_a_request_that_fails_inside_does_not_fail_the_turn(clock: FakeClock) -> None:
    """What the application dealt with is in the request's row, and in the turn's parts."""
    with watched(clock=clock) as (rows, _), llmtrace.turn("patient"):
        with pytest.raises(OSError, match="gone"):
            list(llmtrace.wrap(fake_stream("a", clock, error=OSError("gone"))))
        ask(clock)
    turn = turn_of(rows)

    assert turn.outcome == "success"
    assert [part.outcome for part in turn.parts] == ["error", "success"]


# --- context ------------------------------------------------------------------------------------


def test_threads(clock: FakeClock) -> None:
    """A copied context carries the turn into a thread; a bare thread does not have it."""
    [search] = tools(clock, "search")
    with watched(clock=clock) as (rows, spans), llmtrace.turn("trip"):
        with ThreadPoolExecutor(2) as pool:
            futures = [
                pool.submit(contextvars.copy_context().run, search, number) for number in range(2)
            ]
            assert [future.result() for future in futures] == [0, 1]
        bare = threading.Thread(target=search)
        bare.start()
        bare.join()
    turn = turn_of(rows)

    assert turn.tool_calls == 2
    assert [span.trace_id == turn.trace_id for span in spans.all] == [True, True, False]


def test_to_thread_carries_the_turn() -> None:
    """`asyncio.to_thread` copies the context by itself."""

    @llmtrace.tool
    def blocking() -> int:
        return threading.get_ident()

    async def main() -> list[int]:
        async with llmtrace.turn("trip"):
            return await asyncio.gather(*(asyncio.to_thread(blocking) for _ in range(3)))

    with capture() as rows:
        threads = asyncio.run(main())

    assert threading.get_ident() not in threads
    assert turn_of(rows).tool_calls == 3


def test_what_is_known_only_later(clock: FakeClock) -> None:
    """`annotate` outside any request is for the turn; inside one, for the request."""

    @llmtrace.trace
    def request() -> Iterator[str]:
        llmtrace.annotate(inner=True)
        yield "a"

    with watched(clock=clock) as (rows, _), llmtrace.turn("trip"):
        list(request())
        llmtrace.annotate(route="travel", steps=3)
    turn = turn_of(rows)

    assert (turn.route, dict(turn.attributes)) == ("travel", {"steps": 3})
    assert rows[0].attributes["inner"] is True


# --- never in the way ---------------------------------------------------------------------------


def test_without_init() -> None:
    """Nothing is set up: everything runs as if it were not there."""

    @llmtrace.turn("nothing")
    def run() -> str:
        with llmtrace.turn("inside"):
            return "done"

    async def main() -> str:
        async with llmtrace.turn("inside"):
            return "done"

    @llmtrace.turn("nothing")
    async def agenerator() -> AsyncIterator[str]:
        yield "done"

    async def read() -> list[str]:
        return [word async for word in agenerator()]

    assert [run(), asyncio.run(main()), *asyncio.run(read())] == ["done"] * 3


def test_a_turn_with_invalid_arguments(faulty: None, caplog: pytest.LogCaptureFixture) -> None:
    """It is no place to raise: what cannot be recorded is left out, without quoting it."""
    nonsense: Any = {"user": object(), "tags": "secret", "answer": {"secret"}}
    with capture() as rows, llmtrace.turn(["secret"], **nonsense):  # type: ignore[arg-type]
        pass

    assert turn_of(rows).agent == "turn"
    assert dict(turn_of(rows).attributes) == {}
    assert internal_errors() == {"turn": 4}
    assert "secret" not in caplog.text


def test_a_turn_that_cannot_begin(faulty: None) -> None:
    """What goes inside goes on."""

    def wall() -> int:
        raise OSError("no clock")

    with capture(wall=wall) as rows, llmtrace.turn("trip"):
        done = True

    assert done
    assert rows == []
    assert internal_errors() == {"turn": 1}


def test_a_turn_left_in_another_context() -> None:
    """As by a framework that runs a generator's end elsewhere: nothing is raised or logged."""
    turn = llmtrace.turn("trip")
    with capture() as rows:
        contextvars.copy_context().run(turn.__enter__)
        turn.__exit__(None, None, None)

    assert turn_of(rows).outcome == "success"
    assert not otel.get_current_span().get_span_context().is_valid


def test_used_bare(clock: FakeClock) -> None:
    """Without brackets a turn goes by the name of the function, whatever its kind."""

    @llmtrace.turn
    def plain(word: str) -> str:
        ask(clock)
        return word

    @llmtrace.turn
    async def coroutine(word: str) -> str:
        return word

    class Bot:
        @llmtrace.turn
        @staticmethod
        def static(word: str) -> str:
            return word

    with capture(clock=clock) as rows:
        assert (plain("hi"), asyncio.run(coroutine("hi")), Bot.static("hi")) == ("hi",) * 3
    assert [row.agent for row in rows if row.is_turn] == ["plain", "coroutine", "static"]


@pytest.mark.parametrize("wrong", [{"tags": "beta"}, {"route": 3}, {"foo": [1]}])
def test_what_cannot_be_recorded_is_said_where_it_decorates(wrong: dict[str, Any]) -> None:
    """A definition is the place to raise, as `trace` and `tool` do."""
    with pytest.raises(ConfigError, match=f"@llmtrace.turn: {next(iter(wrong))} must be a "):
        llmtrace.turn("x", **wrong)(lambda: 1)


def test_what_cannot_be_decorated() -> None:
    """A class is no function; that is said where it is decorated."""
    with pytest.raises(ConfigError, match="decorates functions"):
        llmtrace.turn("x")(int)
    with pytest.raises(ConfigError, match="decorates functions"):
        llmtrace.turn(int)


def test_a_clock_that_breaks_inside_a_turn(faulty: None) -> None:
    """The turn's code runs on, and nothing is raised."""
    broken = False

    def clock() -> int:
        if broken:
            raise OSError("no clock")
        return time.perf_counter_ns()

    @llmtrace.tool
    def search() -> str:
        return "found"

    with capture(clock=clock), llmtrace.turn("trip"):
        broken = True
        assert search() == "found"

    assert internal_errors()


# --- with an SDK --------------------------------------------------------------------------------


def test_an_agent_over_an_sdk(mode: str, server: Server) -> None:
    """Request, tools, request: children of the turn, in rounds, its stages from the engine."""

    @llmtrace.tool
    def search(query: str) -> str:
        spend(0.002)
        return query

    def sync_agent() -> None:
        with client(mode, server) as made:
            create, call_options = method(made)
            with llmtrace.turn("agent"):
                for _ in create(**call_options, stream=True):
                    pass
                search("tea"), search("milk")
                create(**call_options)

    async def async_agent() -> None:
        async with client(mode, server) as made:
            create, call_options = method(made)
            async with llmtrace.turn("agent"):
                async for _ in await create(**call_options, stream=True):
                    pass
                search("tea"), search("milk")
                await create(**call_options)

    server.play(answers.chat(first_s=0.03))
    with capture() as rows:
        sync_agent() if mode == "sync" else asyncio.run(async_agent())
    turn = turn_of(rows)
    one, two = (row for row in rows if not row.is_turn)

    assert [part.kind for part in turn.parts] == ["request", "tool", "tool", "request"]
    assert [part.round for part in turn.parts if part.kind == "tool"] == [1, 1]
    assert {one.parent_span_id, two.parent_span_id} == {turn.span_id}
    assert turn.stages.queue == (one.stages.queue or 0) + (two.stages.queue or 0)
    assert turn.stages.sources["queue"] == "engine_inband"
    assert (turn.stages.render or 0) >= 4 * MS


def test_a_request_that_times_out_inside_a_turn(server: Server) -> None:
    """The turn ends before the request's outcome is settled, and has its time all the same."""
    server.play(answers.chat(gap_s=0.05))

    async def ask_briefly(made: Any) -> None:
        async with asyncio.timeout(0.03):
            create, call_options = method(made)
            async for _ in await create(**call_options, stream=True):
                pass

    async def main() -> None:
        async with client("async", server) as made:
            async with llmtrace.turn("hasty"):
                with pytest.raises(TimeoutError):
                    await ask_briefly(made)
            await auntil(lambda: len(rows) == 2)

    with capture() as rows:
        asyncio.run(main())
    turn = turn_of(rows)
    [request] = [row for row in rows if not row.is_turn]

    assert request.outcome == "timeout"
    assert turn.outcome == "success"
    [part] = turn.parts
    assert part.duration == request.e2e_ns
