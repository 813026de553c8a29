"""Where does each stage of a row lie when they are drawn end to end?

The order is that of the request. In truth `decode` and `render` take turns, chunk by chunk: drawn
one after the other their lengths are right, their positions are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from llmtrace.rows import TURN, Row
from llmtrace.semconv_table import ORDER

# Outcomes for which a span says ERROR. A cancelled request did what its caller asked.
_FAILED: Final = {
    "error": "the request failed",
    "timeout": "the request timed out",
    "truncated": "the stream ended without a finish reason",
}


def laid_out(row: Row) -> Iterator[tuple[str, str | None, int, int]]:
    """Yield the name, source, start and end (unix ns) of every stage that took any time.

    Of a turn nothing: what ran inside it has spans of its own, where it truly lay.
    """
    names, sources, edges = waterfall(row)
    return zip(names, sources, edges, edges[1:], strict=False)  # each ends where the next begins


def waterfall(row: Row) -> tuple[tuple[str, ...], tuple[str | None, ...], list[int]]:
    """Return the same as names, sources, and the edges between them: one more than stages."""
    if row.is_turn:
        return (), (), []
    stages = row.stages
    sources: Mapping[Any, str] = stages.sources
    names, edges = [], [row.start]
    at = row.start
    for name in ORDER:
        if ns := getattr(stages, name):
            names.append(name)
            at += ns
            edges.append(at)
    return tuple(names), tuple([sources.get(name) for name in names]), edges


def span_name(row: Row) -> str:
    """Name the span as OpenTelemetry does: what was done, with which model or by which agent."""
    return name_of(row.operation, row.model, row.agent)


def name_of(operation: str, model: str | None, agent: str | None) -> str:
    """Name the span of such a row."""
    named = agent if operation == TURN else model
    return operation if named is None else f"{operation} {named}"


def status_text(row: Row) -> str | None:
    """Say in words why the request failed; `None` if it did not."""
    return failure_text(row.outcome, row.error_type)


def failure_text(outcome: str, error_type: str | None) -> str | None:
    """Say in words how a request failed that ended in this way; `None` if it did not."""
    text = _FAILED.get(outcome)
    return text if text is None or error_type is None else f"{text}: {error_type}"
