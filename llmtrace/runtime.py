"""Where do recordings start and finished rows go?

`Runtime` holds what `llmtrace.init` set up; without one every wrapper is a no-op. `current` is the
recording that the code running right now belongs to.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast

from opentelemetry import context as otel_context
from opentelemetry import trace as otel_trace

from llmtrace.export import provider
from llmtrace.export.sink import Sink, SpanSink
from llmtrace.failopen import internal_error
from llmtrace.record import Clock, Recording, random_id

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

    from llmtrace.rows import Row
    from llmtrace.spans import Span as FinishedSpan

current: ContextVar[Recording | None] = ContextVar("llmtrace_current", default=None)

_INSTRUMENTATION_NAME: Final = "llmtrace"


@dataclass(frozen=True, slots=True)
class SpanIdentity:
    """The ids a request goes by, and the application's own span where it has a provider."""

    trace_id: str
    span_id: str
    parent_span_id: str | None
    sampled: bool
    context: Context | None = None
    span: Span | None = None

    @property
    def traceparent(self) -> str:
        """The W3C header that makes the server's spans children of this request."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What `init` set up: who we are, where rows go, and by which clock.

    Attributes:
        labels: row fields every request of this process carries (`region`, `version`, `tenant`).
        sample: share of requests whose row is written out; counters see all of them.
        tracer_provider: the application's; `None` = look at OpenTelemetry's global one.
        ask_usage: add `include_usage` to streamed requests whose caller did not ask for it.
    """

    service: str
    sinks: Sequence[Sink] = ()
    labels: Mapping[str, Any] = field(default_factory=dict)
    sample: float = 1.0
    tracer_provider: TracerProvider | None = None
    ask_usage: bool = True
    clock: Clock = time.perf_counter_ns
    wall: Clock = time.time_ns

    def start(self, info: dict[str, Any], *, held_from_start: bool = False) -> Recording:
        """Start the recording of one request with the row fields known so far."""
        recording = Recording(
            self._emit,
            {"service": self.service, **self.labels, **info},
            clock=self.clock,
            wall=self.wall,
            held_from_start=held_from_start,
        )
        recording.span = identity = self._identity(recording)
        recording.info["trace_id"] = identity.trace_id
        recording.info["span_id"] = identity.span_id
        recording.info["parent_span_id"] = identity.parent_span_id
        recording.info.setdefault("request_id", f"lt-{identity.span_id}")
        return recording

    def _identity(self, recording: Recording) -> SpanIdentity:
        around = current.get()
        if around is not None and not around.ended:
            # A second request inside a decorated function is a child of the first.
            context = around.span.context
            parent = around.span.trace_id, around.span.span_id
            sampled = around.span.sampled
        else:
            context, parent, sampled = None, None, True
            outside = otel_trace.get_current_span().get_span_context()
            if outside.is_valid:
                parent = f"{outside.trace_id:032x}", f"{outside.span_id:016x}"
                sampled = outside.trace_flags.sampled
        own = self.tracer_provider or otel_trace.get_tracer_provider()
        if not isinstance(own, otel_trace.ProxyTracerProvider | otel_trace.NoOpTracerProvider):
            span = provider.start(
                own.get_tracer(_INSTRUMENTATION_NAME),
                recording.info.get("operation", "chat"),
                recording.started_unix_ns,
                context,
            )
            ids = span.get_span_context()
            return SpanIdentity(
                trace_id=f"{ids.trace_id:032x}",
                span_id=f"{ids.span_id:016x}",
                parent_span_id=None if parent is None else parent[1],
                sampled=ids.trace_flags.sampled,
                context=otel_trace.set_span_in_context(span, context),
                span=span,
            )
        trace_id = random_id(16) if parent is None else parent[0]
        return SpanIdentity(
            trace_id=trace_id,
            span_id=random_id(8),
            parent_span_id=None if parent is None else parent[1],
            sampled=sampled and _in_sample(trace_id, self.sample),
        )

    def _emit(self, recording: Recording, row: Row) -> None:
        identity: SpanIdentity = recording.span
        if self.sample < 1 and identity.span is None:  # else the application's sampler decided
            row = replace(row, weight=1 / max(self.sample, _LEAST_SHARE))
        for sink in self.sinks:
            try:
                if identity.span is not None and getattr(sink, "spans", False):
                    continue  # the application's own provider sends them
                if identity.sampled or getattr(sink, "every_row", False):
                    sink.write(row)
            except Exception as error:  # noqa: BLE001 - one bad sink must not cost the others
                internal_error(f"export.{type(sink).__name__}", error)
        if identity.span is not None:
            try:
                provider.finish(identity.span, row, identity.context)
            except Exception as error:  # noqa: BLE001
                internal_error("export.provider", error)

    def emit_span(self, span: FinishedSpan, context: Context | None = None) -> None:
        """Hand a finished span that is no row to whatever writes spans. Never raises.

        Args:
            span: with ids of its own, inside a request's or another's trace.
            context: where the application's own provider is used, its parent's; such a provider
                gives the span another id, so it is for spans that have no children.
        """
        own = self.tracer_provider or otel_trace.get_tracer_provider()
        try:
            if not isinstance(own, otel_trace.ProxyTracerProvider | otel_trace.NoOpTracerProvider):
                provider.write(own.get_tracer(_INSTRUMENTATION_NAME), span, context)
                return
            for sink in self.sinks:
                if getattr(sink, "spans", False):
                    cast("SpanSink", sink).write(span)
        except Exception as error:  # noqa: BLE001 - the application must not notice
            internal_error("export.span", error)


# A trace id cannot tell smaller shares apart; a share of 0 must not be divided by.
_LEAST_SHARE: Final = 1 / (1 << 56)


def _in_sample(trace_id: str, share: float) -> bool:
    # The right-most 7 bytes are the random ones (W3C trace context, level 2), so that every
    # process that sees this trace comes to the same answer.
    return share >= 1 or int(trace_id[-14:], 16) < share * (1 << 56)


_active: Runtime | None = None


def active() -> Runtime | None:
    """Return what `init` set up, or `None` if it was not called: then nothing is recorded."""
    return _active


def activate(runtime: Runtime | None) -> Runtime | None:
    """Make a runtime the process's own, and return the one before."""
    global _active  # the one piece of process-wide state there is
    before, _active = _active, runtime
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
        if self._attached is not None:
            otel_context.detach(self._attached)
        current.reset(self._token)
