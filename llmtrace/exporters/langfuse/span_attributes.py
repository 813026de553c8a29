"""The attributes in which Langfuse expects what a row holds.

A row becomes a generation (a turn an agent, a tool's run a tool), each stage a span under it, with
the attributes that Langfuse's own SDK writes. What Langfuse has no field for goes into metadata,
under llmtrace's own names, so that `langfuse_rows` can read the row back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from llmtrace.core import content
from llmtrace.exporters.otlp.dialect import Attributes, Dialect, of_stage
from llmtrace.exporters.span_layout import status_text
from llmtrace.semconv.convert import Value, to_attributes

if TYPE_CHECKING:
    from llmtrace.core.row import Row
    from llmtrace.core.span import Span

# What Langfuse calls what it reads off a span, as its own SDK does, version 5.
TYPE: Final = "langfuse.observation.type"
LEVEL: Final = "langfuse.observation.level"
STATUS_MESSAGE: Final = "langfuse.observation.status_message"
METADATA: Final = "langfuse.observation.metadata"
INPUT: Final = "langfuse.observation.input"
OUTPUT: Final = "langfuse.observation.output"
MODEL: Final = "langfuse.observation.model.name"
USAGE: Final = "langfuse.observation.usage_details"
COMPLETION_START: Final = "langfuse.observation.completion_start_time"
TAGS: Final = "langfuse.trace.tags"
ENVIRONMENT: Final = "langfuse.environment"
RELEASE: Final = "langfuse.release"
VERSION: Final = "langfuse.version"
APP_ROOT: Final = "langfuse.internal.is_app_root"

# Not Langfuse's own, but read by it.
USER: Final = "user.id"
SESSION: Final = "session.id"

# Observations that it counts tokens and costs of. On others they would be counted twice.
GENERATIONS: Final = frozenset({"generation", "embedding"})

_OTHER_TAGS: Final = "tag.tags"  # as OpenInference calls them
_EVERYWHERE: Final = frozenset({USER, SESSION, _OTHER_TAGS})
_OWN: Final = "langfuse."
_OF_THE_TRACE: Final = ("langfuse.trace.", ENVIRONMENT, RELEASE, VERSION)

_OPERATION: Final = "gen_ai.operation.name"
_PROVIDER: Final = "gen_ai.provider.name"
# Langfuse's SDK drops spans of others without a `gen_ai.` attribute. This one does not make a
# second request of a stage for every other receiver of these spans.
_KEPT: Final[Attributes] = {_PROVIDER: "_OTHER"}
# What OpenTelemetry calls an operation, and Langfuse the observation; any other is a generation.
_TYPES: Final = {"embeddings": "embedding", "invoke_agent": "agent", "execute_tool": "tool"}
_CONTENT: Final = {
    content.INPUT: INPUT,
    content.OUTPUT: OUTPUT,
    content.ARGUMENTS: INPUT,
    content.RESULT: OUTPUT,
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def dialect(labels: Attributes) -> Dialect:
    """Return how spans are written that go to Langfuse and nowhere else.

    `labels` is what every span of this process says: environment and release.
    """

    def row_attributes(row: Row) -> Attributes:
        attributes = to_attributes(row)
        out = {**labels, **_content(attributes), **_of_row(row, attributes)}
        if not row.nested:
            # By default Langfuse lists these alone. What is around may not be in Langfuse at all.
            out.setdefault(APP_ROOT, True)
        return out

    return Dialect(
        row=row_attributes,
        shared=lambda row: {**labels, **_of_trace(row.attributes), **_version(row)},
        stage=_of_stage,
        span=lambda span: {**labels, **_content(span.attributes), **_of_span(span)},
    )


def _beside_row(row: Row) -> Attributes:
    attributes = to_attributes(row)
    # The server would take the tokens of a span that is no generation from `gen_ai.usage.*`.
    return {**attributes, USAGE: "{}", **_of_row(row, attributes)}


def _beside_shared(row: Row) -> Attributes:
    named = {} if row.provider is None else {_PROVIDER: row.provider}
    return {**_KEPT, **named, **_of_trace(row.attributes), **_version(row)}


# How spans are written that Langfuse gets with others, from the application's own provider.
BESIDE: Final = Dialect(
    row=_beside_row,
    shared=_beside_shared,
    stage=lambda stage, source: {**of_stage(stage, source), **_of_stage(stage, source)},
    span=lambda span: {**_KEPT, **span.attributes, **_of_span(span)},
    begun=_KEPT,
)


def _of_row(row: Row, attributes: Attributes) -> dict[str, Value]:
    kind = _TYPES.get(row.operation, "generation")
    kind = str(row.attributes.get(TYPE, kind))
    out: dict[str, Value] = {TYPE: kind, **failure(status_text(row))}
    if kind in GENERATIONS:
        if row.model is not None:
            out[MODEL] = row.model
        if row.ttft_ns is not None:
            out[COMPLETION_START] = json.dumps(_time(row.start + row.ttft_ns))
        out.update(usage(vars(row)))
    out[METADATA] = _metadata(attributes.items())
    out.update(_version(row))
    out.update(_of_trace(row.attributes))
    # What a user says in Langfuse's own words wins.
    out.update((name, value) for name, value in row.attributes.items() if name.startswith(_OWN))
    return out


def _of_stage(stage: str, source: str | None) -> dict[str, Value]:
    return {TYPE: "span", METADATA: _metadata(of_stage(stage, source).items())}


def _of_span(span: Span) -> dict[str, Value]:
    operation = span.attributes.get(_OPERATION)
    kind = _TYPES.get(operation, "span") if isinstance(operation, str) else "span"
    return {
        TYPE: kind,
        **failure(span.error),
        METADATA: _metadata(span.attributes.items()),
        **_of_trace(span.attributes),
    }


def failure(text: str | None) -> dict[str, Value]:
    """Return the attributes by which Langfuse shows a failure."""
    return {} if text is None else {LEVEL: "ERROR", STATUS_MESSAGE: text}


def usage(known: Mapping[str, Any]) -> dict[str, Value]:
    """Return the tokens as Langfuse counts them: each in one place, cached ones not as input."""
    prompt, cached, output = (
        known.get(f"{kind}_tokens") for kind in ("prompt", "cached", "output")
    )
    tokens = {}
    if prompt is not None:
        tokens["input"] = max(0, prompt - (cached or 0))
        if cached is not None:
            tokens["input_cached_tokens"] = cached
    if output is not None:
        tokens["output"] = output
    return {USAGE: json.dumps(tokens)} if tokens else {}


def _time(unix_ns: int) -> str:
    # Whole microseconds, not a float of seconds, which could not hold them.
    at = _EPOCH + timedelta(microseconds=unix_ns // 1000)
    return at.isoformat().replace("+00:00", "Z")


def _version(row: Row) -> dict[str, Value]:
    return {} if row.version is None else {VERSION: row.version}


def _of_trace(attributes: Attributes) -> dict[str, Value]:
    """Return what each span of a trace is to say, or Langfuse would not find it by that."""
    return {
        TAGS if name == _OTHER_TAGS else name: value
        for name, value in attributes.items()
        if name in _EVERYWHERE or name.startswith(_OF_THE_TRACE)
    }


def _content(attributes: Attributes) -> dict[str, Value]:
    """Return the prompt and response, where recorded, as input and output."""
    out = {field: attributes[name] for name, field in _CONTENT.items() if name in attributes}
    if (system := attributes.get(content.SYSTEM)) is not None:
        # Both are JSON lists of our own: parts, and messages.
        first = f'{{"role": "system", "parts": {system}}}'
        rest = str(out.get(INPUT, "[]")).removeprefix("[")
        out[INPUT] = f"[{first}]" if rest == "]" else f"[{first}, {rest}"
    return out


def _metadata(attributes: Iterable[tuple[str, Value]]) -> str:
    metadata = {
        name: value
        for name, value in attributes
        if not (name in content.NAMES or name in _EVERYWHERE or name.startswith(_OWN))
    }
    return json.dumps(metadata, separators=(",", ":"))
