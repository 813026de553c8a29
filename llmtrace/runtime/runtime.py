"""Start recordings, and hand finished rows to the sinks.

`Runtime` holds what `llmtrace.init` set up; without one every wrapper is a no-op. `current` is the
recording that the code running right now belongs to.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakSet

from opentelemetry import context as otel_context
from opentelemetry import trace as otel_trace
from opentelemetry.environment_variables import OTEL_PYTHON_TRACER_PROVIDER

from llmtrace.core.content import Content, ContentPolicy
from llmtrace.core.failopen import internal_error
from llmtrace.core.random_ids import random_id
from llmtrace.core.recording import Defer, Recording
from llmtrace.core.request_clock import Clock
from llmtrace.core.row import TURN
from llmtrace.core.row_fields import WIRE_NAMES
from llmtrace.core.span import Span as FinishedSpan
from llmtrace.exporters import tracer_provider as provider
from llmtrace.exporters.langfuse import coexistence
from llmtrace.exporters.sink import Receiver, Sink, receiver
from llmtrace.exporters.span_layout import failure_text
from llmtrace.runtime import proxied_request, scope, trace_context
from llmtrace.runtime.trace_context import TO_ALL, HeaderPolicy, TraceContext

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue

    from llmtrace.core.row import Outcome, Row
    from llmtrace.core.span import SpanKind

current: ContextVar[Recording | None] = ContextVar("llmtrace_current", default=None)


def enclosing() -> Recording | None:
    """Return the recording around the code that runs now: a function's, if that is a span."""
    around = current.get()
    return around if around is None or around.function is None else around.function


def _fields(around: Recording) -> Mapping[str, Any]:
    """Return the row fields that hold for what begins inside a decorated function."""
    if around.function is not around or around.labels is None or around.ended:
        return {}
    return around.labels[1]


# Takes the finished rows of what runs now first, if another source will add to them.
awaited: ContextVar[Defer | None] = ContextVar("llmtrace_awaited", default=None)

_INSTRUMENTATION_NAME: Final = "llmtrace"
# The operation of a decorated function that is a span around several calls.
WORKFLOW: Final = "invoke_workflow"
# What stands for a provider where the application has none.
_NO_PROVIDER: Final = (otel_trace.ProxyTracerProvider, otel_trace.NoOpTracerProvider)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What `init` set up: who we are, where rows go, and by which clock.

    Attributes:
        labels: row fields every request of this process carries (`region`, `version`, `tenant`).
        sample: share of requests whose row is written out; counters see all of them.
        tracer_provider: the application's; `None` = look at OpenTelemetry's global one.
        ask_usage: add `include_usage` to streamed requests whose client did not request it.
        content: how prompts, answers and tool calls are recorded; `None` = they are not.
        headers: which servers get ours.
        receivers: the sinks, with all that a sink may have.
        names_provider: whether the environment names OpenTelemetry's global provider.
    """

    service: str
    sinks: Sequence[Sink] = ()
    labels: Mapping[str, Any] = field(default_factory=dict)
    sample: float = 1.0
    tracer_provider: TracerProvider | None = None
    ask_usage: bool = True
    content: ContentPolicy | None = None
    headers: HeaderPolicy = TO_ALL
    names_provider: bool = field(default_factory=lambda: OTEL_PYTHON_TRACER_PROVIDER in os.environ)
    clock: Clock = time.perf_counter_ns
    wall: Clock = time.time_ns
    receivers: tuple[Receiver, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "receivers", tuple(map(receiver, self.sinks)))

    def start(self, info: Mapping[str, Any], *, generation: Span | None = None) -> Recording:
        """Start the recording of one request with the row fields known so far.

        `generation` is what Langfuse's own SDK records the same call as.
        """
        around = enclosing()
        surroundings = otel_context.get_current()  # empty in most applications without a tracer
        known = {"service": self.service, **self.labels}
        if surroundings:
            known |= scope.fields()
        if around is not None:
            known |= _fields(around)
        known |= info
        recording = Recording(self._emit, known, clock=self.clock, wall=self.wall)
        if around is not None and around.function is around and around.labels is not None:
            recording.attributes |= around.labels[2]
        recording.span = identity = trace_context.of_request(
            recording,
            None if around is None or around.ended else around,
            self._tracer,
            self.sample,
            alone=not surroundings,
            generation=generation,
            defer=awaited.get(),
        )
        _open.add(recording)
        known["trace_id"] = identity.trace_id
        known["span_id"] = identity.span_id
        known["parent_span_id"] = identity.parent_span_id
        relay = proxied_request.current.get()
        if relay is not None and known.get("operation") != TURN:
            # This process is a gateway, and the request one that it makes upstream.
            known.setdefault("request_id", relay.next_request_id())
            relay.calls_upstream(recording)
        if self.content is not None and identity.sampled:
            recording.content = Content(self.content)
        if surroundings:
            scope.begins(recording, self.clock)
        if "request_id" not in known:
            known["request_id"] = f"lt-{identity.span_id}"
        return recording

    def separate(self, around: Recording) -> None:
        """Make a decorated function a span of its own, apart from the call it has made, if any.

        Without a provider the call keeps the ids, which its request has carried to the server. A
        provider's span began with the function and stays the function's.
        """
        if not around.joined and around.call_ended is None:
            around.function = own = around
            around.joined = True
            scope.withdraw(around)
            relay = proxied_request.current.get()
            if relay is not None:
                relay.withdraw(around)
        else:
            start, started, identity = around.start, around.started_unix_ns, around.span
            info = {**around.info, "operation": WORKFLOW}
            own = Recording(self._emit, info, clock=around.clock, wall=lambda: started)
            own.start = own.mark = start
            own.wait_started = 0
            own.in_decorated_function = own.joined = True
            own.labels, own.function, around.function = around.labels, own, own
            own.span = identity._replace(generation=None)
            if identity.span is None:
                own.span = own.span._replace(span_id=random_id(8))
                around.span = identity._replace(parent_span_id=own.span.span_id)
            around.info["parent_span_id"] = own.span.span_id
            info["span_id"] = own.span.span_id
            if identity.span is not None:
                at = started + (0 if around.call_began is None else around.call_began.at - start)
                around.span = trace_context.child_of(identity, self._tracer, around.info, at)
                around.info["span_id"] = around.span.span_id
        own._emit = self._emit_function  # noqa: SLF001 - it is no request
        if own is not around:
            around.becomes_its_call()

    def _emit_function(self, recording: Recording, row: Row) -> None:
        """Write the span of a decorated function that is no request."""
        name, fields, attributes = recording.labels or ("", {}, {})
        identity: TraceContext = recording.span
        said = {WIRE_NAMES[key]: value for key, value in fields.items() if key in WIRE_NAMES}
        span = FinishedSpan(
            name=f"{WORKFLOW} {name}".strip(),
            trace_id=identity.trace_id,
            span_id=identity.span_id,
            parent_span_id=identity.parent_span_id,
            service=row.service,
            start=row.start,
            duration_ns=row.e2e_ns,
            attributes={
                "gen_ai.operation.name": WORKFLOW, "gen_ai.workflow.name": name, **said,
                **attributes,
            },
            error=failure_text(row.outcome, row.error_type),
        )  # fmt: skip
        self.close_span(identity, span)

    @property
    def _provider(self) -> TracerProvider | None:
        """The application's own TracerProvider, if it has one."""
        own = self.tracer_provider
        if own is None:
            # Its own getter looks into the environment each time, until there is one.
            unset = getattr(otel_trace, "_TRACER_PROVIDER", _NO_PROVIDER) is None
            if unset and not self.names_provider:
                return None
            own = otel_trace.get_tracer_provider()
        return None if isinstance(own, _NO_PROVIDER) else own

    @property
    def _tracer(self) -> Tracer | None:
        own = self._provider
        return None if own is None else own.get_tracer(_INSTRUMENTATION_NAME)

    def _emit(self, recording: Recording, row: Row) -> None:
        _open.discard(recording)
        identity: TraceContext = recording.span
        if identity.generation is not None:
            coexistence.ended(identity.generation, recording.info, row.outcome, row.error_type)
        if identity.defer is None:
            self._write(identity, row)
        else:
            identity.defer(row, partial(self._write, identity))

    def _write(self, identity: TraceContext, row: Row) -> None:
        if self.sample < 1 and identity.span is None:  # else the application's sampler decided
            row = replace(row, weight=1 / max(self.sample, trace_context.MIN_SHARE))
        own = None if identity.span is None else self._provider
        for sink in self.receivers:
            try:
                if own is not None and sink.spans and sink.left_to(own):
                    continue
                if identity.sampled or sink.every_row:
                    sink.write(row)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - it costs no other sink
                internal_error(f"export.{sink.name}", error)
        if identity.span is not None:
            try:
                provider.finish(identity.span, row, identity.context)
            except Exception as error:  # noqa: BLE001
                internal_error("export.provider", error)

    def open_span(
        self, name: str, kind: SpanKind, start: int, context: Context | None = None
    ) -> TraceContext:
        """Give a span its ids now, so that what runs inside `context` become its children.

        It starts at `start`, in unix nanoseconds, in `context` or the current one. `close_span`
        may change the name.
        """
        return trace_context.of_span(
            name, kind, start, self._tracer, share=self.sample, context=context
        )

    def close_span(self, identity: TraceContext, span: FinishedSpan) -> None:
        """End a span that `open_span` gave its ids, and write it. Never raises."""
        own = None if identity.span is None else self._provider
        if identity.span is not None and own is not None:
            try:
                provider.end(own.get_tracer(_INSTRUMENTATION_NAME), identity.span, span)
            except Exception as error:  # noqa: BLE001 - the application must not notice
                internal_error("export.provider", error)
        self._write_span(span, own, sampled=identity.sampled)

    def _write_span(
        self, span: FinishedSpan, own: TracerProvider | None, *, sampled: bool = True
    ) -> None:
        for sink in self.receivers:
            try:
                sent = sampled and sink.spans and not (own is not None and sink.left_to(own))
                if sent or sink.every_span:
                    sink.write(span)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - it costs no other sink
                internal_error(f"export.{sink.name}", error)

    def samples_root(
        self, trace_id: str, name: str, attributes: Mapping[str, AttributeValue]
    ) -> bool | None:
        """Say whether a trace with this root is sampled, by the application's own sampler.

        Args:
            trace_id: 32 hex digits.
            name: of its root span.
            attributes: that samplers may decide by.

        Returns:
            Without a provider, whether it is in the `sample` share; `None` if the provider's
            sampler cannot be called.
        """
        own = self._provider
        if own is None:
            return trace_context.in_sample(trace_id, self.sample)
        try:
            return provider.samples_root(own, trace_id, name, attributes)
        except Exception as error:  # noqa: BLE001 - a sampler of the application's own
            internal_error("sampler", error)
            return None

    def beside(self, recording: Recording, generation: Span) -> None:
        """Note that Langfuse's own SDK records a call of a request that has begun already."""
        recording.span = recording.span._replace(generation=generation)
        coexistence.mark(recording.attributes)
        # The generation ends with its stream, and not with the function around it.
        recording.on_stream_end = partial(coexistence.ended, generation, recording.info)

    def emit_span(self, span: FinishedSpan, context: Context | None = None) -> None:
        """Hand a finished span that is no row to whatever writes spans. Never raises.

        Args:
            span: with ids of its own, inside a request's or another's trace.
            context: where the application's own provider is used, its parent's; such a provider
                gives the span another id, so it is for spans that have no children.
        """
        own = self._provider
        if own is not None:
            try:
                provider.write(own.get_tracer(_INSTRUMENTATION_NAME), span, context)
            except Exception as error:  # noqa: BLE001 - the application must not notice
                internal_error("export.provider", error)
        self._write_span(span, own)


class Open(Protocol):
    """A request, turn or tool call that has begun; `start` is by the runtime's clock."""

    start: int

    def end(self, outcome: Outcome) -> None:
        """End it with this outcome, unless it has ended."""


# What has begun and not ended. A stream may be dropped without a word, so nothing is kept alive.
_open: WeakSet[Open] = WeakSet()


def _disown_open() -> None:
    while _open:
        if isinstance(one := _open.pop(), Recording):
            one.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_open)


def end_open() -> None:
    """End all that has begun and not ended as cancelled, what is inside others first.

    A stream that the consumer has ends with its last read: it may have been left long ago.
    """
    found: list[Open] = []
    with suppress(RuntimeError):  # other threads went on meanwhile
        found = list(_open)
    for one in sorted(found or list(_open), key=attrgetter("start"), reverse=True):
        end = partial(one.end, "cancelled")
        if isinstance(one, Recording) and one.open:
            one.ends_unseen(end)
        else:
            end()


def opened(one: Open) -> None:
    """Note that something has begun, to be ended with the process."""
    _open.add(one)


def closed(one: Open) -> None:
    """Note that what had begun has ended."""
    _open.discard(one)


_active: Runtime | None = None
_captured: Runtime | None = None


def active() -> Runtime | None:
    """Return what `init` set up, or `None` if it was not called: then nothing is recorded."""
    return _captured or _active


def activate(runtime: Runtime | None) -> Runtime | None:
    """Make a runtime the process's own, and return the one before."""
    global _active  # the one piece of process-wide state there is
    before, _active = _active, runtime
    return before


def capture(runtime: Runtime | None) -> Runtime | None:
    """Record by a test's runtime, whatever is the process's own; return the test's before."""
    global _captured
    before, _captured = _captured, runtime
    return before


class entered:  # noqa: N801 - reads as the verb it is: `with entered(recording):`
    """Make a recording the current one for the code inside, and its span the current span.

    A class because it runs around every step of a wrapped generator.
    """

    __slots__ = ("_attached", "_recording", "_token")

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def __enter__(self) -> None:
        self._token = current.set(self._recording)
        context = self._recording.span.context
        self._attached = None if context is None else otel_context.attach(context)

    def __exit__(self, *_: object) -> None:
        try:
            current.reset(self._token)
        except ValueError:  # torn down by the garbage collector, in another context
            return
        if self._attached is not None:
            otel_context.detach(self._attached)
