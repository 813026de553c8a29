"""A call that Langfuse's own SDK records is recognised, with any provider."""

from __future__ import annotations

import contextvars

import langfuse as package
import openai
import pytest
from langfuse import Langfuse
from langfuse._client.resource_manager import LangfuseResourceManager
from langfuse._client.span_processor import LangfuseSpanProcessor
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import llmtrace
from llmtrace.core.failopen import internal_errors
from llmtrace.core.span import Span
from llmtrace.exporters.langfuse import coexistence
from llmtrace.exporters.span_layout import laid_out
from llmtrace.instrumentation import join_call, langfuse_sdk
from llmtrace.runtime import runtime
from llmtrace.simulator.server import serve
from llmtrace.testing import capture
from tests.support.internal_errors import reset_internal_errors

TYPE = "langfuse.observation.type"


@pytest.fixture
def provider():
    """A TracerProvider of Langfuse's SDK alone, and what it would have sent."""
    made, sent = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    client = Langfuse(
        public_key="pk-lf-1",
        secret_key="sk-lf-2",
        base_url="http://127.0.0.1:9",
        tracer_provider=made,
        span_exporter=sent,
    )
    undo = langfuse_sdk.listen(package)
    yield made, client, sent
    undo()
    LangfuseResourceManager.reset()
    made.shutdown()


@pytest.fixture
def row():
    """Make a row of a call made right now."""

    def of_a_call(**more):
        with capture(**more) as rows:
            recording, _ = join_call.join(runtime.active(), {"model": "m"})
            recording.end("success")
        return rows[0]

    return of_a_call


def test_a_generation_of_another_provider(provider, row):
    """Where Langfuse has a provider of its own, the row is in the same trace, under it."""
    _, client, _ = provider
    generation = client.start_observation(name="call", as_type="generation")
    made = row()
    generation.end()

    assert (made.trace_id, made.parent_span_id) == (generation.trace_id, generation.id)
    assert made.attributes == {TYPE: "span"}


def test_it_is_asked_for_once(provider, row):
    """A generation is for the call it was opened for, and not for the next one."""
    _, client, _ = provider
    generation = client.start_observation(name="call", as_type="generation")
    first, second = row(), row()
    generation.end()

    assert first.attributes == {TYPE: "span"}
    assert second.attributes == {}
    assert second.parent_span_id is None


@pytest.mark.parametrize("kind", ["span", "tool"])
def test_what_is_no_generation(provider, row, kind):
    """Other observations do not stand for a call."""
    _, client, _ = provider
    observation = client.start_observation(name="step", as_type=kind)
    made = row()
    observation.end()

    assert made.attributes == {}


def test_a_generation_that_is_over(provider, row):
    """One that has ended was for something else."""
    _, client, _ = provider
    client.start_observation(name="call", as_type="generation").end()

    assert row().attributes == {}


def test_contexts_do_not_mix(provider, row):
    """A generation opened in another context stands for a call made there."""
    _, client, _ = provider
    opened = contextvars.copy_context().run(
        client.start_observation, name="call", as_type="generation"
    )
    made = row()
    opened.end()

    assert made.attributes == {}


def test_it_is_undone(provider):
    """Afterwards the SDK's class is as it was."""
    del provider
    ours = Langfuse.start_observation
    undo = langfuse_sdk.listen(package)
    undo()

    assert Langfuse.start_observation is ours
    assert not hasattr(Langfuse.start_observation.__wrapped__, "__wrapped__")


def test_a_generation_that_is_the_current_span(provider, row):
    """Inside what the application records as a generation itself, a call is a part of it."""
    made, client, _ = provider
    with client.start_as_current_observation(name="call", as_type="generation") as generation:
        in_it = row(tracer_provider=made)

    assert (in_it.trace_id, in_it.parent_span_id) == (generation.trace_id, generation.id)
    assert in_it.attributes == {TYPE: "span"}


@pytest.mark.parametrize(
    "attributes",
    [{"openinference.span.kind": "LLM"}, {"gen_ai.operation.name": "chat"}],
    ids=["OpenInference", "OpenTelemetry GenAI"],
)
def test_another_instrumentation_around(provider, row, attributes):
    """A call that another library records for Langfuse as well counts once: as theirs."""
    made, _, _ = provider
    with made.get_tracer("another").start_as_current_span("call", attributes=attributes):
        counted = row(tracer_provider=made)
    with (
        TracerProvider(shutdown_on_exit=False)
        .get_tracer("another")
        .start_as_current_span("call", attributes=attributes)
    ):
        elsewhere = row()

    assert counted.attributes == {TYPE: "span"}
    assert elsewhere.attributes == {}


def test_a_client_of_a_package_that_changed(provider, row, monkeypatch):
    """Without what llmtrace looks for, a call is recorded as any other."""
    _, client, _ = provider
    generation = client.start_observation(name="call", as_type="generation")
    span = generation._otel_span
    monkeypatch.delattr(generation, "_otel_span")
    made = row()
    span.end()

    assert made.attributes == {}
    assert internal_errors() == {}


def test_the_generation_records_a_failure(provider):
    """What Langfuse's SDK cannot know of a stream's end, its generation says all the same."""
    _, client, sent = provider
    with serve() as engine, capture(instrument=["openai"]) as rows:
        asking = openai.OpenAI(base_url=engine.url, api_key="none", max_retries=0)
        generation = client.start_observation(name="call", as_type="generation")
        stream = asking.chat.completions.create(
            model="llmtrace-sim",
            messages=[{"role": "user", "content": "Hello"}],
            stream=True,
            extra_headers={"x-llmtrace-sim": "error_after=2"},
        )
        with pytest.raises(openai.APIError):
            list(stream)
        generation.end()
        asking.close()
    client.flush()
    (span,) = sent.get_finished_spans()

    assert rows[0].outcome == "error"
    assert span.attributes["langfuse.observation.level"] == "ERROR"
    assert span.attributes["langfuse.observation.status_message"].startswith("the request failed")


def test_the_sink_stands_back_for_one_project_only(provider):
    """A provider that sends to the project does it; for another the sink sends, too."""
    made, _, _ = provider
    other = TracerProvider(shutdown_on_exit=False)
    other.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))

    class Sink:
        every_row, spans = False, True

        def __init__(self):
            self.rows = []
            self.write = self.rows.append

        def left_to(self, own):
            return any(
                isinstance(one, LangfuseSpanProcessor)
                for one in own._active_span_processor._span_processors
            )

    wrote = []
    for own in (made, other):
        sink = Sink()
        with capture(tracer_provider=own, sinks=[sink]) as rows:
            list(llmtrace.wrap(iter("ab")))
        wrote.append(len(sink.rows))
        assert len(rows) == 1
    other.shutdown()

    assert wrote == [0, 1]


def test_the_names_of_user_session_and_tags():
    """They are recorded by names that everybody knows, and hold for the calls inside."""

    @llmtrace.trace(tags=["beta"])
    def turn():
        llmtrace.annotate(user="ada", session="s-1")
        for _ in range(2):
            list(llmtrace.wrap(iter("ab"), user="ada"))

    with capture() as rows:
        turn()
    expected = {"user.id": "ada", "session.id": "s-1", "tag.tags": ("beta",)}

    assert [row.attributes for row in rows] == [expected, expected]
    assert [row.nested for row in rows] == [False, False]
    assert len({row.parent_span_id for row in rows} - {None}) == 1


@pytest.mark.parametrize("wrong", ["beta", [1], {"beta"}])
def test_tags_are_a_list_of_words(wrong):
    """A single word is an easy slip, and said at decoration."""
    with pytest.raises(llmtrace.ConfigError, match="tags must be a list of strings"):
        llmtrace.trace(tags=wrong)


def test_a_span_opened_inside_is_the_parent_of_what_follows():
    """In an application's own provider, a second call lies under the span it was made in."""
    own, sent = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    own.add_span_processor(SimpleSpanProcessor(sent))

    @llmtrace.trace
    def turn():
        with own.get_tracer("shop").start_as_current_span("step"):
            list(llmtrace.wrap(iter("ab")))
        list(llmtrace.wrap(iter("ab")))

    with capture(tracer_provider=own) as rows:
        turn()
    own.shutdown()
    (step,) = [one for one in sent.get_finished_spans() if one.name == "step"]
    in_step, after = rows

    assert in_step.parent_span_id == f"{step.context.span_id:016x}"
    assert f"{step.parent.span_id:016x}" == after.parent_span_id
    assert trace.get_current_span() is trace.INVALID_SPAN


@pytest.mark.parametrize("environment", ["staging", "Not one that Langfuse takes", None])
def test_spans_pass_the_filter_of_langfuses_processor(provider, monkeypatch, environment):
    """Through the SDK's own way go the row and its stages, with what Langfuse reads off them."""
    made, client, sent = provider
    if environment is None:
        monkeypatch.delenv("LANGFUSE_TRACING_ENVIRONMENT", raising=False)
    else:
        monkeypatch.setenv("LANGFUSE_TRACING_ENVIRONMENT", environment)
    with capture(tracer_provider=made) as rows:
        list(llmtrace.wrap(iter("ab"), model="m", user="ada"))
    client.flush()
    *stages, row = sent.get_finished_spans()
    label = {"staging": "staging"}.get(environment)

    assert row.attributes["langfuse.observation.type"] == "generation"
    assert row.attributes["langfuse.observation.model.name"] == "m"
    assert row.attributes["llmtrace.e2e"] == rows[0].e2e_s
    assert row.attributes["langfuse.internal.is_app_root"] is True
    assert {one.name for one in stages} == {name for name, *_ in laid_out(rows[0])}
    for span in (*stages, row):
        assert span.attributes["user.id"] == "ada"
        assert span.attributes.get("langfuse.environment") == label
    for span in stages:
        assert span.attributes["langfuse.observation.type"] == "span"
        assert "langfuse.internal.is_app_root" not in span.attributes


def test_a_span_that_is_no_row_passes_the_filter(provider):
    """A gateway's hop, which says nothing of GenAI, is kept as well."""
    made, client, sent = provider
    hop = Span(
        name="proxy", trace_id="1" * 32, span_id="2" * 16, service="shop", start=1, duration_ns=5
    )
    with capture(tracer_provider=made):
        runtime.active().emit_span(hop)
    client.flush()
    (span,) = sent.get_finished_spans()

    assert (span.name, span.attributes["langfuse.observation.type"]) == ("proxy", "span")


def test_a_clients_own_span_inside_ours_is_not_counted(provider):
    """What the client opens around its sending is shown in Langfuse, and counts no tokens."""
    made, _, sent = provider
    theirs = made.get_tracer("com.anthropic.sdk.python")
    ours = made.get_tracer("llmtrace").start_span("chat")
    with theirs.start_as_current_span("call", attributes={"gen_ai.operation.name": "chat"}):
        coexistence.count_ours(ours)
    with theirs.start_as_current_span("step", attributes={"gen_ai.operation.name": "x"}):
        coexistence.count_ours(ours)
    ours.end()
    made.force_flush()
    call, step = sent.get_finished_spans()

    assert call.attributes[TYPE] == "span"
    assert call.attributes["langfuse.observation.usage_details"] == "{}"
    assert TYPE not in step.attributes


def test_a_listener_that_fails_costs_the_application_nothing(provider, monkeypatch):
    """An observation that cannot be remembered is returned all the same."""
    _, client, _ = provider
    reset_internal_errors()
    monkeypatch.setattr(langfuse_sdk.weakref, "ref", None)
    made = client.start_observation(name="call", as_type="generation")
    made.end()

    assert made.id
    assert internal_errors() == {"langfuse": 1}
    reset_internal_errors()
