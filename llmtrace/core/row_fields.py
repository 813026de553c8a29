"""The fields of a row, a line each, from which every form of a row follows.

A field that is declared here is in `Row`, in its JSON, in Parquet and data frames, on the span, in
the store, in the columns of an analysis and in the documents; there is no second list of them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, Literal, get_args

from llmtrace.core.stages import Network, Timeline
from llmtrace.core.wire_names import wired, wired_fields

Outcome = Literal["success", "error", "cancelled", "truncated", "timeout"]
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
_ONE_OF_OUTCOMES: Final = f"one of {', '.join(OUTCOMES)}"


@dataclass(frozen=True, kw_only=True)
class RowFields:
    """The plain fields of a request: `*_ns` are nanoseconds, `*_s` seconds; `None` = not known.

    Attributes:
        request_id: the `x-request-id` sent to the server; `None` where it is not known, as of a
            span of another instrumentation.
        start: unix time of the call in nanoseconds, for placing the row, never for subtracting.
        kv_connector: the engine's connector for KV blocks of other engines or tiers. Where it has
            one, `queue` (and `prefill`, if the connector loads synchronously) may hold a transfer.
        burst_chunks: of those after the first, how many were there at once (waited for less than
            a millisecond). With a consumer that is always waiting, most of them means that
            something in between gathers chunks.
        answered_ns: start to the headers of the response. Where they come together with the first
            byte, something held them back.
        max_gap_ns: longest wait for a chunk after the first, the gap before a truncation included.
        gaps: the waits over time, as `core.gap_slots` writes and reads them.
        arrived_by_ns: start to when the first content was on this machine, at the latest, as the
            kernel says; `None` = not known to be before it was read.
        client_lag_ns: of the waits, for how long at least the kernel had the data: the event loop
            or the thread was busy with something else. `None` = not known.
        nested: whether another row encloses this one, whose time this one's is part of.
        weight: how many requests this row stands for when the user samples.
    """

    trace_id: str
    span_id: str
    parent_span_id: str | None = None
    start: int
    service: str
    operation: str = wired("gen_ai.operation.name", "`chat`, `text_completion`, …", "chat")
    agent: str | None = wired("gen_ai.agent.name", "of a turn: its name", in_columns=False)
    provider: str | None = wired("gen_ai.provider.name", "who serves the model")
    model: str | None = wired("gen_ai.request.model", "the requested model")
    response_model: str | None = wired("gen_ai.response.model", "the model that answered")
    max_tokens: int | None = wired("gen_ai.request.max_tokens", "most tokens of the answer")
    response_id: str | None = wired("gen_ai.response.id", "the id in the answer", in_columns=False)
    prompt_tokens: int | None = wired("gen_ai.usage.input_tokens", "tokens of the prompt")
    cached_tokens: int | None = wired(
        "gen_ai.usage.cache_read.input_tokens", "of them, from a cache"
    )
    cache_write_tokens: int | None = wired(
        "gen_ai.usage.cache_write.input_tokens", "of them, written to the provider's cache"
    )
    output_tokens: int | None = wired("gen_ai.usage.output_tokens", "tokens of the answer")
    reasoning_tokens: int | None = wired(
        "gen_ai.usage.reasoning.output_tokens", "of them, of reasoning"
    )
    error_type: str | None = wired(
        "error.type", "the provider's code, else class of what was raised"
    )
    http_status: int | None = wired("http.response.status_code", "status of the last attempt")
    version: str | None = wired("service.version", "version of the application")
    outcome: Outcome = wired("llmtrace.outcome", _ONE_OF_OUTCOMES, "success")  # noqa: RUF009 - as `field`
    finish_reason: str | None = None
    request_id: str | None = wired("llmtrace.request_id", "the `x-request-id` sent")
    route: str | None = wired(
        "llmtrace.route", "the feature of the application that made the request"
    )
    tenant: str | None = wired("llmtrace.tenant", "on whose behalf")
    region: str | None = wired("llmtrace.region", "where the application runs")
    replica: str | None = wired("llmtrace.replica", "the engine instance that answered")
    gateway: str | None = wired("llmtrace.gateway", "name of the gateway in between")
    client: str | None = wired("llmtrace.client", "client library")
    server: str | None = None
    cache_hit: bool | None = wired("llmtrace.cache_hit", "whether a cache answered and no engine")
    attempts: int = wired("llmtrace.attempts", "HTTP attempts, retries included", 1)
    chunks: int = wired("llmtrace.chunks", "chunks with content", 0)
    burst_chunks: int | None = wired("llmtrace.burst_chunks", "of them, there at once")
    preemptions: int | None = wired("llmtrace.preemptions", "times the engine preempted it")
    spec_drafted: int | None = wired("llmtrace.spec_drafted", "speculative tokens drafted")
    spec_accepted: int | None = wired("llmtrace.spec_accepted", "of them, accepted")
    kv_connector: str | None = wired(
        "llmtrace.kv_connector",
        "the engine's connector for KV blocks: `queue` may hold their transfer",
    )
    inference_calls: int | None = wired(
        "llmtrace.inference_calls", "of a turn: requests to a model"
    )
    tool_calls: int | None = wired("llmtrace.tool_calls", "tool calls run")
    tool_wall_s: float | None = wired("llmtrace.tool_wall", "s while any tool call ran")
    tool_serial_s: float | None = wired("llmtrace.tool_serial", "s of all tool calls added up")
    tool_critical_path_s: float | None = wired(
        "llmtrace.tool_critical_path", "s of the longest chain of dependent tool calls"
    )
    tool_serial_loss_s: float | None = wired(
        "llmtrace.tool_serial_loss", "s that independent tool calls lost by taking turns"
    )
    nested: bool = False
    weight: float = wired("llmtrace.weight", "requests this row stands for", 1.0)
    max_gap_ns: int | None = wired("llmtrace.max_gap", "longest wait for a later chunk")
    gaps: str | None = wired(
        "llmtrace.gaps",
        "of up to 32 equal slots from the first content on: their length, then the longest wait"
        " that ended in each (`-`: none did), in µs",
        in_columns=False,
    )
    answered_ns: int | None = wired("llmtrace.answered", "start to the headers of the answer")
    first_byte_ns: int | None = wired("llmtrace.first_byte", "start to first byte of the body")
    first_event_ns: int | None = wired(
        "llmtrace.first_event", "start to first event, any kind", in_columns=False
    )
    first_reasoning_ns: int | None = wired(
        "llmtrace.first_reasoning", "start to first reasoning", in_columns=False
    )
    first_text_ns: int | None = wired(
        "llmtrace.first_text", "start to first visible text", in_columns=False
    )
    first_tool_call_ns: int | None = wired(
        "llmtrace.first_tool_call", "start to first tool-call chunk", in_columns=False
    )
    last_content_ns: int | None = wired("llmtrace.last_content", "start to last content")
    arrived_by_ns: int | None = wired(
        "llmtrace.arrived_by",
        "start to the first content on this machine, at most; absent if not known to be earlier",
    )
    client_lag_ns: int | None = wired(
        "llmtrace.client_lag",
        "of the waits, at least: the data was on this machine and the client did not notice",
    )


_MEASURED: Final = tuple(wired_fields(RowFields))
_OF_TIMELINE: Final = tuple(wired_fields(Timeline, seconds=True))
_TYPES: Final = {one.name: one.type for one in fields(Timeline)}

# Written as they are. Absent when unknown.
PLAIN: Final = tuple(line for line in _MEASURED if line.kind != "seconds")
# Points in time and gaps that the row keeps in nanoseconds (`<field>_ns`). Absent when unknown.
MARKS: Final = tuple(line for line in _MEASURED if line.kind == "seconds")
# Fields of the timeline that are 0 unless something happened. Absent when 0.
RAW: Final = tuple(line for line in _OF_TIMELINE if _TYPES[line.field] == "int")
# Durations as reported, uncut, each with a `.source`. Absent when not reported.
REPORTED: Final = tuple(line for line in _OF_TIMELINE if _TYPES[line.field] == "Reported | None")
# Named parts of what is unattributed. Absent when no HTTP hook saw the request.
UNSPLIT: Final = tuple(line for line in _OF_TIMELINE if _TYPES[line.field] == "int | None")
# Sub-phases of the network stage. Absent when not observed.
NETWORK: Final = tuple(wired_fields(Network, seconds=True))
