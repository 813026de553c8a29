"""Record the GenAI client metrics through an application's own MeterProvider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from llmtrace.core.span import Span
from llmtrace.semconv import attributes as wire
from llmtrace.semconv.convert import split_server

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.context import Context
    from opentelemetry.metrics import Counter, Histogram, Meter

    from llmtrace.core.row import Row
    from llmtrace.exporters.prometheus.agent_metrics import TurnLabels
    from llmtrace.exporters.prometheus.aggregate import Labels

_NS: Final = 1_000_000_000
# What the conventions call an error of unknown type.
_UNTYPED: Final = {"error": "_OTHER", "timeout": "timeout", "truncated": "truncated"}

_ERROR_TYPE: Final = "error.type"

Attributes = dict[str, str | int]


def metric_attributes(of: Row | Labels) -> Attributes:
    """Name the labels of a row as the conventions do; what is not known is left out."""
    attributes: Attributes = {"gen_ai.operation.name": of.operation}
    if of.provider:
        attributes["gen_ai.provider.name"] = of.provider
    if of.model:
        attributes["gen_ai.request.model"] = of.model
    if of.server:
        attributes["server.address"], port = split_server(of.server)
        if port is not None:
            attributes["server.port"] = port
    return attributes | _error(of.outcome, of.error_type)


def token_attributes(attributes: Mapping[str, str | int]) -> Attributes:
    """Return the attributes of a counter of tokens: with their modality, and without an error."""
    kept: Attributes = {name: value for name, value in attributes.items() if name != _ERROR_TYPE}
    return kept | {wire.MODALITY: wire.UNKNOWN_MODALITY}


def turn_attributes(of: Row | TurnLabels) -> Attributes:
    """Do the same for a turn of an agent."""
    named: Attributes = {"gen_ai.agent.name": of.agent} if of.agent else {}
    return named | _error(of.outcome, of.error_type)


def tool_attributes(tool: str, outcome: str, error_type: str) -> Attributes:
    """Return the attributes of a tool call's metrics."""
    named: Attributes = {"gen_ai.operation.name": wire.EXECUTE_TOOL, wire.TOOL_NAME: tool}
    return named | _error(outcome, error_type)


def _error(outcome: str, error_type: str | None) -> Attributes:
    if outcome not in _UNTYPED:  # a cancelled request did what its client wanted
        return {}
    return {_ERROR_TYPE: error_type or _UNTYPED[outcome]}


class Instruments:
    """The GenAI client metrics as instruments of a meter; one record a row and metric."""

    __slots__ = (
        "_calls", "_duration", "_first_chunk", "_token_types", "_tokens", "_tool", "_totals",
        "_turn",
    )  # fmt: skip

    def __init__(self, meter: Meter, names: wire.ClientMetrics) -> None:
        self._duration = _seconds(meter, names.duration, "How long the operation took.")
        self._first_chunk = _seconds(
            meter, names.time_to_first_chunk, "Start of the operation to its first content."
        )
        self._turn = _seconds(meter, wire.AGENT_DURATION, "How long a turn of an agent took.")
        self._tool = _seconds(meter, wire.TOOL_DURATION, "How long a tool call took.")
        self._tokens: dict[str, Histogram] = {}
        self._totals: dict[str, Counter] = {}
        if names.token_usage:
            shared = _tokens(meter, names.token_usage)
            self._tokens = {"input": shared, "output": shared}
        for kind, name in (names.tokens or {}).items():
            self._tokens[kind] = _tokens(meter, name)
        for kind, name in (names.tokens_total or {}).items():
            self._totals[kind] = meter.create_counter(name, "{token}", "Tokens used.")
        self._calls = {
            kind: meter.create_histogram(
                name,
                wire.CALL_UNITS[kind],
                "What one turn of an agent called.",
                explicit_bucket_boundaries_advisory=wire.CALL_BOUNDS,
            )
            for kind, name in (names.calls or {}).items()
        }
        self._token_types = bool(names.token_usage)

    def record(self, row: Row | Span) -> None:
        """Record one row or tool call, with its own span as what exemplars point at."""
        context = _context(row)
        if isinstance(row, Span):
            self._record_tool(row, context)
            return
        if row.is_turn:
            attributes = turn_attributes(row)
            self._turn.record(row.e2e_s, attributes, context)
            for kind, histogram in self._calls.items():
                if (calls := getattr(row, kind)) is not None:
                    histogram.record(calls, attributes, context)
            return
        attributes = metric_attributes(row)
        self._duration.record(row.e2e_s, attributes, context)
        if row.ttft_ns is not None:
            self._first_chunk.record(row.ttft_ns / _NS, attributes, context)
        self._record_tokens(row, attributes, context)

    def _record_tokens(self, row: Row, attributes: Attributes, context: Context) -> None:
        """Record the tokens of a request; without usage the latest conventions want a 0."""
        for kind, count in (
            ("input", row.prompt_tokens),
            ("output", row.output_tokens),
            ("cached", row.cached_tokens),
            ("cache_write", row.cache_write_tokens),
            ("reasoning", row.reasoning_tokens),
        ):
            if count is None and self._token_types:
                continue
            if (histogram := self._tokens.get(kind)) is not None:
                typed = {"gen_ai.token.type": kind} if self._token_types else {}
                histogram.record(count or 0, {**attributes, **typed}, context)
            if (counter := self._totals.get(kind)) is not None:
                counter.add(count or 0, token_attributes(attributes))

    def _record_tool(self, span: Span, context: Context) -> None:
        of_span = span.attributes
        tool = of_span.get(wire.TOOL_NAME)
        if tool is not None:
            outcome, error_type = (
                str(of_span.get(n, "")) for n in ("llmtrace.outcome", "error.type")
            )
            attributes = tool_attributes(str(tool), outcome, error_type)
            self._tool.record(span.duration_ns / _NS, attributes, context)


def _context(row: Row | Span) -> Context:
    """Return the context in which the span of a row, or the span itself, is the current one."""
    ids = SpanContext(
        int(row.trace_id, 16),
        int(row.span_id, 16),
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )
    return set_span_in_context(NonRecordingSpan(ids))


def _seconds(meter: Meter, name: str, description: str) -> Histogram:
    return meter.create_histogram(
        name, "s", description, explicit_bucket_boundaries_advisory=wire.DURATION_BOUNDS_S
    )


def _tokens(meter: Meter, name: str) -> Histogram:
    return meter.create_histogram(
        name,
        "{token}",
        "Number of tokens used.",
        explicit_bucket_boundaries_advisory=wire.TOKEN_BOUNDS,
    )
