"""A row reaches every sink it should, under the right ids, and no other."""

from __future__ import annotations

import re
from contextlib import suppress
from contextvars import copy_context
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import context as otel_context
from opentelemetry import trace as otel_trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanContext, TraceFlags

import llmtrace
from llmtrace.core.failopen import fails_open, internal_error, internal_errors
from llmtrace.core.row import Row
from llmtrace.core.span import Span as FinishedSpan
from llmtrace.runtime.runtime import Runtime, activate, active, current, entered
from llmtrace.testing import FakeClock, capture
from tests.strategies import hexes
from tests.support.internal_errors import reset_internal_errors

PARENT = SpanContext(
    trace_id=0x4BF92F3577B34DA6A3CE929D0E0E4736,
    span_id=0x00F067AA0BA902B7,
    is_remote=True,
    trace_flags=TraceFlags(TraceFlags.SAMPLED),
)


@pytest.fixture(autouse=True)
def _alone():
    """No runtime, recording or count is left from another test."""
    reset_internal_errors()
    before = activate(None)
    yield
    activate(before)
    reset_internal_errors()


class Sink:
    """A sink that keeps what it is given."""

    def __init__(self, *, every_row: bool = False) -> None:
        self.every_row = every_row
        self.spans = False
        self.rows: list[Row] = []

    def write(self, row: Row) -> None:
        """Keep a row."""
        self.rows.append(row)


class Plain:
    """A user's own sink: it has nothing but `write`."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def write(self, row: Row) -> None:
        """Keep a row."""
        self.rows.append(row)


class Broken:
    """A sink that always raises."""

    every_row = True

    def __init__(self, error: type[BaseException] = ConnectionError) -> None:
        self._error = error

    def write(self, row: Row) -> None:
        """Raise."""
        raise self._error(row.service)


def shop(*sinks: Any, **given: Any) -> Runtime:
    """Set up the runtime of a shop."""
    return Runtime(service="shop", sinks=sinks, **given)


def run(runtime: Runtime, trace_id: str | None = None) -> None:
    """Make one request, in a trace of one's own choice."""
    parent = otel_trace.INVALID_SPAN
    if trace_id is not None:
        parent = otel_trace.NonRecordingSpan(
            SpanContext(int(trace_id, 16), 7, is_remote=True, trace_flags=PARENT.trace_flags)
        )
    with otel_trace.use_span(parent):
        runtime.start({}).end("success")


# --- without init -------------------------------------------------------------------------------


def test_without_init_nothing_is_recorded():
    """Streams and functions stay the very objects they were, and marks do nothing."""
    stream = iter(["a"])

    @llmtrace.trace
    def answer():
        with llmtrace.stage("gateway"), llmtrace.render():
            llmtrace.annotate(model="tiny")
        return stream

    assert active() is None
    assert llmtrace.wrap(stream) is stream
    assert answer() is stream
    assert internal_errors() == {}


# --- sinks --------------------------------------------------------------------------------------


def test_every_sink_gets_the_row():
    """A finished row goes to each sink, the same one."""
    sinks = [Sink(), Sink(every_row=True), Plain()]
    run(shop(*sinks))

    assert len({id(row) for sink in sinks for row in sink.rows}) == 1
    assert [len(sink.rows) for sink in sinks] == [1, 1, 1]


@pytest.mark.parametrize("error", [ConnectionError, SystemExit])
def test_a_sink_that_raises_does_not_cost_the_others(error):
    """One broken backend is counted, and every other gets its row."""
    before, after = Sink(), Sink()
    run(shop(before, Broken(error), after))

    assert (len(before.rows), len(after.rows)) == (1, 1)
    assert internal_errors() == {"export.Broken": 1}


def test_an_interrupt_in_a_sink_is_the_applications():
    """What the user presses while a sink writes still stops the program."""
    with pytest.raises(KeyboardInterrupt):
        run(shop(Broken(KeyboardInterrupt)))


def test_spans_go_to_whatever_writes_spans():
    """Other sinks never see them, and one that raises reaches neither them nor the caller."""
    traces, counts, broken = Sink(), Sink(), Broken()
    traces.spans = broken.spans = True  # type: ignore[attr-defined]
    span = FinishedSpan(
        name="hop", trace_id="a" * 32, span_id="b" * 16, service="shop", start=1, duration_ns=2
    )
    shop(counts, broken, traces).emit_span(span)

    assert [span] == traces.rows
    assert counts.rows == []
    assert internal_errors() == {"export.Broken": 1}


def test_labels_are_on_every_row():
    """What init knows of the process is on the row, and what the call says wins."""
    sink = Sink()
    runtime = shop(sink, labels={"region": "eu", "model": "old"})
    runtime.start({"model": "new"}).end("success")

    assert (sink.rows[0].service, sink.rows[0].region, sink.rows[0].model) == ("shop", "eu", "new")


def test_the_runtimes_clocks_time_the_request():
    """A request is timed by the clock the runtime was given, and placed by its wall clock."""
    clock, sink = FakeClock(), Sink()
    recording = shop(sink, clock=clock, wall=lambda: 99).start({})
    clock.advance(1.5)
    recording.end("success")

    assert (sink.rows[0].e2e_s, sink.rows[0].start) == (1.5, 99)


# --- sampling -----------------------------------------------------------------------------------


@given(hexes(16), st.floats(0, 1))
def test_sampling_goes_by_the_trace_id(trace_id, share):
    """A trace is kept or not by the random part of its id alone, so every process agrees."""
    kept, counted = Sink(), Sink(every_row=True)
    run(shop(kept, counted, sample=share), trace_id)

    wanted = share == 1 or int(trace_id, 16) % 2**56 < share * 2**56
    assert (len(kept.rows), len(counted.rows)) == (int(wanted), 1)


@given(st.floats(1e-9, 1))
def test_a_row_stands_for_those_left_out(share):
    """A row's weight is how many requests it stands for, in every sink."""
    counted = Sink(every_row=True)
    run(shop(counted, sample=share))

    assert counted.rows[0].weight == pytest.approx(1 / share)


def test_with_nothing_sampled_everything_is_counted():
    """A share of 0 writes no row, and counters still see them all."""
    kept, counted, plain = Sink(), Sink(every_row=True), Plain()
    run(shop(kept, plain, counted, sample=0.0))

    assert (kept.rows, plain.rows, len(counted.rows)) == ([], [], 1)
    assert internal_errors() == {}


def test_about_the_asked_share_is_kept():
    """Of traces with random ids, the share that was asked for is kept."""
    kept = Sink()
    runtime = shop(kept, sample=0.25)
    for _ in range(2_000):
        run(runtime)

    assert 380 < len(kept.rows) < 620  # 500, and six standard deviations to either side


def test_a_parent_that_is_not_sampled_is_followed():
    """A caller that left its trace out leaves our row out, too."""
    kept = Sink()
    parent = SpanContext(PARENT.trace_id, PARENT.span_id, is_remote=True)
    with otel_trace.use_span(otel_trace.NonRecordingSpan(parent)):
        shop(kept).start({}).end("success")

    assert kept.rows == []


# --- ids ----------------------------------------------------------------------------------------


def test_a_request_of_its_own_starts_a_trace():
    """Without anything around it, a request has fresh ids and no parent."""
    sink = Sink()
    runtime = shop(sink)
    run(runtime)
    run(runtime)
    first, second = sink.rows

    assert re.fullmatch("[0-9a-f]{32}", first.trace_id)
    assert re.fullmatch("[0-9a-f]{16}", first.span_id)
    assert first.parent_span_id is None
    assert (first.trace_id, first.span_id) != (second.trace_id, second.span_id)
    assert first.request_id == f"lt-{first.span_id}"


def test_a_request_inside_a_span_is_its_child():
    """The application's current span is the parent."""
    sink = Sink()
    with otel_trace.use_span(otel_trace.NonRecordingSpan(PARENT)):
        shop(sink).start({}).end("success")
    row = sink.rows[0]

    assert row.trace_id == f"{PARENT.trace_id:032x}"
    assert row.parent_span_id == f"{PARENT.span_id:016x}"
    assert row.span_id != row.parent_span_id


def test_a_request_inside_a_request_is_its_child():
    """A second request within a recorded one is in the same trace, below it."""
    sink = Sink()
    runtime = shop(sink)
    outer = runtime.start({})
    with entered(outer):
        runtime.start({}).end("success")
    outer.end("success")
    inner, around = sink.rows

    assert (inner.trace_id, inner.parent_span_id) == (around.trace_id, around.span_id)


def test_an_ended_request_has_no_children():
    """A request after the one around it has ended starts a trace of its own."""
    sink = Sink()
    runtime = shop(sink)
    outer = runtime.start({})
    with entered(outer):
        outer.end("success")
        runtime.start({}).end("success")

    assert sink.rows[1].parent_span_id is None


@given(hexes(16))
def test_the_traceparent_is_the_standards(trace_id):
    """What is sent on is a W3C traceparent of these very ids."""
    parent = SpanContext(int(trace_id, 16), 7, is_remote=True, trace_flags=PARENT.trace_flags)
    with otel_trace.use_span(otel_trace.NonRecordingSpan(parent)):
        recording = shop().start({})

    assert recording.span.traceparent == f"00-{trace_id}-{recording.info['span_id']}-01"


def test_the_traceparent_says_what_is_not_kept():
    """The server learns that this trace is not sampled."""
    assert shop(sample=0.0).start({}).span.traceparent.endswith("-00")


def test_a_given_request_id_stays():
    """An id the caller knows the request by is kept."""
    assert shop().start({"request_id": "order-7"}).info["request_id"] == "order-7"


# --- the code inside ----------------------------------------------------------------------------


def test_a_recording_is_current_inside_and_not_after():
    """Entering makes a recording current; leaving, even by an error, takes it back."""
    recording = shop().start({})
    inside = None
    with suppress(ZeroDivisionError), entered(recording):
        inside = current.get()
        1 / 0  # noqa: B018

    assert (inside, current.get()) == (recording, None)


@pytest.mark.parametrize("own", [False, True], ids=["no provider", "own provider"])
def test_leaving_in_another_context_takes_nothing_back(own, caplog):
    """A coroutine that is torn down elsewhere, as by the collector, is closed without a word."""

    class Pause:
        def __await__(self):
            yield

    @llmtrace.trace
    async def ask():
        await Pause()

    with capture(tracer_provider=TracerProvider() if own else None) as rows:
        asking = ask()
        copy_context().run(asking.send, None)
        asking.close()

    assert [row.outcome for row in rows] == ["cancelled"]
    assert caplog.messages == []
    assert current.get() is None


# --- the application's own OpenTelemetry --------------------------------------------------------


@pytest.fixture
def spans():
    """What an application's own provider exported."""
    return InMemorySpanExporter()


@pytest.fixture
def provider(spans):
    """An application's own provider."""
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(spans))
    yield made
    made.shutdown()


def test_the_applications_provider_gets_the_client_span(provider, spans):
    """With a provider, a request is one of its spans, its stages below it, under the row's ids."""
    clock = FakeClock()
    with capture(clock=clock, tracer_provider=provider) as rows:

        @llmtrace.trace(model="tiny")
        def answer():
            clock.advance(0.2)
            yield "a"
            clock.advance(0.3)
            yield "b"

        assert list(answer()) == ["a", "b"]
    (row,) = rows
    by_name = {span.name: span for span in spans.get_finished_spans()}
    request = by_name.pop("chat tiny")

    assert (f"{request.context.trace_id:032x}", f"{request.context.span_id:016x}") == (
        row.trace_id,
        row.span_id,
    )
    assert request.kind is otel_trace.SpanKind.CLIENT
    assert request.end_time - request.start_time == row.e2e_ns == 500_000_000
    assert request.attributes["llmtrace.outcome"] == "success"
    assert {span.parent.span_id for span in by_name.values()} == {request.context.span_id}
    assert sum(span.end_time - span.start_time for span in by_name.values()) == row.e2e_ns


def test_the_span_is_current_inside_the_function(provider, spans):
    """Spans the application starts inside a recorded request are below it."""
    with capture(tracer_provider=provider) as rows:

        @llmtrace.trace
        def answer():
            with provider.get_tracer("app").start_as_current_span("work"):
                return "done"

        answer()
    work = next(span for span in spans.get_finished_spans() if span.name == "work")

    assert f"{work.parent.span_id:016x}" == rows[0].span_id
    assert not otel_trace.get_current_span(otel_context.get_current()).is_recording()


def test_the_applications_span_is_the_parent(provider):
    """A request inside a span of the application's is its child in the same provider."""
    with (
        capture(tracer_provider=provider) as rows,
        provider.get_tracer("app").start_as_current_span("page") as page,
    ):
        list(llmtrace.wrap(iter("ab")))
    around = page.get_span_context()

    assert rows[0].trace_id == f"{around.trace_id:032x}"
    assert rows[0].parent_span_id == f"{around.span_id:016x}"


def test_a_request_inside_a_request_is_below_it_in_the_provider(provider, spans):
    """Of a request in a decorated function the provider sees the same parent as the row."""
    with capture(tracer_provider=provider) as rows:

        @llmtrace.trace(model="outer")
        def answer():
            list(llmtrace.wrap(iter("ab"), model="inner"))
            return "done"

        answer()
    (inner,) = rows
    by_name = {span.name: span for span in spans.get_finished_spans()}
    outer = next(by_name[name] for name in by_name if name.startswith("invoke_workflow"))

    assert inner.parent_span_id == f"{outer.context.span_id:016x}"
    assert f"{by_name['chat inner'].parent.span_id:016x}" == inner.parent_span_id
    assert outer.parent is None


def test_the_global_provider_is_used_if_there_is_one(provider, spans, monkeypatch):
    """A provider the application set globally needs no mention."""
    monkeypatch.setattr(otel_trace, "_TRACER_PROVIDER", provider)
    with capture():
        list(llmtrace.wrap(iter("ab")))

    assert "chat" in {span.name for span in spans.get_finished_spans()}


def test_a_providers_own_sampling_is_followed():
    """What the application's provider leaves out is not written, and still counted."""
    kept, counted = Sink(), Sink(every_row=True)
    with capture(tracer_provider=TracerProvider(sampler=ALWAYS_OFF), sinks=[kept, counted]):
        list(llmtrace.wrap(iter("ab")))

    assert (len(kept.rows), len(counted.rows)) == (0, 1)
    assert internal_errors() == {}


@pytest.mark.parametrize("own", [True, False])
def test_a_request_is_sent_as_one_span(provider, own):
    """A sink that sends spans of its own gets no row where the application's provider does."""
    sink = Sink()
    sink.spans = True
    with capture(tracer_provider=provider if own else None, sinks=[sink]):
        list(llmtrace.wrap(iter("ab")))

    assert len(sink.rows) == int(not own)


def test_a_provider_that_breaks_is_counted(provider, monkeypatch):
    """An error on the provider's way out costs its span and not the row."""
    monkeypatch.setattr("llmtrace.exporters.tracer_provider.laid_out", lambda _: 1 / 0)
    with capture(tracer_provider=provider) as rows:
        list(llmtrace.wrap(iter("ab")))

    assert len(rows) == 1
    assert internal_errors() == {"export.provider": 1}


# --- failing open -------------------------------------------------------------------------------


class Mute(Exception):  # noqa: N818
    """An error that cannot even be shown."""

    def __str__(self) -> str:
        """Fail."""
        msg = "no words"
        raise RuntimeError(msg)


@pytest.mark.parametrize("error", [ValueError("x"), "lost", Mute()])
def test_an_internal_error_never_raises(error):
    """Whatever went wrong is counted by its kind."""
    internal_error("record", error)
    internal_error("record", error)

    assert internal_errors() == {"record": 2}


def test_an_internal_error_is_logged_once_a_kind(caplog):
    """The first of a kind is logged, with what it was; the others are only counted."""
    for kind in ("record", "record", "export"):
        internal_error(kind, OSError("no space"))

    assert [message.partition(" failed")[0] for message in caplog.messages] == ["record", "export"]
    assert "OSError: no space" in caplog.messages[0]


@pytest.mark.parametrize("level", ["WARNING", "DEBUG"])
def test_a_log_does_not_quote_what_was_asked(caplog, level):
    """An error that may hold a prompt is logged by its type and its place alone."""
    try:
        raise ValueError("the prompt")
    except ValueError as error:
        with caplog.at_level(level, "llmtrace"):
            internal_error("record", error)

    assert "ValueError in " in caplog.text
    assert "test_runtime.py:" in caplog.text
    assert "the prompt" not in caplog.text.replace('ValueError("the prompt")', "")  # our own line


def test_a_broken_log_does_not_raise(monkeypatch):
    """A logging handler that raises is not the application's problem."""
    monkeypatch.setattr("llmtrace.core.failopen.logger.warning", lambda *_, **__: 1 / 0)

    internal_error("record", "lost")

    assert internal_errors() == {"record": 1}


def test_a_procedure_that_fails_open():
    """A guarded procedure swallows and counts its own errors, and passes on its arguments."""
    seen = []

    @fails_open("note")
    def note(value: int) -> None:
        seen.append(1 / value)

    note(4)
    note(0)

    assert (seen, internal_errors()) == ([0.25], {"note": 1})
