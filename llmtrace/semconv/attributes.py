"""The wire names that are not a plain field's of a row (`core/row_fields.py`), and of each metric.

OpenTelemetry's GenAI names where one exists, `llmtrace.*` for the rest. Only data: `convert.py`
reads and writes by it, and the page of semantic conventions is printed from it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from llmtrace.core.browser_timing import ON_WIRE, name_of
from llmtrace.core.content import ARGUMENTS, INPUT, OUTPUT, RESULT, SYSTEM
from llmtrace.core.stages import STAGES
from llmtrace.core.wire_names import Attribute, Kind

SCOPE: Final = "llmtrace"  # the instrumentation scope's name
STAGE: Final = "llmtrace.stage.name"  # on a child span: which stage it is
STAGE_SOURCE: Final = "llmtrace.stage.source"  # on a child span: its source
RESPONSE_HEADER: Final = "llmtrace.response_header."  # its name in lower case follows
ATTEMPT: Final = "llmtrace.attempt"  # on a child span: the number of the HTTP attempt it is
ATTEMPT_LOG: Final = "llmtrace.attempt_log"
# What spans of before the first release call these: read, never written.
FORMER: Final = {
    "llmtrace.tries": ATTEMPT_LOG,
    "llmtrace.held.before": "llmtrace.consumer_time.before",
    "llmtrace.held.after": "llmtrace.consumer_time.after",
}
_FORMER_HEADER: Final = "llmtrace.evidence."
CACHE_HIT: Final = "llmtrace.cache_hit"
E2E: Final = "llmtrace.e2e"  # on every row's span, and on no other: distinguishes rows from spans
# Child spans lie end to end in this order. Server time that cannot be split lies before
# the first content.
ORDER: Final = (
    "network", "gateway", "queue", "prefill", "first_chunk", "unattributed", "decode", "render",
)  # fmt: skip


def current_name(name: str) -> str:
    """Return the present name of an attribute, whichever version wrote it.

    Example:
        >>> current_name("llmtrace.evidence.retry-after"), current_name("llmtrace.e2e")
        ('llmtrace.response_header.retry-after', 'llmtrace.e2e')
    """
    if name.startswith(_FORMER_HEADER):
        return RESPONSE_HEADER + name.removeprefix(_FORMER_HEADER)
    return FORMER.get(name, name)


_BROWSER: Final[tuple[tuple[str, Kind, str], ...]] = (
    ("kind", "string", "`fetch` or `eventsource`; `whole` if the page read the answer in one go"),
    ("outcome", "string", "how it ended for the page; absent if not known"),
    ("error_type", "string", "name of the exception, or `HTTP503`"),
    ("http_status", "int", "of the answer the page got"),
    ("protocol", "string", "to the server: `http/1.1`, `h2`, `h3`"),
    ("e2e_ns", "seconds", "the call to the stream's end, or to the paint of its last content"),
    ("ttft_ns", "seconds", "the call to the first content in the page's hands"),
    ("held_before_ns", "seconds", "the page's own time up to the first content"),
    ("held_after_ns", "seconds", "the page's own time after it"),
    ("blocked_ns", "seconds", "of both, long tasks while the page waited for a piece"),
    ("first_byte_ns", "seconds", "the call to the first piece of the body"),
    ("last_content_ns", "seconds", "the call to the last content"),
    ("max_gap_ns", "seconds", "longest wait for a later piece"),
    ("client_wait_ns", "seconds", "before the request was sent, less what follows"),
    ("dns_ns", "seconds", "name resolution; 0 on a connection that was open"),
    ("connect_ns", "seconds", "TCP handshake, or QUIC's"),
    ("tls_ns", "seconds", "TLS handshake"),
    ("gateway_ns", "seconds", "self time of gateways, as `Server-Timing` reported to the page"),
    ("chunks", "int", "pieces with content"),
    ("renders", "int", "times the page changed the document, from the first content on"),
    ("paints", "int", "frames that showed such a change"),
    ("first_paint_ns", "seconds", "the call to the first of these"),
    ("paint_lag_ns", "seconds", "content in hand to content painted, mean"),
    ("max_paint_lag_ns", "seconds", "the same, longest"),
    ("long_frames", "int", "frames longer than 50 ms"),
    ("long_frames_total_ns", "seconds", "all of them together"),
    ("hidden_ns", "seconds", "for how long the page was not visible"),
    ("app_e2e_ns", "seconds", "the whole wait as the application's server had measured it"),
    ("app_ttft_ns", "seconds", "the same, start to first content"),
    ("app_held_ns", "seconds", "the same, the application's own time with the stream"),
    ("inconsistent", "string", "figures that contradict others; `server`: its wait is longer"),
)
# What a page's beacon reports: on its own span, and on the row it was joined to.
BROWSER: Final = tuple(
    Attribute(f"browser.{field}", name_of(field, ON_WIRE), kind, meaning)
    for field, kind, meaning in _BROWSER
)

_STAGE_MEANINGS: Final = (
    "from the client to the gateway: waiting for a connection, making it, sending, a round trip",
    "self time of gateways and routers, and attempts they refused",
    "waiting in the engine's scheduler",
    "scheduled to first token in the engine",
    "first token in the engine to first content in the reader's hands",
    "waiting for the next chunk, after the first",
    "the reader's own time while the stream is open",
)
# Stages as `stages.split` cut them: written to be queried, worked out anew when read.
STAGE_TIMES: Final = tuple(
    Attribute(stage, f"llmtrace.stage.{stage}", "seconds", meaning)
    for stage, meaning in zip(STAGES, _STAGE_MEANINGS, strict=True)
)

# The span of a gateway of one's own (`llmtrace.gateway`). Absent when unknown.
GATEWAY: Final = (
    Attribute("name", "llmtrace.gateway", "string", "the gateway's name"),
    Attribute("own", "llmtrace.gateway.self", "seconds", "its own, up to the first content"),
    Attribute("upstream", "llmtrace.gateway.upstream", "seconds", "waiting on upstream calls"),
    Attribute(
        "caller",
        "llmtrace.gateway.caller",
        "seconds",
        "waiting for the rest of the request, if any",
    ),
    Attribute("calls", "llmtrace.gateway.calls", "int", "upstream calls made up to then"),
    Attribute("cache_hit", CACHE_HIT, "boolean", "whether a cache answered and no engine"),
    Attribute("cache_kind", "llmtrace.cache_kind", "string", "`exact`, `semantic`"),
    Attribute("request_id", "llmtrace.request_id", "string", "the caller's `x-request-id`"),
    Attribute("outcome", "llmtrace.outcome", "string", "`success`, `error`, `cancelled`, …"),
    Attribute("error_type", "error.type", "string", "class of what was raised, or the status"),
)

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
    Attribute("call_id", TOOL_CALL_ID, "string", "that the model gave the call, if known"),
    Attribute("agent", "gen_ai.agent.name", "string", "the turn's name, if in one"),
    Attribute("round", TOOL_ROUND, "int", "requests its turn had begun before it"),
    Attribute("needs", TOOL_NEEDS, "string[]", "ids of the spans whose results it was given"),
    Attribute("outcome", "llmtrace.outcome", "string", "`success`, `error`, `cancelled`, …"),
    Attribute("error_type", "error.type", "string", "class of what was raised"),
)

# What was said, by the names of `content.py`: only if the user wants it recorded.
CONTENT: Final = (
    Attribute("content", SYSTEM, "string", "instructions apart from the conversation, as JSON"),
    Attribute("content", INPUT, "string", "the conversation that was sent, as JSON"),
    Attribute("content", OUTPUT, "string", "the answer, as JSON"),
    Attribute("content", ARGUMENTS, "string", "what a tool was given, as JSON"),
    Attribute("content", RESULT, "string", "what it gave, as text or JSON"),
)

# What has a shape of its own; see `to_attributes`.
SPECIAL: Final = (
    Attribute("server", "server.address", "string", "host of the server"),
    Attribute("server", "server.port", "int", "its port, where given"),
    Attribute("stream", "gen_ai.request.stream", "boolean", "true for a stream, else absent"),
    Attribute("nested", "llmtrace.nested", "boolean", "true if its time is part of another row's"),
    Attribute(
        "watched",
        "llmtrace.unwatched",
        "boolean",
        "true if the waits of its consumer were not observed",
    ),
    Attribute(
        "attempt_log",
        ATTEMPT_LOG,
        "string[]",
        "HTTP attempts, where one failed or there were several; as JSON",
    ),
    Attribute(
        "finish_reason", "gen_ai.response.finish_reasons", "string[]", "why the model stopped"
    ),
    Attribute(
        "ttft_s", "gen_ai.response.time_to_first_chunk", "seconds", "start to first *content*"
    ),
    Attribute("e2e_s", E2E, "seconds", "the whole wait; marks the span as a row"),
    Attribute("network_rtt_source", "llmtrace.network.rtt.source", "string", "who measured it"),
)
DERIVED: Final = (
    Attribute("tpot_s", "llmtrace.tpot", "seconds", "time of an output token after the first"),
    Attribute(
        "ttft_arrival_s",
        "llmtrace.ttft_arrival",
        "seconds",
        "what the first content would have taken with an eager reader",
    ),
    Attribute(
        "unattributed_s",
        "llmtrace.stage.unattributed",
        "seconds",
        "the rest, known but not to be split; 0 when all is known",
    ),
    Attribute(
        "inconsistent",
        "llmtrace.inconsistent",
        "string[]",
        "stages whose reported figure did not fit and was cut",
    ),
)


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


# As released with semantic conventions 1.41, and emitted by everybody.
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
    tokens={
        "input": "gen_ai.client.inference.operation.input_tokens",
        "output": "gen_ai.client.inference.operation.output_tokens",
    },
    tokens_total={
        "input": "gen_ai.client.inference.usage.input_tokens",
        "output": "gen_ai.client.inference.usage.output_tokens",
        "cached": "gen_ai.client.inference.usage.cache_read.input_tokens",
        "cache_write": "gen_ai.client.inference.usage.cache_write.input_tokens",
        "reasoning": "gen_ai.client.inference.usage.reasoning.output_tokens",
    },
    calls={
        "inference_calls": "gen_ai.invoke_agent.inference_calls",
        "tool_calls": "gen_ai.invoke_agent.tool_calls",
    },
)
# What the conventions want known of tokens; providers' answers seldom say it.
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
