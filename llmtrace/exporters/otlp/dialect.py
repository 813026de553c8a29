"""How a row is described to a backend: which attributes its spans get."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from llmtrace.semconv.attributes import STAGE, STAGE_SOURCE
from llmtrace.semconv.convert import Value, to_attributes

if TYPE_CHECKING:
    from llmtrace.core.row import Row
    from llmtrace.core.span import Span

Attributes = Mapping[str, Value]


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """Which attributes the spans of a row get, and other spans.

    Attributes:
        row: of a row's own span.
        shared: of all spans under it.
        stage: of a stage's span, by the stage's name and source; called once for each pair.
        span: of a span that is no row.
        begun: of such a span at its start.
    """

    row: Callable[[Row], Attributes]
    shared: Callable[[Row], Attributes]
    stage: Callable[[str, str | None], Attributes]
    span: Callable[[Span], Attributes]
    begun: Attributes = field(default_factory=dict)


def of_stage(stage: str, source: str | None) -> dict[str, Value]:
    """Return the stage attributes of a span: its name and source."""
    return {STAGE: stage} if source is None else {STAGE: stage, STAGE_SOURCE: source}


# As docs/reference/semconv.md has it.
OTEL: Final = Dialect(
    row=to_attributes, shared=lambda _row: {}, stage=of_stage, span=lambda span: span.attributes
)
