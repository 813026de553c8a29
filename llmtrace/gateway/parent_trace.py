"""Decide which trace a request belongs to, and which span is the gateway's own in it.

The client's trace, if it sent W3C trace context; else a new one. An enclosing server span, opened
by an OpenTelemetry instrumentation of the web framework, is used in place of one of our own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import propagate
from opentelemetry import trace as otel_trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from llmtrace.core.span import Span
from llmtrace.runtime.runtime import Runtime
from llmtrace.runtime.scope import KEY
from llmtrace.runtime.trace_context import TraceContext

_W3C: Final = TraceContextTextMapPropagator()
# As it becomes the id of an upstream request, and a header again.
_REQUEST_ID: Final = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True, slots=True)
class Server:
    """The span of one request in this process.

    Attributes:
        identity: its ids.
        enclosing: the enclosing server span of another instrumentation; `None` = it is our own.
    """

    identity: TraceContext
    enclosing: otel_trace.Span | None = None


def opened(runtime: Runtime, headers: Mapping[str, str], name: str, start: int) -> Server:
    """Continue the client's trace, or the enclosing server span, from `start` in unix nanoseconds.

    Headers are by lower-case name; the name is the span's, for now.
    """
    span = otel_trace.get_current_span()
    ids = span.get_span_context()
    if _is_server_side(span, headers.get("traceparent", "")):
        return Server(
            TraceContext(
                trace_id=f"{ids.trace_id:032x}",
                span_id=f"{ids.span_id:016x}",
                parent_span_id=None,
                sampled=ids.trace_flags.sampled,
                tracestate=ids.trace_state.to_header(),
            ),
            span,
        )
    return Server(runtime.open_span(name, "server", start, _extracted(headers)))


def closed(runtime: Runtime, server: Server, span: Span) -> None:
    """Write the gateway's own span, or its attributes on the enclosing one."""
    if server.enclosing is None:
        runtime.close_span(server.identity, span)
        return
    own = {name: value for name, value in span.attributes.items() if name.startswith("llmtrace.")}
    server.enclosing.set_attributes(own)


def request_id(given: str | None, identity: TraceContext) -> str:
    """Return the client's request id, if it is valid, else one of ours."""
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return f"lt-{identity.span_id}"


def _is_server_side(span: Any, traceparent: str) -> bool:
    """Return whether the current span was opened on this side of the request.

    A client in the same process, as in a test without a network, has its own span current: that is
    of kind CLIENT, and the `traceparent` names it.
    """
    ids = span.get_span_context()
    if not ids.is_valid or ids.is_remote:
        return False
    if getattr(span, "kind", otel_trace.SpanKind.SERVER) is otel_trace.SpanKind.CLIENT:
        return False
    return f"-{ids.span_id:016x}-" not in traceparent


def _extracted(headers: Mapping[str, str]) -> otel_context.Context:
    """Return the context that the client sent, by the application's propagator, or by W3C."""
    # A turn of a client in the same process is none of this side's.
    base = otel_context.set_value(KEY, None)
    context = propagate.extract(headers, base)
    client = otel_trace.get_current_span(context).get_span_context()
    if client.is_remote or "traceparent" not in headers:
        return context
    return _W3C.extract(headers, context)
