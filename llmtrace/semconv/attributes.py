"""The wire names that `core/row_fields.py` does not have, and those of the metrics.

OpenTelemetry's GenAI names where one exists, `llmtrace.*` for the rest. Only data: `convert.py`
reads and writes by it, and the page of semantic conventions is printed from it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

from llmtrace.core.browser_timing import ON_WIRE, Browser, browser_kinds, name_of
from llmtrace.core.content import ARGUMENTS, INPUT, OUTPUT, RESULT, SYSTEM
from llmtrace.core.stages import STAGES
from llmtrace.core.wire_names import Attribute

SCOPE: Final = "llmtrace"  # the instrumentation scope's name
STAGE: Final = "llmtrace.stage.name"  # on a child span: which stage it is
STAGE_SOURCE: Final = "llmtrace.stage.source"  # on a child span: its source
RESPONSE_HEADER: Final = "llmtrace.response_header."  # its name in lower case follows
ATTEMPT: Final = "llmtrace.attempt"  # on a child span: the number of the HTTP attempt it is
ATTEMPT_LOG: Final = "llmtrace.attempt_log"
CACHE_HIT: Final = "llmtrace.cache_hit"
E2E: Final = "llmtrace.e2e"  # on every row's span, and on no other: distinguishes rows from spans

# What a page's beacon reports: on its own span, and on the row it was joined to.
BROWSER: Final = tuple(
    Attribute(
        f"browser.{figure.name}",
        name_of(figure.name, ON_WIRE),
        "seconds" if kind is float else "int" if kind is int else "string",
        figure.metadata["meaning"],
    )
    for figure, kind in zip(fields(Browser), browser_kinds(ON_WIRE).values(), strict=True)
)

_STAGE_MEANINGS: Final = (
    "from client to gateway: wait for a connection, DNS, TCP, TLS, sending, a round trip",
    "self time of gateways and routers, and attempts that they rejected",
    "wait in the engine's scheduler",
    "scheduled to first token in the engine",
    "first token in the engine to first content at the consumer",
    "waits for chunks after the first",
    "consumer time: the application holds the stream and does not read",
)
# Stages as `stages.split` cut them: written for queries, computed again when read.
STAGE_TIMES: Final = tuple(
    Attribute(stage, f"llmtrace.stage.{stage}", "seconds", meaning)
    for stage, meaning in zip(STAGES, _STAGE_MEANINGS, strict=True)
)

# The span of a gateway of one's own (`llmtrace.gateway`). Absent when unknown.
GATEWAY: Final = (
    Attribute("name", "llmtrace.gateway", "string", "the gateway's name"),
    Attribute("own", "llmtrace.gateway.self", "seconds", "self time up to the first content"),
    Attribute("upstream", "llmtrace.gateway.upstream", "seconds", "wait for upstream calls"),
    Attribute("caller", "llmtrace.gateway.caller", "seconds",
              "wait for the rest of the client's request, if any"),
    Attribute("calls", "llmtrace.gateway.calls", "int",
              "upstream calls made up to the first content"),
    Attribute("cache_hit", CACHE_HIT, "boolean",
              "whether a response cache answered instead of an engine"),
    Attribute("cache_kind", "llmtrace.cache_kind", "string",
              "kind of that cache: `exact`, `semantic`"),
    Attribute("request_id", "llmtrace.request_id", "string", "the client's `x-request-id`"),
    Attribute("outcome", "llmtrace.outcome", "string", "`success`, `error`, `cancelled`, …"),
    Attribute("error_type", "error.type", "string", "class of the exception, or the HTTP status"),
)  # fmt: skip

EXECUTE_TOOL: Final = "execute_tool"  # the operation of a tool call's span
TOOL_NAME: Final = "gen_ai.tool.name"  # on a tool call's span, and on no other
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_ROUND: Final = "llmtrace.tool.round"
TOOL_NEEDS: Final = "llmtrace.tool.needs"
# What the span of a tool call has, beside what the application says of it.
TOOL: Final = (
    Attribute("operation", "gen_ai.operation.name", "string", f"`{EXECUTE_TOOL}`"),
    Attribute("name", TOOL_NAME, "string", "the tool's name"),
    Attribute("type", TOOL_TYPE, "string", "`function`"),
    Attribute("call_id", TOOL_CALL_ID, "string", "id that the model gave the call, if known"),
    Attribute("agent", "gen_ai.agent.name", "string",
              "name of the agent whose turn it is in, if any"),
    Attribute("round", TOOL_ROUND, "int", "number of requests that its turn had begun before it"),
    Attribute("needs", TOOL_NEEDS, "string[]", "ids of the spans whose results it uses"),
    Attribute("outcome", "llmtrace.outcome", "string", "`success`, `error`, `cancelled`, …"),
    Attribute("error_type", "error.type", "string", "class of the exception"),
)  # fmt: skip

# What was said, by the names of `content.py`: only if the user wants it recorded.
CONTENT: Final = (
    Attribute("content", SYSTEM, "string", "instructions apart from the conversation, as JSON"),
    Attribute("content", INPUT, "string", "the messages that were sent, as JSON"),
    Attribute("content", OUTPUT, "string", "the response, as JSON"),
    Attribute("content", ARGUMENTS, "string", "arguments of the tool call, as JSON"),
    Attribute("content", RESULT, "string", "result of the tool call, as text or JSON"),
)

# What has a shape of its own; see `to_attributes`.
SPECIAL: Final = (
    Attribute("server", "server.address", "string", "host of the server"),
    Attribute("server", "server.port", "int", "its port, where given"),
    Attribute("stream", "gen_ai.request.stream", "boolean",
              "true if the response came as a stream, else absent"),
    Attribute("nested", "llmtrace.nested", "boolean",
              "true if the time is part of another row's, as of a request in a turn"),
    Attribute("watched", "llmtrace.unwatched", "boolean",
              "true if consumer time was not seen: what follows the first content is unattributed",
              key="unwatched"),
    Attribute("attempt_log", ATTEMPT_LOG, "string[]",
              "the HTTP attempts, if there were several or one failed; as JSON"),
    Attribute("finish_reason", "gen_ai.response.finish_reasons", "string[]",
              "why the model stopped"),
    Attribute("ttft_s", "gen_ai.response.time_to_first_chunk", "seconds",
              "time to first token: start to the first *content*"),
    Attribute("e2e_s", E2E, "seconds",
              "end-to-end latency: start to the end of the stream; marks the span as a row"),
    Attribute("network_rtt_source", "llmtrace.network.rtt.source", "string",
              "source of the round trip"),
)  # fmt: skip
DERIVED: Final = (
    Attribute("tpot_s", "llmtrace.tpot", "seconds", "time per output token after the first"),
    Attribute("ttft_arrival_s", "llmtrace.ttft_arrival", "seconds",
              "the least that TTFT would have been if the consumer had read at once"),
    Attribute("unattributed_s", "llmtrace.stage.unattributed", "seconds",
              "the rest of the latency, which no stage can be given; 0 if there is none"),
    Attribute("inconsistent", "llmtrace.inconsistent", "string[]",
              "stages whose reported figure did not fit into the latency and was cut"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClientMetrics:
    """Names of OpenTelemetry's GenAI client metrics; empty = this version has no such metric.

    Attributes:
        schema_url: of the conventions that have these names.
        tokens: histograms of the tokens of each request, by kind.
        tokens_total: counters of tokens, by kind. They have an attribute for the modality, and
            count 0 for a request without usage.
        calls: histograms of what one turn of an agent calls, by kind.
    """

    duration: str
    time_to_first_chunk: str
    time_per_output_chunk: str
    schema_url: str
    token_usage: str = ""
    tokens: Mapping[str, str] | None = None
    tokens_total: Mapping[str, str] | None = None
    calls: Mapping[str, str] | None = None


# As released with semantic conventions 1.41; what most instrumentations emit.
RELEASED: Final = ClientMetrics(
    duration="gen_ai.client.operation.duration",
    time_to_first_chunk="gen_ai.client.operation.time_to_first_chunk",
    time_per_output_chunk="gen_ai.client.operation.time_per_output_chunk",
    schema_url="https://opentelemetry.io/schemas/1.41.0",
    token_usage="gen_ai.client.token.usage",  # noqa: S106 - not that kind of token
)
# As in the GenAI conventions' own repository, which has no release yet.
LATEST: Final = ClientMetrics(
    duration="gen_ai.client.inference.duration",
    time_to_first_chunk="gen_ai.client.inference.time_to_first_chunk",
    time_per_output_chunk="gen_ai.client.inference.time_per_output_chunk",
    schema_url="https://opentelemetry.io/schemas/gen-ai/1.42.0",
    tokens={name: f"gen_ai.client.inference.operation.{name}_tokens"
            for name in ("input", "output")},
    tokens_total={name: f"gen_ai.client.inference.usage.{path}_tokens" for name, path in (
        ("input", "input"), ("output", "output"), ("cached", "cache_read.input"),
        ("cache_write", "cache_write.input"), ("reasoning", "reasoning.output"))},
    calls={name: f"gen_ai.invoke_agent.{name}" for name in ("inference_calls", "tool_calls")},
)  # fmt: skip
# An attribute of tokens in the conventions; providers' responses seldom say it.
MODALITY: Final = "gen_ai.token.modality"
UNKNOWN_MODALITY: Final = "unknown"
CALL_UNITS: Final = {"inference_calls": "{inference_call}", "tool_calls": "{tool_call}"}
# The same in both.
AGENT_DURATION: Final = "gen_ai.invoke_agent.duration"
TOOL_DURATION: Final = "gen_ai.execute_tool.duration"
# Bucket bounds the conventions advise, in seconds and in tokens.
DURATION_BOUNDS_S: Final = tuple(0.01 * 2**power for power in range(14))
TOKEN_BOUNDS: Final = tuple(4**power for power in range(14))
CALL_BOUNDS: Final = tuple(2**power for power in range(8))

_OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"


def client_metrics(environ: Mapping[str, str] = os.environ) -> ClientMetrics:
    """Return the names to use: the released ones, unless the environment opts in to the latest."""
    chosen = environ.get(_OPT_IN, "").split(",")
    return LATEST if "gen_ai_latest_experimental" in map(str.strip, chosen) else RELEASED
