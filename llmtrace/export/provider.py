"""How does a row become spans of the application's own OpenTelemetry provider?

The request's span is started when the request is, so that the application's context holds it; its
attributes, end and stages follow when the row is finished. This path costs what the SDK costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

from llmtrace.export.waterfall import laid_out, span_name, status_text
from llmtrace.semconv_table import STAGE, STAGE_SOURCE

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

    from llmtrace.rows import Row
    from llmtrace.spans import Span as FinishedSpan

# A span does not tell which tracer made it, and its stages must come from the same one.
_tracers: WeakKeyDictionary[Span, Tracer] = WeakKeyDictionary()


def start(tracer: Tracer, name: str, start_unix_ns: int, context: Context | None = None) -> Span:
    """Start the span of one request, as a child of what `context` (or the current one) holds."""
    span = tracer.start_span(name, context=context, kind=SpanKind.CLIENT, start_time=start_unix_ns)
    if span.is_recording():
        _tracers[span] = tracer
    return span


def finish(span: Span, row: Row, context: Context | None = None) -> None:
    """End a span that `start` made with what the row knows, and lay its stages out as children.

    Args:
        span: from `start`.
        row: the finished request; the span ends at its start plus its `e2e`.
        context: where the span is the current one; made from the span if not given.
    """
    try:
        tracer = _tracers.pop(span, None)
        if tracer is None:  # not sampled: there is nothing to say
            return
        _describe(span, row)
        inside = set_span_in_context(span, context)
        for stage, source, start_ns, end_ns in laid_out(row):
            attributes = {STAGE: stage} if source is None else {STAGE: stage, STAGE_SOURCE: source}
            tracer.start_span(
                stage, context=inside, attributes=attributes, start_time=start_ns
            ).end(end_ns)
    finally:
        span.end(row.start + row.e2e_ns)


def _describe(span: Span, row: Row) -> None:
    # Here, because whoever imports llmtrace imports this module.
    from llmtrace.semconv import to_attributes

    span.update_name(span_name(row))
    attributes = to_attributes(row)
    resource = getattr(span, "resource", None)
    if resource is None or resource.attributes.get("service.name") != row.service:
        attributes["service.name"] = row.service
    span.set_attributes(attributes)
    if (text := status_text(row)) is not None:
        span.set_status(Status(StatusCode.ERROR, text))


def write(tracer: Tracer, span: FinishedSpan, context: Context | None = None) -> None:
    """Write a span that is no row, as a child of what `context` (or the current one) holds."""
    written = tracer.start_span(
        span.name,
        context=context,
        kind=SpanKind[span.kind.upper()],
        attributes=dict(span.attributes),
        start_time=span.start,
    )
    if span.error is not None:
        written.set_status(Status(StatusCode.ERROR, span.error))
    written.end(span.start + span.duration_ns)
