"""A finished span that is not a request: a gateway's work or a tool call.

Requests are rows, and their stages' spans follow from the row. What else belongs into the trace
is a `Span`: data, finished, with ids of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

SpanKind = Literal["internal", "server", "client"]
Value = str | bool | int | float | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One finished span.

    Attributes:
        trace_id: 32 hex digits; the span ids 16 each.
        start: unix nanoseconds.
        duration_ns: nanoseconds.
        attributes: what is written on the wire as it stands here.
        error: what went wrong, for the span's status; `None` = nothing did.
    """

    name: str
    kind: SpanKind = "internal"
    trace_id: str
    span_id: str
    parent_span_id: str | None = None
    service: str
    start: int
    duration_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str | None = None
