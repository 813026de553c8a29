"""One row for each model call, whatever decorated functions are around it."""

import asyncio

import openai
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import llmtrace
from llmtrace.testing import capture
from tests.support.taking_time import spend

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
def client(server):
    """Return an instrumented client of a simulated engine."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as made:
        yield made


def read(client, model, **given):
    """Make a streamed call and read it."""
    return list(
        client.chat.completions.create(model=model, messages=MESSAGES, stream=True, **given)
    )


class Spans:
    """Keeps the spans that are no rows."""

    spans = True
    every_span = True

    def __init__(self):
        self.kept = []

    def write(self, span):
        """Keep it."""
        if not isinstance(span, llmtrace.Row):
            self.kept.append(span)


def test_two_calls_make_two_labelled_rows_and_a_span(client):
    """Each call's row spans the call alone; the function is their parent, and no request."""
    spans = Spans()

    @llmtrace.trace(route="rag", tenant="acme", user="u1")
    def answer():
        client.chat.completions.create(model="rewriter", messages=MESSAGES)
        spend(0.05)
        yield from client.chat.completions.create(model="big", messages=MESSAGES, stream=True)

    with capture(sinks=[spans]) as rows:
        list(answer())
    small, big = rows
    (function,) = spans.kept

    assert [row.model for row in rows] == ["rewriter", "big"]
    assert {(row.route, row.tenant, row.attributes["user.id"]) for row in rows} == {
        ("rag", "acme", "u1")
    }
    assert not small.stages.render
    assert all(row.stages.total == row.e2e_ns and not row.nested for row in rows)
    assert {row.parent_span_id for row in rows} == {function.span_id}
    assert {row.trace_id for row in rows} == {function.trace_id}
    assert function.duration_ns >= small.e2e_ns + big.e2e_ns
    assert function.attributes["llmtrace.route"] == "rag"
    assert "llmtrace.e2e" not in function.attributes


def test_one_call_is_the_functions_row(client):
    """With one call the row spans the function, and there is no span of its own."""
    spans = Spans()

    @llmtrace.trace(route="chat")
    def answer():
        spend(0.05)
        yield from client.chat.completions.create(model="m", messages=MESSAGES, stream=True)

    with capture(sinks=[spans]) as rows:
        list(answer())
    (row,) = rows

    assert (row.route, row.model, spans.kept) == ("chat", "m", [])
    assert (row.stages.client or 0) >= 50_000_000


def test_gathered_calls_make_a_row_each(server):
    """Three calls at the same time: three rows, all labelled, each adding up."""

    async def main():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x") as made:

            async def one(model):
                stream = await made.chat.completions.create(
                    model=model, messages=MESSAGES, stream=True
                )
                return [chunk async for chunk in stream]

            @llmtrace.trace(route="fan-out", tenant="acme")
            async def answer():
                await asyncio.gather(*map(one, "abc"))

            await answer()

    with capture() as rows:
        asyncio.run(main())

    assert sorted(row.model for row in rows) == ["a", "b", "c"]
    assert {(row.route, row.tenant) for row in rows} == {("fan-out", "acme")}
    assert all(row.stages.total == row.e2e_ns for row in rows)
    assert len({row.span_id for row in rows}) == 3


def test_a_nested_function_is_counted_once(client):
    """The call has the labels of the innermost function, and from outward what is left open."""
    spans = Spans()

    @llmtrace.trace(route="inner")
    def inner():
        return client.chat.completions.create(model="m", messages=MESSAGES, stream=True)

    @llmtrace.trace(route="outer", tenant="acme")
    def outer():
        yield from inner()

    with capture(sinks=[spans]) as rows:
        list(outer())

    (row,) = rows
    assert (row.model, row.route, row.tenant, row.nested) == ("m", "inner", "acme", False)


def test_a_function_decorated_twice_is_counted_once(client):
    """The inner decorator's labels win."""

    @llmtrace.trace(route="outer", tenant="acme")
    @llmtrace.trace(route="inner")
    def answer():
        return read(client, "m")

    with capture() as rows:
        answer()

    assert [(row.route, row.tenant, row.model) for row in rows] == [("inner", "acme", "m")]


def test_two_calls_of_a_nested_function(client):
    """Calls through two inner functions are labelled by each, and by what is around them."""

    @llmtrace.trace(route="step")
    def step(model):
        return read(client, model)

    @llmtrace.trace(tenant="acme")
    def outer():
        step("a")
        step("b")

    with capture() as rows:
        outer()

    assert [(row.route, row.tenant, row.model) for row in rows] == [
        ("step", "acme", "a"),
        ("step", "acme", "b"),
    ]


def test_a_call_has_the_turns_labels(client):
    """Route, tenant and attributes of a turn hold for requests without their own."""

    @llmtrace.trace(route="own")
    def own():
        return read(client, "b")

    with capture() as rows, llmtrace.turn("t", route="turn", tenant="acme", plan="gold"):
        read(client, "a")
        own()
    a, b, turn = rows

    assert (a.route, a.tenant, a.attributes["plan"]) == ("turn", "acme", "gold")
    assert (b.route, b.tenant, b.attributes["plan"]) == ("own", "acme", "gold")
    assert [part.name for part in turn.parts] == ["a", "b"]


def test_a_turn_around_a_function_of_two_calls(client):
    """The function is no part of the turn; its calls are, each where it lay."""

    @llmtrace.trace
    def answer():
        read(client, "a")
        spend(0.05)
        read(client, "b")

    with capture() as rows, llmtrace.turn("t"):
        answer()
    *_, turn = rows

    assert [part.name for part in turn.parts] == ["a", "b"]
    assert turn.parts[1].start >= turn.parts[0].start + turn.parts[0].duration + 50_000_000


def test_an_applications_provider_has_the_function_as_a_span(client):
    """The provider's span began with the function, and stays the function's."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    @llmtrace.trace(route="rag")
    def answer():
        read(client, "a")
        read(client, "b")

    with capture(tracer_provider=provider) as rows:
        answer()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    function = spans[next(name for name in spans if name.startswith("invoke_workflow"))]

    assert {
        f"{spans['chat a'].context.span_id:016x}",
        f"{spans['chat b'].context.span_id:016x}",
    } == {row.span_id for row in rows}
    assert {spans["chat a"].parent.span_id, spans["chat b"].parent.span_id} == {
        function.context.span_id
    }
    assert function.parent is None
    assert "llmtrace.e2e" not in function.attributes


def test_what_is_annotated_between_holds_for_later_calls(client):
    """An annotation in a function of several calls is for the function and what it makes next."""

    @llmtrace.trace
    def answer():
        read(client, "a")
        read(client, "b")
        llmtrace.annotate(tenant="late")
        read(client, "c")

    with capture() as rows:
        answer()

    assert [(row.model, row.tenant) for row in rows] == [("a", None), ("b", None), ("c", "late")]


def test_a_function_that_returns_a_task(server):
    """Whatever can be awaited is: one row, with the route, the model and the task's time."""

    async def main():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x") as made:

            @llmtrace.trace(route="task")
            def make():
                return asyncio.ensure_future(
                    made.chat.completions.create(model="m", messages=MESSAGES, stream=True)
                )

            task = make()
            async for _ in await task:
                pass

    with capture() as rows:
        asyncio.run(main())

    assert [(row.route, row.model, row.outcome) for row in rows] == [("task", "m", "success")]
    assert rows[0].ttft_s is not None
