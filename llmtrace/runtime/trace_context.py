"""The trace that a request is part of, its own span in it, and the parent of that span.

If the application has an OpenTelemetry provider, they are those of a span of that provider, begun
at once, so that what runs inside become its children; else they are ids of our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from opentelemetry import trace as otel_trace

from llmtrace.core.random_ids import random_id
from llmtrace.core.recording import Defer, Recording
from llmtrace.exporters import tracer_provider
from llmtrace.exporters.langfuse import coexistence
from llmtrace.runtime import scope

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer

    from llmtrace.core.span import SpanKind


class TraceContext(NamedTuple):
    """The ids a request goes by, and the application's own span where it has a provider.

    Attributes:
        context: the one in which its span is current; `None` = there is no span to be current.
        generation: what Langfuse's own SDK records the same call as.
        tracestate: what other systems add to the trace; passed on.
        defer: gets the finished row first, with what takes it on; must not raise.
    """

    trace_id: str
    span_id: str
    parent_span_id: str | None
    sampled: bool
    context: Context | None = None
    span: Span | None = None
    generation: Span | None = None
    tracestate: str = ""
    defer: Defer | None = None

    @property
    def traceparent(self) -> str:
        """The W3C header that makes the server's spans children of this request."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"

    def count_once(self) -> None:
        """Have Langfuse count a call once whose client has opened its own span inside ours."""
        if self.span is not None:
            coexistence.count_ours(self.span)


@dataclass(frozen=True, slots=True)
class HeaderPolicy:
    """Which servers get llmtrace's headers along with a request.

    Attributes:
        sent: to whom `traceparent` and `X-Request-Id` go: to all, to one's own hosts, to none.
        own_hosts: lower-case names; `*.example.com` stands for everything below `example.com`.
    """

    sent: Literal["all", "own", "none"] = "all"
    own_hosts: frozenset[str] = frozenset()

    def joins(self, host: str) -> bool:
        """Say whether a host gets `traceparent` and `X-Request-Id`."""
        return self.sent == "all" or (self.sent == "own" and self.is_own(host))

    def is_own(self, host: str) -> bool:
        """Say whether a host is one's own."""
        if not self.own_hosts:
            return False
        host = host.lower()
        parents = (f"*{host[at:]}" for at, letter in enumerate(host) if letter == ".")
        return host in self.own_hosts or any(parent in self.own_hosts for parent in parents)


TO_ALL: Final = HeaderPolicy()


class _Parent(NamedTuple):
    """The parent of a new span; without ids, it has none."""

    trace_id: str | None = None
    span_id: str | None = None
    sampled: bool = True
    tracestate: str = ""
    context: Context | None = None


_NOTHING: Final = _Parent()


def of_request(
    recording: Recording,
    around: Recording | None,
    tracer: Tracer | None,
    share: float,
    *,
    alone: bool = False,
    generation: Span | None = None,
    defer: Defer | None = None,
) -> TraceContext:
    """Give a request its ids, and note on it what it inherits from enclosing requests and turns.

    Args:
        recording: of the request.
        around: the recording it begins in, if that has not ended.
        tracer: of the application's own provider, if it has one.
        share: of requests whose spans are written out.
        alone: whether OpenTelemetry's current context is empty.
        generation: what Langfuse's own SDK records the same call as.
        defer: as of `TraceContext`.
    """
    if alone and generation is None and around is None and tracer is None:
        ids = random_id(24)
        sampled = in_sample(ids[:32], share)
        return TraceContext(ids[:32], ids[32:], None, sampled, None, None, None, "", defer)
    outside = otel_trace.get_current_span() if generation is None else generation
    parent, counted = _NOTHING, False
    if (known := outside.get_span_context()).is_valid:
        parent = _below(known)
        counted = coexistence.counts(outside)
    if generation is not None:
        parent = parent._replace(context=otel_trace.set_span_in_context(generation))
    if around is not None:
        # A second request inside a decorated function is a child of it: of its span, or of one
        # the application has opened since.
        if around.function is None:  # else it is a span, and no row
            recording.info["nested"] = True
        recording.attributes |= {
            name: around.attributes[name] for name in scope.INHERITED if name in around.attributes
        }
        counted = counted or _in_generation(around)
        if generation is None and not _opened_since(parent, around.span):
            parent = _inside(around.span)
    if counted:
        coexistence.mark(recording.attributes)  # there is one for this call
    if tracer is None:
        trace_id = parent.trace_id or random_id(16)
        return TraceContext(
            trace_id,
            random_id(8),
            parent.span_id,
            parent.sampled and in_sample(trace_id, share),
            generation=generation,
            tracestate=parent.tracestate,
            defer=defer,
        )
    span = tracer_provider.start(tracer, recording.info, recording.started_unix_ns, parent.context)
    return _of_span(span, parent.context, parent.span_id)._replace(
        generation=generation, defer=defer
    )


def child_of(
    around: TraceContext, tracer: Tracer | None, info: Mapping[str, Any], start: int
) -> TraceContext:
    """Give a call that has begun already a span of its own, inside the decorated function's.

    It began at `start`, in unix nanoseconds; `info` are its row fields.
    """
    if tracer is None:
        return around
    span = tracer_provider.start(tracer, info, start, around.context)
    return _of_span(span, around.context, around.span_id)._replace(
        generation=around.generation, defer=around.defer
    )


def of_span(
    name: str,
    kind: SpanKind,
    start: int,
    tracer: Tracer | None,
    *,
    share: float,
    context: Context | None,
) -> TraceContext:
    """Give a span that is no row its ids, and a context of its own.

    It starts at `start`, in unix nanoseconds, in `context` or the current one. `share` of requests
    have their spans written out; `tracer` is of the application's own provider, if it has one.
    """
    ids = otel_trace.get_current_span(context).get_span_context()
    parent = _below(ids) if ids.is_valid else _NOTHING
    if tracer is not None:
        span = tracer_provider.begin(tracer, name, kind, start, context)
        return _of_span(span, context, parent.span_id)
    trace_id = parent.trace_id or random_id(16)
    identity = TraceContext(
        trace_id,
        random_id(8),
        parent.span_id,
        parent.sampled and in_sample(trace_id, share),
        tracestate=parent.tracestate,
    )
    return identity._replace(context=inside(identity, context))


def inside(identity: TraceContext, context: Context | None = None) -> Context:
    """Return the context in which the span of these ids is the current one.

    `context`, or the current one, is what else it contains, where the span has none yet.
    """
    if identity.context is not None:
        return identity.context
    ids = otel_trace.SpanContext(
        int(identity.trace_id, 16),
        int(identity.span_id, 16),
        is_remote=False,
        trace_flags=otel_trace.TraceFlags(identity.sampled),
        trace_state=otel_trace.TraceState.from_header([identity.tracestate]),
    )
    return otel_trace.set_span_in_context(otel_trace.NonRecordingSpan(ids), context)


# A trace id cannot resolve smaller shares; a share of 0 must not be divided by.
MIN_SHARE: Final = 1 / (1 << 56)


def in_sample(trace_id: str, share: float) -> bool:
    """Say whether a trace is in the share of them that is written out."""
    # The right-most 7 bytes are the random ones (W3C trace context, level 2), so that every
    # process that sees this trace comes to the same answer.
    return share >= 1 or int(trace_id[-14:], 16) < share * (1 << 56)


def _below(ids: SpanContext) -> _Parent:
    """Make a span the parent that is known by its ids alone."""
    return _Parent(
        f"{ids.trace_id:032x}", f"{ids.span_id:016x}", ids.trace_flags.sampled, _state(ids)
    )


def _inside(outer: TraceContext) -> _Parent:
    """Make a request that has begun the parent."""
    return _Parent(outer.trace_id, outer.span_id, outer.sampled, outer.tracestate, outer.context)


def _opened_since(current: _Parent, outer: TraceContext) -> bool:
    """Say whether the current span was opened inside the request around, and not above it."""
    # Without a provider a request's span is never the current one: what is lies above it.
    return current.trace_id == outer.trace_id and current.span_id != outer.parent_span_id


def _of_span(span: Span, context: Context | None, parent_span_id: str | None) -> TraceContext:
    """Take the ids of a span of the application's own provider."""
    ids = span.get_span_context()
    return TraceContext(
        f"{ids.trace_id:032x}",
        f"{ids.span_id:016x}",
        parent_span_id,
        ids.trace_flags.sampled,
        context=otel_trace.set_span_in_context(span, context),
        span=span,
        tracestate=_state(ids),
    )


def _state(ids: SpanContext) -> str:
    return ids.trace_state.to_header() if ids.trace_state else ""


def _in_generation(around: Recording) -> bool:
    """Say whether a generation of Langfuse's own SDK is open around a recording, not inside it."""
    return around.span.generation is None and coexistence.marked(around.attributes)
