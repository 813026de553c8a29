"""Read the spans that other instrumentations make of a request, each by its own convention.

One table: how a convention marks a request, and how it names what a row has. Their names are
turned into OpenTelemetry's present ones, which `row_columns` reads; what other names stand for is
added behind those, so that a span's own present names count first. Tested with recorded spans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from llmtrace.semconv.attributes import EXECUTE_TOOL

_NS: Final = 1_000_000_000
# Operations of OpenTelemetry's GenAI conventions that are no request for an answer.
_NO_REQUEST: Final = (
    EXECUTE_TOOL, "invoke_agent", "invoke_workflow", "create_agent", "embeddings", "rerank",
)  # fmt: skip
FAILED: Final = "StatusCode IN ('Error', 'STATUS_CODE_ERROR')"

_MODEL: Final = "gen_ai.request.model"
_PROVIDER: Final = "gen_ai.provider.name"
_PROMPT: Final = "gen_ai.usage.input_tokens"
_OUTPUT: Final = "gen_ai.usage.output_tokens"
_CACHED: Final = "gen_ai.usage.cache_read.input_tokens"
_WRITTEN: Final = "gen_ai.usage.cache_write.input_tokens"
_REASONING: Final = "gen_ai.usage.reasoning.output_tokens"
_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
_STREAM: Final = "gen_ai.request.stream"
_REASON: Final = "gen_ai.response.finish_reasons"
_FIRST: Final = "gen_ai.response.time_to_first_chunk"


def _has(*names: str) -> str:
    return "(" + " OR ".join(f"mapContains(SpanAttributes, '{name}')" for name in names) + ")"


def _of(name: str) -> str:
    return f"SpanAttributes['{name}']"


def _json(name: str, *keys: str) -> str:
    """Return the expression of a key of an attribute in JSON, of the first that is there."""
    read = [f"JSONExtractRaw({_of(name)}, '{key}')" for key in keys]
    texts = ", ".join(f"{one} NOT IN ('', 'null'), trim(BOTH '\"' FROM {one})" for one in read)
    return f"multiIf({texts}, '')"


def _until(moment: str) -> str:
    """Return the expression of the seconds from a span's start to a moment in it, else ''."""
    took = f"(toUnixTimestamp64Nano({moment}) - toUnixTimestamp64Nano(Timestamp))"
    return f"if({took} > 0 AND {took} <= Duration, toString({took} / {_NS}), '')"


def _event(name: str) -> str:
    """Return the expression of the seconds to a span's first event of a name, '' = it has none."""
    return _until(f"`Events.Timestamp`[indexOf(`Events.Name`, '{name}')]")


@dataclass(frozen=True, slots=True)
class Convention:
    """How a family of instrumentations records a request.

    Attributes:
        name: of the family.
        marks: the attributes one of which each of its requests has.
        is_request: the condition under which a span is a request.
        names: what it calls attributes, and their present names.
        also: present names, and the expressions of their texts, '' = not reported.
        noise: regular expression of attributes that are of no use on a row, or hold content.
    """

    name: str
    marks: tuple[str, ...] = ()
    is_request: str = "false"
    names: Mapping[str, str] = field(default_factory=dict)
    also: Mapping[str, str] = field(default_factory=dict)
    noise: tuple[str, ...] = ()


# Logfire ends the span of a streamed request when the response begins; tokens and duration are in
# a log, which is a span without duration, when the stream has ended.
_LOGFIRE_LOG: Final = f"{_of('logfire.span_type')} = 'log' AND {_has('duration')} AND {_of('gen_ai.operation.name')} != ''"
_LOGFIRE_BEGUN: Final = f"startsWith(ScopeName, 'logfire.') AND NOT {FAILED} AND NOT " + _has(
    "gen_ai.output.messages", "gen_ai.response.id", "response_data", _OUTPUT
)

CONVENTIONS: Final = (
    Convention(
        "OpenTelemetry GenAI",
        marks=("gen_ai.operation.name", "gen_ai.system"),
        is_request=(
            "SpanKind IN ('Client', 'SPAN_KIND_CLIENT')"
            f" AND {_of('gen_ai.operation.name')} NOT IN {_NO_REQUEST} AND NOT ({_LOGFIRE_BEGUN})"
        ),
        names={
            "gen_ai.system": _PROVIDER,
            "gen_ai.usage.prompt_tokens": _PROMPT,
            "gen_ai.usage.completion_tokens": _OUTPUT,
            "gen_ai.usage.cache_creation.input_tokens": _WRITTEN,
            "gen_ai.usage.cache_read_input_tokens": _CACHED,
            "gen_ai.usage.cache_creation_input_tokens": _WRITTEN,
            "gen_ai.usage.reasoning_tokens": _REASONING,
            "gen_ai.client.operation.time_to_first_chunk": _FIRST,
        },
        also={
            _MODEL: _of("gen_ai.response.model"),
            "error.type": "`Events.Attributes`[indexOf(`Events.Name`, 'exception')]['exception.type']",
        },
    ),
    Convention(
        "OpenLLMetry",
        names={"gen_ai.is_streaming": _STREAM, "llm.is_streaming": _STREAM},
        also={_FIRST: _event("gen_ai.content.completion.chunk")},
        noise=(r"gen_ai\.(prompt|completion|headers|openai)\b", r"traceloop\."),
    ),
    Convention(
        "OpenInference",
        marks=("openinference.span.kind",),
        is_request=f"{_of('openinference.span.kind')} = 'LLM'",
        names={
            "llm.model_name": _MODEL,
            "llm.provider": _PROVIDER,
            "llm.system": _PROVIDER,
            "llm.token_count.prompt": _PROMPT,
            "llm.token_count.prompt_details.cache_read": _CACHED,
            "llm.token_count.prompt_details.cache_write": _WRITTEN,
            "llm.token_count.completion": _OUTPUT,
            "llm.token_count.completion_details.reasoning": _REASONING,
            "llm.finish_reason": _REASON,
        },
        also={
            _MODEL: _json("llm.invocation_parameters", "model"),
            _MAX_TOKENS: _json(
                "llm.invocation_parameters", "max_completion_tokens", "max_tokens"
            ),
            _STREAM: _json("llm.invocation_parameters", "stream"),
            _FIRST: _event("First Token Stream Event"),
        },
        noise=(r"(llm|input|output|openinference)\.",),
    ),
    Convention(
        "Logfire and Pydantic AI",
        is_request=_LOGFIRE_LOG,
        also={_STREAM: f"if({_LOGFIRE_LOG}, 'true', '')"},
        noise=(
            r"(logfire|pydantic_ai)\.",
            r"(request_data|response_data|model_request_parameters|async|duration)$",
            r"gen_ai\.usage\.(raw|details)\b",
        ),
    ),
    Convention(
        "Langfuse",
        marks=("langfuse.observation.type",),
        is_request=f"{_of('langfuse.observation.type')} = 'generation'",
        names={"langfuse.observation.model.name": _MODEL},
        also={
            _PROMPT: _json("langfuse.observation.usage_details", "input", "prompt_tokens"),
            _OUTPUT: _json("langfuse.observation.usage_details", "output", "completion_tokens"),
            _MAX_TOKENS: _json("langfuse.observation.model.parameters", "max_tokens"),
            _REASON: f"trim(BOTH '\"' FROM {_of('langfuse.observation.metadata.finish_reason')})",
            _FIRST: _until(
                "assumeNotNull(ifNull(parseDateTime64BestEffortOrNull(trim(BOTH '\"' FROM"
                f" {_of('langfuse.observation.completion_start_time')}), 9), Timestamp))"
            ),
        },
        noise=(r"langfuse\.",),
    ),
)  # fmt: skip

MARKS: Final = tuple(mark for one in CONVENTIONS for mark in one.marks)
IS_REQUEST: Final = " OR ".join(f"({one.is_request})" for one in CONVENTIONS)
# How long a request took, in nanoseconds, as far as 64 bits with a sign go.
TOOK_NS: Final = (
    f"if({_LOGFIRE_LOG}, ifNull(accurateCastOrNull(toFloat64OrNull({_of('duration')}) * {_NS},"
    f" 'UInt64'), 0), Duration)"
)


def attributes() -> str:
    """Return the expression of a request's attributes by their present names, none empty."""
    names = {theirs: ours for one in CONVENTIONS for theirs, ours in one.names.items()}
    theirs, ours = (", ".join(map(repr, words)) for words in (names, names.values()))
    noise = "|".join(text for one in CONVENTIONS for text in one.noise).replace("\\", "\\\\")
    also = [pair for one in CONVENTIONS for pair in one.also.items()]
    added = ", ".join(f"('{name}', {expression})" for name, expression in also)
    return (
        "CAST(arrayFilter(one -> one.2 != '', arrayConcat("
        f"arrayMap(one -> (transform(one.1, [{theirs}], [{ours}], one.1), one.2),"
        f" arrayFilter(one -> one.1 IN ({theirs}) OR NOT match(one.1, '^({noise})'),"
        f" CAST(CAST(SpanAttributes, 'Map(String, String)'), 'Array(Tuple(String, String))'))),"
        f" [{added}])), 'Map(String, String)')"
    )
