"""Read the spans of requests that other instrumentations make, each by its own convention.

One table, third_party_conventions.toml: how a convention marks a request, and how it names the
fields of a row. Its names are mapped to OpenTelemetry's current ones, which `row_columns` reads; a
span's own current names take precedence. Tested with recorded spans.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Final

from llmtrace_collector.store.sql_builder import from_file

FAILED: Final = "StatusCode IN ('Error', 'STATUS_CODE_ERROR')"
_FIRST: Final = "gen_ai.response.time_to_first_chunk"


@dataclass(frozen=True, slots=True)
class Convention:
    """How a family of instrumentations records a request.

    Attributes:
        name: of the family.
        marks: attributes of which each of its requests has at least one.
        is_request: the condition under which a span is a request.
        names: its names of attributes, and the current ones.
        nested: attributes that hold a JSON object, whose keys are attributes, too.
        first_chunks: events of which the first is that of the first chunk.
        also: current names, and the expressions of their texts; '' = not reported.
        noise: regular expressions of attributes that are useless on a row, or hold content.
    """

    name: str
    marks: Sequence[str] = ()
    is_request: str = "false"
    names: Mapping[str, str] = field(default_factory=dict)
    nested: Sequence[str] = ()
    first_chunks: Sequence[str] = ()
    also: Mapping[str, str] = field(default_factory=dict)
    noise: Sequence[str] = ()


_TABLE: Final = files(__package__).joinpath("third_party_conventions.toml").read_text("utf-8")
CONVENTIONS: Final = tuple(Convention(**one) for one in tomllib.loads(_TABLE)["convention"])

# The columns that `attributes` reads.
READ: Final = "SpanAttributes, `Events.Timestamp`, `Events.Name`, `Events.Attributes`"
MARKS: Final = tuple(mark for one in CONVENTIONS for mark in one.marks)
IS_REQUEST: Final = " OR ".join(f"({one.is_request})" for one in CONVENTIONS)


def attributes() -> str:
    """Return the expression of a request's attributes by their current names, without empty ones."""
    names = {theirs: ours for one in CONVENTIONS for theirs, ours in one.names.items()}
    noise = "|".join(text for one in CONVENTIONS for text in one.noise).replace("\\", "\\\\")
    also = [pair for one in CONVENTIONS for pair in one.also.items()]
    events = [event for one in CONVENTIONS for event in one.first_chunks]
    also.append((_FIRST, from_file("genai_first_chunk", events=str(events))))
    return from_file(
        "genai_attributes",
        theirs=str(list(names)),
        ours=str(list(names.values())),
        noise=noise,
        nested=str([name for one in CONVENTIONS for name in one.nested]),
        also=", ".join(f"('{name}', {expression})" for name, expression in also),
    )
