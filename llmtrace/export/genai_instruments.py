"""How are the GenAI client metrics recorded through an application's own MeterProvider?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from llmtrace.semconv import split_server
from llmtrace.semconv_table import DURATION_BOUNDS_S, TOKEN_BOUNDS, ClientMetrics

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Histogram, Meter

    from llmtrace.rows import Row

_NS: Final = 1_000_000_000
# What the conventions call an error whose type nobody knows.
_UNTYPED: Final = {"error": "_OTHER", "timeout": "timeout", "truncated": "truncated"}

Attributes = dict[str, str | int]


def metric_attributes(
    *, operation: str, provider: str, model: str, server: str, outcome: str, error_type: str
) -> Attributes:
    """Name what a row is told apart by as the conventions do; empty = not known, left out."""
    attributes: Attributes = {"gen_ai.operation.name": operation}
    if provider:
        attributes["gen_ai.provider.name"] = provider
    if model:
        attributes["gen_ai.request.model"] = model
    if server:
        attributes["server.address"], port = split_server(server)
        if port is not None:
            attributes["server.port"] = port
    if outcome in _UNTYPED:  # a cancelled request did what its caller asked
        attributes["error.type"] = error_type or _UNTYPED[outcome]
    return attributes


class Instruments:
    """The GenAI client metrics as instruments of a meter; one record a row and metric."""

    __slots__ = ("_cached", "_duration", "_first_chunk", "_token_types", "_tokens", "_totals")

    def __init__(self, meter: Meter, names: ClientMetrics) -> None:
        self._duration = _seconds(meter, names.duration, "How long the operation took.")
        self._first_chunk = _seconds(
            meter, names.time_to_first_chunk, "Start of the operation to its first content."
        )
        self._tokens: dict[str, Histogram] = {}
        self._totals: dict[str, Counter] = {}
        if names.token_usage:
            shared = _tokens(meter, names.token_usage)
            self._tokens = {"input": shared, "output": shared}
        for kind, name in (names.tokens or {}).items():
            self._tokens[kind] = _tokens(meter, name)
        for kind, name in (names.tokens_total or {}).items():
            self._totals[kind] = meter.create_counter(name, "{token}", "Tokens used.")
        self._token_types = bool(names.token_usage)

    def record(self, row: Row) -> None:
        """Record one row, with its own span as what exemplars point at."""
        attributes = metric_attributes(
            operation=row.operation,
            provider=row.provider or "",
            model=row.model or "",
            server=row.server or "",
            outcome=row.outcome,
            error_type=row.error_type or "",
        )
        context = set_span_in_context(
            NonRecordingSpan(
                SpanContext(
                    int(row.trace_id, 16),
                    int(row.span_id, 16),
                    is_remote=False,
                    trace_flags=TraceFlags(TraceFlags.SAMPLED),
                )
            )
        )
        self._duration.record(row.e2e_s, attributes, context)
        if row.ttft_ns is not None:
            self._first_chunk.record(row.ttft_ns / _NS, attributes, context)
        for kind, count in (
            ("input", row.prompt_tokens),
            ("output", row.output_tokens),
            ("cached", row.cached_tokens),
        ):
            if count is None:
                continue
            if (histogram := self._tokens.get(kind)) is not None:
                typed = {"gen_ai.token.type": kind} if self._token_types else {}
                histogram.record(count, {**attributes, **typed}, context)
            if (counter := self._totals.get(kind)) is not None:
                counter.add(count, attributes)


def _seconds(meter: Meter, name: str, description: str) -> Histogram:
    return meter.create_histogram(
        name, "s", description, explicit_bucket_boundaries_advisory=DURATION_BOUNDS_S
    )


def _tokens(meter: Meter, name: str) -> Histogram:
    return meter.create_histogram(
        name,
        "{token}",
        "Number of tokens used.",
        explicit_bucket_boundaries_advisory=TOKEN_BOUNDS,
    )
