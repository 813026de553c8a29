"""Do explicit marks land in the request they are made in, and nowhere else?"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmtrace
from llmtrace.core.errors import ConfigError
from llmtrace.core.failopen import internal_errors
from llmtrace.instrumentation.marks import MARKABLE
from llmtrace.runtime.runtime import current
from llmtrace.testing import FakeClock, capture
from tests.support.internal_errors import reset_internal_errors

from .reading import client, method

MS = 1_000_000


@pytest.fixture(autouse=True)
def _fresh_counts():
    """Each test counts internal errors from nothing."""
    reset_internal_errors()
    yield
    reset_internal_errors()


@pytest.fixture
def clock() -> FakeClock:
    """A clock that a test moves."""
    return FakeClock()


# --- stage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MARKABLE)
def test_a_mark_is_its_stage(clock, name):
    """Time inside a mark is the stage that was named."""
    with capture(clock=clock) as rows:

        @llmtrace.trace
        def answer():
            with llmtrace.stage(name):
                clock.advance(0.25)
            clock.advance(0.5)
            return "done"

        answer()

    assert rows[0].timeline.marked_before == {name: 250 * MS}
    assert dict(rows[0].stages)[name] == 250 * MS


WRONG = ["first_chunk", "decode", "unattributed", "Queue", "", None, []]


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_marked_is_refused_where_it_decorates(name):
    """What is left over, or no stage, is rejected where a function is decorated with it."""
    with pytest.raises(
        ConfigError, match="the stages to mark are network, gateway, queue, prefil"
    ):

        @llmtrace.stage(name)
        def mark():
            """Do nothing."""


@pytest.mark.parametrize("started", [True, False])
def test_what_cannot_be_marked_changes_nothing_at_run_time(clock, caplog, started):
    """Around a block it warns once for each name, and the request goes on as without it."""

    @llmtrace.trace
    def answer(name):
        with llmtrace.stage(name):
            clock.advance(0.25)
        return "done"

    with capture(clock=clock) if started else nullcontext([]) as rows:
        assert {answer(name) for name in WRONG * 2} == {"done"}

    assert len(rows) == (len(WRONG) * 2 if started else 0)
    assert not any(row.timeline.marked_before for row in rows)
    assert len(caplog.messages) == len(set(caplog.messages)) == len(WRONG)
    assert internal_errors() == {"stage": len(WRONG) * 2}


def test_marks_outside_any_request_do_nothing(clock):
    """Code with marks in it runs without an enclosing request."""
    with capture(clock=clock) as rows, llmtrace.stage("gateway"):
        clock.advance(1)

    assert (rows, internal_errors()) == ([], {})


@given(
    st.lists(st.tuples(st.sampled_from(MARKABLE), st.integers(0, 10**10)), max_size=8),
    st.integers(0, 10**10),
)
def test_marks_add_up(marks, rest):
    """Marks one after the other make up the request with what is left, exactly."""
    clock = FakeClock()
    with capture(clock=clock) as rows:

        @llmtrace.trace
        def answer():
            for name, ns in marks:
                with llmtrace.stage(name):
                    clock.advance(ns / 1e9)
            clock.advance(rest / 1e9)

        answer()
    (row,) = rows

    for name in MARKABLE:
        marked = sum(ns for stage, ns in marks if stage == name)
        assert (dict(row.stages)[name] or 0) == marked
    assert row.stages.total == row.e2e_ns == rest + sum(ns for _, ns in marks)
    assert row.stages.inconsistent == ()


def test_a_mark_after_the_first_content(clock):
    """Rendering inside a decorated generator, between its chunks, is taken from decode."""
    with capture(clock=clock) as rows:

        @llmtrace.trace
        def answer():
            yield "a"
            clock.advance(0.3)
            with llmtrace.render():
                clock.advance(0.2)
            yield "b"

        list(answer())

    assert rows[0].timeline.marked_after == {"render": 200 * MS}
    assert (rows[0].stages.decode, rows[0].stages.render) == (300 * MS, 200 * MS)


def test_a_mark_in_the_consumers_own_time_counts_once(clock):
    """While the consumer keeps a stream waiting its time is render already."""
    with capture(clock=clock) as rows:

        @llmtrace.trace
        def answer():
            yield "a"
            yield "b"

        for _ in answer():
            with llmtrace.render():
                clock.advance(0.2)

    assert rows[0].timeline.marked_after == {}
    assert rows[0].stages.render == 400 * MS


def answer_with(work, clock, server):
    """Return the marks before content and the consumer time, in ms, of work in an open stream."""

    @llmtrace.trace
    def answer():
        create, given = method(client("sync", server))
        stream = create(stream=True, **given)
        clock.advance(0.1)
        work(stream)
        yield from stream

    with capture(clock=clock) as rows:
        assert list(answer())
    (row,) = rows
    assert row.stages.total == row.e2e_ns
    marks = {stage: ns // MS for stage, ns in row.timeline.marked_before.items()}
    return marks, row.timeline.held_before // MS


@pytest.mark.parametrize("name", MARKABLE)
def test_a_mark_in_an_open_stream_before_it_is_read(clock, server, name):
    """A check between the opening of a stream and its first content is the stage it names."""

    def check(_stream):
        with llmtrace.stage(name):
            clock.advance(0.2)
            with llmtrace.stage("queue"):
                clock.advance(0.4)

    took, held = {name: 200}, 100
    took["queue"] = took.get("queue", 0) + 400
    if name == "render":  # what has the stream waiting is render without the mark
        took, held = {"queue": 400}, 300
    assert answer_with(check, clock, server) == (took, held)


def test_a_mark_in_which_an_open_stream_is_read_stays_consumer_time(clock, server):
    """Whose time a read took is measured, so a mark around one changes nothing."""

    def check(stream):
        with llmtrace.stage("gateway"):
            clock.advance(0.2)
            next(stream)
            clock.advance(0.3)

    assert answer_with(check, clock, server) == ({}, 600)


def test_a_mark_inside_a_mark_takes_its_time_from_it(clock):
    """Every nanosecond is one stage's: what an inner mark claims, the outer one does not."""
    with capture(clock=clock) as rows:

        @llmtrace.trace
        def answer():
            with llmtrace.stage("gateway"):
                clock.advance(0.1)
                with llmtrace.stage("queue"):
                    clock.advance(0.2)
                clock.advance(0.3)

        answer()

    assert rows[0].timeline.marked_before == {"gateway": 400 * MS, "queue": 200 * MS}


def test_a_mark_around_a_hold_counts_without_it(clock):
    """Consumer time inside a mark is render already, and not the mark's."""
    with capture(clock=clock) as rows:

        @llmtrace.trace
        def answer():
            yield "a"
            with llmtrace.stage("gateway"):
                clock.advance(0.1)
                yield "b"
                clock.advance(0.2)
            yield "c"

        for _ in answer():
            clock.advance(1)

    assert rows[0].timeline.marked_after == {"gateway": 300 * MS}
    assert (rows[0].stages.gateway, rows[0].stages.render) == (300 * MS, 3_000 * MS)


def test_a_mark_that_is_left_while_the_consumer_holds(clock):
    """A mark that ends in the consumer's own time ends where that began."""
    with capture(clock=clock) as rows:
        mark = llmtrace.stage("gateway")

        @llmtrace.trace
        def answer():
            yield "a"
            mark.__enter__()
            clock.advance(0.1)
            yield "b"

        for chunk in answer():
            clock.advance(1)
            if chunk == "b":
                mark.__exit__(None, None, None)

    assert rows[0].timeline.marked_after == {"gateway": 100 * MS}


def test_a_mark_that_ends_by_an_error_counts(clock):
    """An exception goes through a mark, and its time is kept."""
    with capture(clock=clock) as rows:

        @llmtrace.trace
        def answer():
            with llmtrace.stage("gateway"):
                clock.advance(0.2)
                msg = "no quota"
                raise PermissionError(msg)

        with pytest.raises(PermissionError, match="no quota"):
            answer()

    assert (rows[0].outcome, rows[0].stages.gateway) == ("error", 200 * MS)


def test_a_mark_that_outlives_its_request(clock):
    """A mark that ends after the row was made leaves the row as it was made."""
    with capture(clock=clock) as rows:
        mark = llmtrace.stage("gateway")

        @llmtrace.trace
        def answer():
            mark.__enter__()
            clock.advance(0.2)

        answer()
        before = rows[0].as_dict()
        clock.advance(5)
        mark.__exit__(None, None, None)

    assert rows[0].as_dict() == before
    assert before["unattributed_s"] == 0.2


def test_a_decorated_function_is_marked_each_time(clock):
    """A function with a mark on it adds each of its calls, and no time twice."""

    @llmtrace.stage("gateway")
    def check(times: int) -> str:
        """Check the quota."""
        clock.advance(0.1)
        return "ok" if times == 0 else check(times - 1)

    with capture(clock=clock) as rows:

        @llmtrace.trace
        def answer():
            return check(0) + check(2)

        assert answer() == "okok"

    assert rows[0].timeline.marked_before == {"gateway": 400 * MS}
    assert (check.__name__, check.__doc__) == ("check", "Check the quota.")
    assert check(2) == "ok"


def test_a_coroutine_function_is_marked_while_it_is_awaited(clock):
    """The awaiting of a coroutine function is the mark, and it stays a coroutine function."""

    @llmtrace.stage("gateway")
    async def check() -> str:
        clock.advance(0.1)
        await asyncio.sleep(0)
        clock.advance(0.1)
        return "ok"

    with capture(clock=clock) as rows:

        @llmtrace.trace
        async def answer():
            return await check()

        assert asyncio.run(answer()) == "ok"

    assert rows[0].timeline.marked_before == {"gateway": 200 * MS}
    assert inspect.iscoroutinefunction(check)


def test_overlapping_calls_are_distinguished(clock):
    """Calls of one marked function that overlap in time mark each its own request."""
    turns = [asyncio.Event(), asyncio.Event()]

    @llmtrace.stage("gateway")
    async def check(number: int) -> None:
        await turns[number].wait()

    async def both() -> None:
        @llmtrace.trace
        async def answer(number: int) -> None:
            await check(number)

        tasks = [asyncio.create_task(answer(number)) for number in (0, 1)]
        for turn in turns:
            await asyncio.sleep(0)
            clock.advance(0.1)
            turn.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)

    with capture(clock=clock) as rows:
        asyncio.run(both())

    assert [row.stages.gateway for row in rows] == [100 * MS, 200 * MS]


def test_one_mark_may_be_shared_by_requests_at_once(clock):
    """A mark kept in a variable and used by overlapping requests distinguishes them."""
    turns = [asyncio.Event(), asyncio.Event()]
    rendering = llmtrace.render()

    async def both() -> None:
        @llmtrace.trace
        async def answer(number: int) -> None:
            with rendering:
                await turns[number].wait()

        tasks = [asyncio.create_task(answer(number)) for number in (0, 1)]
        for turn in turns:
            await asyncio.sleep(0)
            clock.advance(0.1)
            turn.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)

    with capture(clock=clock) as rows:
        asyncio.run(both())

    assert [row.stages.render for row in rows] == [100 * MS, 200 * MS]


def test_an_end_without_a_start_is_counted():
    """A mark that is ended twice by hand is an internal error, and raises nothing."""
    llmtrace.render().__exit__(None, None, None)

    assert internal_errors() == {"stage": 1}


def test_a_generator_function_cannot_be_marked():
    """Calling a generator takes no time, so a mark on it is rejected, with what to write."""

    def plain():
        yield 1

    async def coming():
        yield 1

    for function in (plain, coming):
        with pytest.raises(ConfigError, match=r"write `with llmtrace.stage\('gateway'\):` in it"):
            llmtrace.stage("gateway")(function)


class Breaking(FakeClock):
    """A clock that can be made to fail."""

    broken = False

    def __call__(self) -> int:
        """Return the time, or fail."""
        if self.broken:
            msg = "no time today"
            raise OSError(msg)
        return super().__call__()


@pytest.mark.parametrize("when", ["start", "end"])
def test_a_mark_whose_clock_breaks_is_counted(when):
    """A mark that cannot be timed is lost and counted; the code inside runs."""
    clock = Breaking()
    ran = []
    with capture(clock=clock):

        @llmtrace.trace
        def answer():
            clock.broken = when == "start"
            with llmtrace.stage("gateway"):
                clock.broken = when == "end"
                ran.append(when)
            clock.broken = False

        answer()

    assert (ran, internal_errors()) == ([when], {"stage": 1})


# --- annotate -----------------------------------------------------------------------------------


def test_what_is_known_only_inside():
    """Fields and attributes said inside a request are on its row, and the last one wins."""
    with capture() as rows:

        @llmtrace.trace(model="asked", team="search")
        def answer():
            llmtrace.annotate(model="used", tenant="acme", route=None, team="ads", tries=2)

        answer()

    assert (rows[0].model, rows[0].tenant, rows[0].route) == ("used", "acme", None)
    assert rows[0].attributes == {"team": "ads", "tries": 2}


def test_a_value_that_cannot_be_recorded_is_left_out():
    """A bad value is counted and left out; the others are kept, and nothing is raised."""
    with capture() as rows:

        @llmtrace.trace
        def answer():
            llmtrace.annotate(model=5, route="chat", user=object(), tries=2)

        answer()

    assert (rows[0].model, rows[0].route, rows[0].attributes) == (None, "chat", {"tries": 2})
    assert internal_errors() == {"annotate": 2}


def test_annotating_outside_any_request_does_nothing():
    """Outside a request, or after it has ended, there is nothing to say it of."""
    with capture() as rows:

        @llmtrace.trace
        def answer():
            current.get().end("success")
            llmtrace.annotate(model="late")

        llmtrace.annotate(model="early")
        answer()

    assert [row.model for row in rows] == [None]
    assert internal_errors() == {}


def test_the_application_says_what_a_request_came_to():
    """An outcome that is annotated is the row's; another word is left out and logged once."""

    @llmtrace.trace
    def ask(outcome):
        llmtrace.annotate(outcome=outcome)
        return "sorry"

    with capture() as rows:
        ask("timeout")
        ask("slow")
        ask("slow")

    assert [row.outcome for row in rows] == ["timeout", "success", "success"]
    assert not any(row.attributes for row in rows)
    assert internal_errors() == {"annotate": 2}
