"""Turn the GenAI client metrics of an aggregate into OpenTelemetry data points.

Nothing is estimated: every bound the conventions advise is a bound of the aggregate, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from opentelemetry.sdk.metrics import export
from opentelemetry.sdk.metrics.export import Histogram as HistogramData
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from llmtrace.exporters.genai_metrics import instruments
from llmtrace.exporters.otlp.resource import resource
from llmtrace.exporters.prometheus.agent_metrics import Agents, ToolLabels, TurnLabels
from llmtrace.exporters.prometheus.aggregate import Aggregate, Cell, Histogram, Labels, fold
from llmtrace.semconv import attributes as wire

_NS: Final = 1_000_000_000
_BOUNDS_NS: Final = tuple(round(bound * _NS) for bound in wire.DURATION_BOUNDS_S)

# A service, and a set of attributes as sorted pairs.
Key = tuple[str, tuple[tuple[str, str | int], ...]]
Point = export.HistogramDataPoint | export.NumberDataPoint
L = TypeVar("L", Labels, TurnLabels, ToolLabels)


def metrics_data(
    aggregate: Aggregate,
    agents: Agents,
    names: wire.ClientMetrics,
    since_unix_ns: int,
    now_unix_ns: int,
    *,
    delta: bool,
) -> export.MetricsData:
    """Make the GenAI client metrics, under these names, out of what was counted in a time.

    With `delta` they are differences, and the aggregates are counted anew from here on.
    """
    kind = (
        export.AggregationTemporality.DELTA if delta else export.AggregationTemporality.CUMULATIVE
    )
    span = (since_unix_ns, now_unix_ns)
    by_service: dict[str, dict[str, list[Point]]] = {}
    for (service, attributes), cell in aggregate.by(
        _by(instruments.metric_attributes), reset=delta
    ).items():
        metrics = by_service.setdefault(service, {})
        for name, point in _points(cell, dict(attributes), names, span):
            metrics.setdefault(name, []).append(point)
    for service, name, point in _agent_points(agents, names, span, reset=delta):
        by_service.setdefault(service, {}).setdefault(name, []).append(point)
    scope = InstrumentationScope(wire.SCOPE, schema_url=names.schema_url)
    return export.MetricsData(
        [
            export.ResourceMetrics(
                resource=resource(service),
                scope_metrics=[
                    export.ScopeMetrics(
                        scope=scope,
                        metrics=[
                            _metric(name, _added_up(points), kind, names)
                            for name, points in metrics.items()
                        ],
                        schema_url=names.schema_url,
                    )
                ],
                schema_url="",
            )
            for service, metrics in by_service.items()
        ]
    )


def _added_up(points: list[Point]) -> list[Point]:
    """Add up counters of the same attributes, as of requests that failed and that did not."""
    found: dict[tuple[tuple[str, Any], ...], Point] = {}
    for number, point in enumerate(points):
        if not isinstance(point, export.NumberDataPoint):
            found[("", number),] = point
            continue
        key = tuple(sorted((point.attributes or {}).items()))
        before = found.get(key)
        more = before.value if isinstance(before, export.NumberDataPoint) else 0
        found[key] = replace(point, value=point.value + more)
    return list(found.values())


def _by(attributes: Callable[[L], instruments.Attributes]) -> Callable[[L], Key]:
    """Make the key by which label sets are added up: of those with the same attributes."""
    return lambda labels: (labels.service, tuple(sorted(attributes(labels).items())))


def _of_tool(labels: ToolLabels) -> instruments.Attributes:
    return instruments.tool_attributes(labels.tool, labels.outcome, labels.error_type)


def _agent_points(
    agents: Agents, names: wire.ClientMetrics, span: tuple[int, int], *, reset: bool
) -> Iterator[tuple[str, str, Point]]:
    """Yield the service, name and point of each metric of turns and tool calls."""
    turns = agents.turns.by(_by(instruments.turn_attributes), reset=reset)
    for name, cells in (
        (wire.AGENT_DURATION, turns),
        (wire.TOOL_DURATION, agents.tools.by(_by(_of_tool), reset=reset)),
    ):
        for (service, attributes), cell in cells.items():
            duration = cell["duration"]
            counts, total = fold(duration, _BOUNDS_NS), duration.total / _NS
            point = _histogram(counts, wire.DURATION_BOUNDS_S, total, dict(attributes), span)
            yield service, name, point
    for (service, attributes), cell in turns.items():
        for kind, name in (names.calls or {}).items():
            if cell[kind].count:
                calls = cell[kind]
                point = _histogram(
                    calls.counts, wire.CALL_BOUNDS, calls.total, dict(attributes), span
                )
                yield service, name, point


def _points(
    cell: Cell, attributes: Mapping[str, Any], names: wire.ClientMetrics, span: tuple[int, int]
) -> Iterator[tuple[str, Point]]:
    for name, seconds in (
        (names.duration, cell.e2e),
        (names.time_to_first_chunk, cell.ttft),
        (names.time_per_output_chunk, cell.gaps),
    ):
        if seconds.count:
            counts = fold(seconds, _BOUNDS_NS)
            total = seconds.total / _NS
            yield name, _histogram(counts, wire.DURATION_BOUNDS_S, total, attributes, span)
    for kind, tokens in (("input", cell.input_tokens), ("output", cell.output_tokens)):
        if names.token_usage and tokens.count:
            typed = {**attributes, "gen_ai.token.type": kind}
            yield names.token_usage, _of_tokens(tokens, 0, typed, span)
        if names.tokens is not None:
            # A request without usage counts as one of 0 tokens.
            without = cell.requests - tokens.count
            yield names.tokens[kind], _of_tokens(tokens, without, attributes, span)
    totals = {
        "input": cell.input_tokens.total,
        "output": cell.output_tokens.total,
        "cached": cell.cached_tokens,
        "cache_write": cell.cache_write_tokens,
        "reasoning": cell.reasoning_tokens,
    }
    for kind, name in (names.tokens_total or {}).items():
        yield name, _sum(totals[kind], instruments.token_attributes(attributes), span)


def _of_tokens(
    tokens: Histogram, zeros: int, attributes: Mapping[str, Any], span: tuple[int, int]
) -> export.HistogramDataPoint:
    counts = [tokens.counts[0] + zeros, *tokens.counts[1:]]
    return _histogram(counts, wire.TOKEN_BOUNDS, tokens.total, attributes, span)


def _histogram(
    counts: Sequence[int],
    bounds: Sequence[float],
    total: float,
    attributes: Mapping[str, Any],
    span: tuple[int, int],
) -> export.HistogramDataPoint:
    unknown: Any = None  # the aggregate keeps neither the smallest nor the largest value
    return export.HistogramDataPoint(
        attributes=attributes,
        start_time_unix_nano=span[0],
        time_unix_nano=span[1],
        count=sum(counts),
        sum=total,
        bucket_counts=counts,
        explicit_bounds=bounds,
        min=unknown,
        max=unknown,
    )


def _sum(
    value: int, attributes: Mapping[str, Any], span: tuple[int, int]
) -> export.NumberDataPoint:
    return export.NumberDataPoint(
        attributes=attributes, start_time_unix_nano=span[0], time_unix_nano=span[1], value=value
    )


def _metric(
    name: str, points: list[Any], kind: export.AggregationTemporality, names: wire.ClientMetrics
) -> export.Metric:
    counter = isinstance(points[0], export.NumberDataPoint)
    data: Any = (
        export.Sum(points, aggregation_temporality=kind, is_monotonic=True)
        if counter
        else HistogramData(points, aggregation_temporality=kind)
    )
    units = {called: wire.CALL_UNITS[kind] for kind, called in (names.calls or {}).items()}
    unit = units.get(name, "{token}" if "token" in name else "s")
    return export.Metric(name=name, description="", unit=unit, data=data)
