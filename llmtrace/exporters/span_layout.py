"""Lay out the child spans of a row.

The stages lie end to end, in the order of the request. In reality `decode` and `render` alternate
chunk by chunk: drawn one after the other, their lengths are right and their positions are not.
Where there were several HTTP attempts, or one failed, each is a span as well, over the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final

from llmtrace.core.attempts import MAX_ATTEMPTS, Attempt
from llmtrace.core.row import TURN, Row
from llmtrace.core.span import Span, Value
from llmtrace.core.stages import DRAWN_ORDER
from llmtrace.semconv.attributes import ATTEMPT

_NS: Final = 1_000_000_000
_HTTP_ERROR: Final = 400

# Combined with the request's span id they make those of its attempts: always the same, so that a
# row sent twice is one row.
_IDS: Final = tuple(
    int.from_bytes(blake2b(f"llmtrace.attempt.{index}".encode(), digest_size=8).digest())
    for index in range(MAX_ATTEMPTS)
)


# Outcomes for which a span says ERROR. A cancelled request did what its client wanted.
_FAILED: Final = {
    "error": "the request failed",
    "timeout": "the request timed out",
    "truncated": "the stream ended without a finish reason",
}


def laid_out(row: Row) -> Iterator[tuple[str, str | None, int, int]]:
    """Yield the name, source, start and end (unix ns) of every stage that took any time.

    A turn has none: what ran inside it has spans of its own, at their real times.
    """
    names, sources, edges = waterfall(row)
    return zip(names, sources, edges, edges[1:], strict=False)  # each ends where the next begins


def waterfall(row: Row) -> tuple[tuple[str, ...], tuple[str | None, ...], list[int]]:
    """Return the names, the sources, and the times between the stages: one more than stages."""
    if row.is_turn:
        return (), (), []
    stages = row.stages
    sources: Mapping[Any, str] = stages.sources
    names, edges = [], [row.start]
    at = row.start
    for name in DRAWN_ORDER:
        if ns := getattr(stages, name):
            names.append(name)
            at += ns
            edges.append(at)
    return tuple(names), tuple([sources.get(name) for name in names]), edges


def span_name(row: Row) -> str:
    """Name the span as OpenTelemetry does: what was done, with which model or by which agent."""
    return name_of(row.operation, row.model, row.agent)


def name_of(operation: str, model: str | None, agent: str | None) -> str:
    """Name the span of a row with these three fields."""
    named = agent if operation == TURN else model
    return operation if named is None else f"{operation} {named}"


def status_text(row: Row) -> str | None:
    """Say in words why the request failed; `None` if it did not."""
    return failure_text(row.outcome, row.error_type)


def failure_text(outcome: str, error_type: str | None) -> str | None:
    """Say in words how a request failed that ended in this way; `None` if it did not."""
    text = _FAILED.get(outcome)
    return text if text is None or error_type is None else f"{text}: {error_type}"


def attempts(row: Row) -> Iterator[tuple[int, Attempt]]:
    """Yield each attempt of a row, with its number: 1 is the first."""
    last = len(row.attempt_log)
    for number, one in enumerate(row.attempt_log, 1):
        forgotten = number == last == MAX_ATTEMPTS
        yield (max(number, row.attempts) if forgotten else number), one


def attempt_spans(row: Row) -> Iterator[Span]:
    """Make the span of each attempt."""
    for index, (number, one) in enumerate(attempts(row)):
        error = error_of(one)
        attributes: dict[str, Value] = {ATTEMPT: number}
        if number > 1:
            attributes["http.request.resend_count"] = number - 1
        if one.status is not None:
            attributes["http.response.status_code"] = one.status
        if error is not None:
            attributes["error.type"] = error
        if one.retry_after_ns is not None:
            attributes["llmtrace.retry_after"] = one.retry_after_ns / _NS
        if one.backoff_ns:
            attributes["llmtrace.backoff"] = one.backoff_ns / _NS
        yield Span(
            name=f"attempt {number}",
            kind="client",
            trace_id=row.trace_id,
            span_id=f"{(int(row.span_id, 16) ^ _IDS[index]) or 1:016x}",
            parent_span_id=row.span_id,
            service=row.service,
            start=row.start + one.start_ns,
            duration_ns=one.duration_ns,
            attributes=attributes,
            error=error,
        )


def error_of(one: Attempt) -> str | None:
    """Name what went wrong with an attempt, as OpenTelemetry does; `None` if nothing did."""
    if one.error_type is not None:
        return one.error_type
    return str(one.status) if one.status is not None and one.status >= _HTTP_ERROR else None
