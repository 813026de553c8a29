"""Emit rows as spans of the application's own OpenTelemetry provider.

The request's span is started when the request is, so that the application's context holds it; its
attributes, end and stages follow when the row is finished. This path costs what the SDK costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

from llmtrace.core.row import TURN
from llmtrace.exporters.langfuse import coexistence
from llmtrace.exporters.span_layout import attempt_spans, laid_out, span_name, status_text

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue

    from llmtrace.core.row import Row
    from llmtrace.core.span import Span as FinishedSpan
    from llmtrace.exporters.otlp.dialect import Dialect

# A span does not show which tracer made it, and its stages must come from the same one.
_tracers: WeakKeyDictionary[Span, Tracer] = WeakKeyDictionary()

_NOTHING: Final[Mapping[str, Any]] = {}

# Samplers and processors decide at a span's start, by what is known of it by then.
_AT_START: Final = {
    "operation": "gen_ai.operation.name",
    "provider": "gen_ai.provider.name",
    "model": "gen_ai.request.model",
    "agent": "gen_ai.agent.name",
}


def samples_root(
    provider: TracerProvider, trace_id: str, name: str, attributes: Mapping[str, AttributeValue]
) -> bool | None:
    """Say whether the provider's sampler takes a trace with this root; `None` = it has none.

    The id is 32 hex digits, the name is the root span's, and samplers may decide by the
    attributes.
    """
    sampler = getattr(provider, "sampler", None)
    if sampler is None:
        return None
    decided = sampler.should_sample(
        Context(), int(trace_id, 16), name, kind=SpanKind.SERVER, attributes=attributes
    )
    return bool(decided.decision.is_sampled())


def start(
    tracer: Tracer, info: Mapping[str, Any], start_unix_ns: int, context: Context | None = None
) -> Span:
    """Start the span of one request, as a child of what `context` (or the current one) holds.

    `info` has the row fields known so far.
    """
    known = {"operation": "chat", **info}
    span = tracer.start_span(
        known["operation"],
        context=context,
        kind=SpanKind.INTERNAL if known["operation"] == TURN else SpanKind.CLIENT,
        attributes={name: known[key] for key, name in _AT_START.items() if known.get(key)},
        start_time=start_unix_ns,
    )
    if span.is_recording():
        _tracers[span] = tracer
    return span


def finish(span: Span, row: Row, context: Context | None = None) -> None:
    """End a span that `start` made with what the row knows, and lay its stages out as children.

    It ends at its start plus the row's `e2e`. It is the current one of `context`, if given.
    """
    try:
        tracer = _tracers.pop(span, None)
        if tracer is None:  # not sampled: there is nothing to say
            return
        dialect, labels = _dialect(tracer, span)
        span.update_name(span_name(row))
        span.set_attributes({**labels, **dialect.row(row)})
        if (text := status_text(row)) is not None:
            span.set_status(Status(StatusCode.ERROR, text))
        inside = set_span_in_context(span, context)
        shared = {**labels, **dialect.shared(row)}
        for stage, source, start_ns, end_ns in laid_out(row):
            tracer.start_span(
                stage,
                context=inside,
                attributes={**shared, **dialect.stage(stage, source)},
                start_time=start_ns,
            ).end(end_ns)
        for attempt in attempt_spans(row):
            write(tracer, attempt, inside, shared)
    finally:
        span.end(row.start + row.e2e_ns)


def _dialect(tracer: Tracer, span: Span | None = None) -> tuple[Dialect, Mapping[str, str]]:
    """Return how to describe spans to those the provider sends them to, and what else to say."""
    # Here, because every import of llmtrace imports this module.
    from llmtrace.exporters.otlp.dialect import OTEL

    if not any(True for _ in coexistence.projects(tracer)):
        return OTEL, {}
    from llmtrace.exporters.langfuse.span_attributes import BESIDE

    return BESIDE, {} if span is None else coexistence.labels(span)


def write(
    tracer: Tracer,
    span: FinishedSpan,
    context: Context | None = None,
    shared: Mapping[str, Any] = _NOTHING,
) -> None:
    """Write a span that is no row, as a child of what `context` (or the current one) holds.

    `shared` are attributes it has with those beside it.
    """
    written = tracer.start_span(
        span.name,
        context=context,
        kind=SpanKind[span.kind.upper()],
        attributes={**shared, **_dialect(tracer)[0].span(span)},
        start_time=span.start,
    )
    if span.error is not None:
        written.set_status(Status(StatusCode.ERROR, span.error))
    written.end(span.start + span.duration_ns)


def begin(
    tracer: Tracer, name: str, kind: str, start_unix_ns: int, context: Context | None = None
) -> Span:
    """Start a span that is no row, so that what it holds are its children; `end` writes it."""
    dialect, _ = _dialect(tracer)
    return tracer.start_span(
        name,
        context=context,
        kind=SpanKind[kind.upper()],
        attributes=dict(dialect.begun),
        start_time=start_unix_ns,
    )


def end(tracer: Tracer, begun: Span, span: FinishedSpan) -> None:
    """End a span that `begin` started with what is known of it now."""
    try:
        begun.update_name(span.name)
        begun.set_attributes(_dialect(tracer)[0].span(span))
        if span.error is not None:
            begun.set_status(Status(StatusCode.ERROR, span.error))
    finally:
        begun.end(span.start + span.duration_ns)
