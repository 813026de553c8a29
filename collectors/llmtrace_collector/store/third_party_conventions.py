"""Read the spans of requests that other instrumentations make, each by its own convention.

One table: how a convention marks a request, and how it names the fields of a row. Its names are
mapped to OpenTelemetry's current ones, which `row_columns` reads; a span's own current names take
precedence. Tested with recorded spans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from llmtrace.semconv.attributes import EXECUTE_TOOL
from llmtrace_collector.store.sql_builder import from_file

# Operations of OpenTelemetry's GenAI conventions that are requests for a response, and that are not.
_INFERENCE: Final = ("chat", "generate_content", "text_completion")
_NO_REQUEST: Final = (
    f"{EXECUTE_TOOL}|(create|invoke)_(agent|workflow)|plan|embeddings|rerank|retrieval"
    "|fetch_response|[a-z]+_memory(_store)?"
)
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
    return f"hasAny(mapKeys(SpanAttributes), {list(names)})"


def _of(name: str) -> str:
    return f"SpanAttributes['{name}']"


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
    marks: tuple[str, ...] = ()
    is_request: str = "false"
    names: Mapping[str, str] = field(default_factory=dict)
    nested: tuple[str, ...] = ()
    first_chunks: tuple[str, ...] = ()
    also: Mapping[str, str] = field(default_factory=dict)
    noise: tuple[str, ...] = ()


_OPERATION: Final = _of("gen_ai.operation.name")
# Logfire ends the span of a streamed request when the response begins; tokens and duration are in
# a log, which is a span without duration, when the stream has ended.
_LOGFIRE_LOG: Final = (
    f"{_of('logfire.span_type')} = 'log' AND {_has('duration')} AND {_OPERATION} != ''"
)
_LOGFIRE_BEGUN: Final = f"startsWith(ScopeName, 'logfire.') AND NOT {FAILED} AND NOT " + _has(
    "gen_ai.output.messages", "gen_ai.response.id", "response_data", _OUTPUT
)

# Strands writes it in milliseconds; for others it is in seconds, as measured by the server.
_STRANDS_FIRST: Final = (
    f"if(has([{_of('gen_ai.provider.name')}, {_of('gen_ai.system')}], 'strands-agents'), ifNull(toString("
    f"toFloat64OrNull({_of('gen_ai.server.time_to_first_token')}) / 1000), ''), '')"
)

CONVENTIONS: Final = (
    Convention(
        "OpenTelemetry GenAI",
        marks=("gen_ai.operation.name", "gen_ai.system"),
        is_request=(
            f"(SpanKind IN ('Client', 'SPAN_KIND_CLIENT')"
            f" AND NOT match({_OPERATION}, '^({_NO_REQUEST})$')"
            # Many instrumentations set no kind, which then is internal.
            f" OR SpanKind NOT IN ('Server', 'SPAN_KIND_SERVER') AND {_OPERATION} IN {_INFERENCE})"
            f" AND NOT ({_LOGFIRE_BEGUN})"
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
        first_chunks=("gen_ai.content.completion.chunk", "llm.content.completion.chunk"),
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
            "llm.invocation_parameters.model": _MODEL,
            "llm.invocation_parameters.max_completion_tokens": _MAX_TOKENS,
            "llm.invocation_parameters.max_tokens": _MAX_TOKENS,
            "llm.invocation_parameters.stream": _STREAM,
        },
        nested=("llm.invocation_parameters",),
        first_chunks=("First Token Stream Event",),
        noise=(r"(llm|input|output|openinference)\.",),
    ),
    Convention(
        "Logfire and Pydantic AI",
        is_request=_LOGFIRE_LOG,
        also={_STREAM: f"if({_of('logfire.span_type')} = 'log', 'true', '')"},
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
        names={
            "langfuse.observation.model.name": _MODEL,
            "langfuse.observation.model.parameters.max_tokens": _MAX_TOKENS,
            "langfuse.observation.usage_details.input": _PROMPT,
            "langfuse.observation.usage_details.prompt_tokens": _PROMPT,
            "langfuse.observation.usage_details.output": _OUTPUT,
            "langfuse.observation.usage_details.completion_tokens": _OUTPUT,
            "langfuse.observation.metadata.finish_reason": _REASON,
        },
        nested=("langfuse.observation.usage_details", "langfuse.observation.model.parameters"),
        noise=(r"langfuse\.",),
    ),
    Convention(
        "Vercel AI SDK",
        marks=("ai.operationId",),
        is_request=f"match({_of('ai.operationId')}, 'do(Stream|Generate)$')",
        names={"ai.usage.cachedInputTokens": _CACHED, "ai.usage.reasoningTokens": _REASONING},
        first_chunks=("ai.stream.firstChunk",),
        also={_STREAM: f"if(endsWith({_of('ai.operationId')}, 'doStream'), 'true', '')"},
        # All but `ai.telemetry.*`, which the application adds.
        noise=(
            r"ai\.(model|operationId|prompt|request|response|schema|settings|usage)\b"
            r"|(operation|resource)\.name$",
        ),
    ),
    Convention(
        "Strands Agents",
        also={_FIRST: _STRANDS_FIRST},
        noise=(r"gen_ai\.(event\.|server\.time_to_first_token$)",),
    ),
    Convention("Google's Agent Development Kit", noise=(r"gcp\.vertex\.agent\.",)),
    Convention("LiteLLM", noise=(r"litellm\.|(hidden_params|error\.(message|stack_trace))$",)),
)  # fmt: skip

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
