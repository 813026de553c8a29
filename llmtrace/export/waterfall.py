"""Where does each stage of a row lie when they are drawn end to end?

The order is that of the request. In truth `decode` and `render` take turns, chunk by chunk: drawn
one after the other their lengths are right, their positions are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from llmtrace.rows import Row
from llmtrace.semconv_table import ORDER

# Outcomes for which a span says ERROR. A cancelled request did what its caller asked.
_FAILED: Final = {
    "error": "the request failed",
    "timeout": "the request timed out",
    "truncated": "the stream ended without a finish reason",
}


def laid_out(row: Row) -> Iterator[tuple[str, str | None, int, int]]:
    """Yield the name, source, start and end (unix ns) of every stage that took any time."""
    stages = row.stages
    sources: Mapping[Any, str] = stages.sources
    at = row.start
    for name in ORDER:
        ns = getattr(stages, name)
        if ns:
            yield name, sources.get(name), at, at + ns
            at += ns


def span_name(row: Row) -> str:
    """Name the request's span as OpenTelemetry does: what was done, with which model."""
    return row.operation if row.model is None else f"{row.operation} {row.model}"


def status_text(row: Row) -> str | None:
    """Say in words why the request failed; `None` if it did not."""
    text = _FAILED.get(row.outcome)
    if text is None or row.error_type is None:
        return text
    return f"{text}: {row.error_type}"
