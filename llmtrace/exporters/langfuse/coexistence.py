"""Coexist with Langfuse's own SDK in the same process.

It hangs a processor on the application's TracerProvider: then llmtrace's spans go that way, with
what Langfuse needs to know of them. A call that another SDK records, too, must not be counted
twice: under a generation of Langfuse's SDK ours is a span, and adds what only llmtrace knows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import get_current_span

from llmtrace.core.errors import ConfigError
from llmtrace.core.failopen import fails_open
from llmtrace.exporters.langfuse.span_attributes import GENERATIONS, TYPE, USAGE

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_PROCESSOR: Final = "LangfuseSpanProcessor"
_SCOPE: Final = "llmtrace"
# What makes Langfuse count tokens of any span.
_COUNTED: Final = {
    TYPE: GENERATIONS,
    "gen_ai.operation.name": frozenset(
        {"chat", "completion", "text_completion", "generate_content", "embeddings"}
    ),
    "openinference.span.kind": frozenset({"LLM", "EMBEDDING"}),
}


def projects(provider: Any) -> Iterator[str]:
    """Yield the public keys of the Langfuse projects of a provider, or of its tracer or span."""
    # No public way leads from any of them to its processors.
    names = ("_active_span_processor", "span_processor", "_span_processor")
    processor = next(filter(None, (getattr(provider, name, None) for name in names)), None)
    for one in getattr(processor, "_span_processors", ()):
        if any(kind.__name__ == _PROCESSOR for kind in type(one).__mro__):
            yield getattr(one, "public_key", "")


def counts(span: Any) -> bool:
    """Say whether a span is open, of another tracer, and one that Langfuse counts tokens of."""
    attributes = getattr(span, "attributes", None)
    if not attributes or not span.is_recording():
        return False
    if not any(attributes.get(name) in kinds for name, kinds in _COUNTED.items()):
        return False
    scope = getattr(span, "instrumentation_scope", None)
    return getattr(scope, "name", None) != _SCOPE and any(True for _ in projects(span))


def mark(attributes: MutableMapping[str, Any]) -> None:
    """Note in a request's attributes that Langfuse counts it already: ours is a span."""
    attributes[TYPE] = "span"


def marked(attributes: Mapping[str, Any]) -> bool:
    """Say whether `mark` has been there, or the application chose a type itself."""
    return TYPE in attributes


@fails_open("export.langfuse")
def count_ours(ours: Any) -> None:
    """Have Langfuse count a call once whose client has opened a span of its own inside ours.

    Ours is that of the request that the client is about to send.
    """
    theirs: Any = get_current_span()
    if theirs is not ours and counts(theirs):
        theirs.set_attributes({TYPE: "span", USAGE: "{}"})


def labels(span: Any) -> dict[str, str]:
    """Return the environment and release a span is to say, where not yet set."""
    from llmtrace.exporters.langfuse.settings import read_labels

    try:
        found = read_labels(os.environ)
    except ConfigError:  # Langfuse's SDK complains about it, and goes on without
        return {}
    resource = getattr(span, "resource", None)
    said = {*(span.attributes or ()), *(resource.attributes if resource is not None else ())}
    return {name: value for name, value in found.items() if name not in said}


@fails_open("export.langfuse")
def ended(
    generation: Span, info: Mapping[str, Any], outcome: str, error_type: str | None = None
) -> None:
    """Note on a generation of Langfuse's SDK what it does not know: a failure, the tokens.

    What it says itself stays, and what it says when it ends comes after this. Nothing is noted
    once it has ended. `info` are row fields, and `error_type` is the class of what was raised.
    """
    if not generation.is_recording():
        return
    from llmtrace.exporters.langfuse.span_attributes import failure, usage
    from llmtrace.exporters.span_layout import failure_text

    attributes = failure(failure_text(outcome, error_type)) | usage(info)
    said: Any = getattr(generation, "attributes", None) or {}
    generation.set_attributes(
        {name: value for name, value in attributes.items() if name not in said}
    )
