"""The fields of a row, a line each, from which every form of a row follows.

A field that is declared here is in `Row`, in its JSON, in Parquet and data frames, on the span, in
the store, in the columns of an analysis and in the documents; there is no second list of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final, Literal, get_args

from llmtrace.core.stages import Network, Timeline
from llmtrace.core.wire_names import wired, wired_fields

Outcome = Literal["success", "error", "cancelled", "truncated", "timeout"]
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
# Other systems' words are read as well.
OUTCOME_WORDS: Final[Mapping[str, Outcome]] = {
    **{name: name for name in OUTCOMES},
    "ok": "success", "succeeded": "success", "successful": "success", "completed": "success",
    "failed": "error", "failure": "error", "fail": "error", "exception": "error",
    "canceled": "cancelled", "aborted": "cancelled", "timed_out": "timeout",
}  # fmt: skip
# A cancelled request did not fail: its client ended it.
FAILED: Final[tuple[Outcome, ...]] = ("error", "truncated", "timeout")
_ONE_OF_OUTCOMES: Final = f"one of {', '.join(OUTCOMES)}"
# How far parts may exceed the whole: rounding, clock ticks, work after the client has left.
NEARLY: Final = 1.1
GRANULARITY_S: Final = 0.05
_STATUS_SUCCESS, _STATUS_ERROR = 200, 400  # and above
_CLIENT_LEFT: Final = 499  # nginx's status for it


def outcome_of_status(status: float | None) -> Outcome | None:
    """Return the outcome that an HTTP status means; `None` = none, as below 200."""
    if status is None or not status >= _STATUS_SUCCESS:
        return None
    if status == _CLIENT_LEFT:
        return "cancelled"
    return "error" if status >= _STATUS_ERROR else "success"


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
    operation: str = wired(
        "gen_ai.operation.name", "the operation: `chat`, `text_completion`, …", "chat"
    )
    agent: str | None = wired("gen_ai.agent.name", "the agent's name; on a turn", in_columns=False)
    provider: str | None = wired("gen_ai.provider.name", "the provider that serves the model")
    model: str | None = wired("gen_ai.request.model", "the requested model")
    response_model: str | None = wired("gen_ai.response.model", "the model named in the response")
    max_tokens: int | None = wired("gen_ai.request.max_tokens", "limit on output tokens")
    response_id: str | None = wired("gen_ai.response.id", "the response's id", in_columns=False)
    prompt_tokens: int | None = wired("gen_ai.usage.input_tokens", "prompt tokens")
    cached_tokens: int | None = wired(
        "gen_ai.usage.cache_read.input_tokens", "prompt tokens from cache"
    )
    cache_write_tokens: int | None = wired(
        "gen_ai.usage.cache_write.input_tokens", "prompt tokens written to the provider's cache"
    )
    output_tokens: int | None = wired(
        "gen_ai.usage.output_tokens", "output tokens, with reasoning"
    )
    reasoning_tokens: int | None = wired(
        "gen_ai.usage.reasoning.output_tokens", "output tokens of reasoning"
    )
    error_type: str | None = wired("error.type", "the provider's code, else the exception's class")
    http_status: int | None = wired("http.response.status_code", "HTTP status of the last attempt")
    version: str | None = wired("service.version", "the application's version")
    outcome: Outcome = wired("llmtrace.outcome", _ONE_OF_OUTCOMES, "success")  # noqa: RUF009 - as `field`
    finish_reason: str | None = None
    request_id: str | None = wired("llmtrace.request_id", "the `x-request-id` that was sent")
    route: str | None = wired("llmtrace.route", "the application's feature that made the request")
    tenant: str | None = wired("llmtrace.tenant", "the customer or team it was made for")
    region: str | None = wired("llmtrace.region", "the region in which the application runs")
    replica: str | None = wired("llmtrace.replica", "the engine instance that answered")
    gateway: str | None = wired("llmtrace.gateway", "the gateway's name")
    client: str | None = wired("llmtrace.client", "the client library and its version")
    server: str | None = None
    cache_hit: bool | None = wired("llmtrace.cache_hit", "whether a response cache answered it")
    attempts: int = wired("llmtrace.attempts", "HTTP attempts, retries included", 1)
    retried_status: int | None = wired("llmtrace.retried_status", "last status that was retried")
    chunks: int = wired("llmtrace.chunks", "chunks with content", 0)
    burst_chunks: int | None = wired(
        "llmtrace.burst_chunks",
        "chunks after the first that were there at once; where many were, something gathers them",
    )
    preemptions: int | None = wired("llmtrace.preemptions", "how often it was preempted")
    spec_drafted: int | None = wired("llmtrace.spec_drafted", "draft tokens that were proposed")
    spec_accepted: int | None = wired("llmtrace.spec_accepted", "draft tokens that were accepted")
    kv_connector: str | None = wired(
        "llmtrace.kv_connector",
        "the engine's KV connector: `queue` may contain the transfer of KV blocks",
    )
    inference_calls: int | None = wired("llmtrace.inference_calls", "model requests; on a turn")
    tool_calls: int | None = wired("llmtrace.tool_calls", "tool calls; on a turn")
    tool_wall_s: float | None = wired("llmtrace.tool_wall", "seconds in which a tool call ran")
    tool_serial_s: float | None = wired("llmtrace.tool_serial", "total seconds of all tool calls")
    tool_critical_path_s: float | None = wired(
        "llmtrace.tool_critical_path", "seconds of the longest chain of dependent tool calls"
    )
    tool_serial_loss_s: float | None = wired(
        "llmtrace.tool_serial_loss",
        "seconds that independent tool calls lost by running one after another",
    )
    nested: bool = False
    weight: float = wired(
        "llmtrace.weight", "how many requests this row stands for, where rows are sampled", 1.0
    )
    max_gap_ns: int | None = wired("llmtrace.max_gap", "longest wait for a chunk after the first")
    gaps: str | None = wired(
        "llmtrace.gaps",
        "waits over time, in µs: the length of up to 32 equal slots from the first content on,"
        " then the longest wait that ended in each (`-`: none did)",
        in_columns=False,
    )
    answered_ns: int | None = wired("llmtrace.answered", "start to the response headers")
    first_byte_ns: int | None = wired(
        "llmtrace.first_byte", "start to the first byte of the response body"
    )
    first_event_ns: int | None = wired(
        "llmtrace.first_event", "start to the first event of any kind", in_columns=False
    )
    first_reasoning_ns: int | None = wired(
        "llmtrace.first_reasoning", "start to the first reasoning", in_columns=False
    )
    first_text_ns: int | None = wired(
        "llmtrace.first_text", "start to the first visible text", in_columns=False
    )
    first_tool_call_ns: int | None = wired(
        "llmtrace.first_tool_call", "start to the first chunk of a tool call", in_columns=False
    )
    last_content_ns: int | None = wired("llmtrace.last_content", "start to the last content")
    arrived_by_ns: int | None = wired(
        "llmtrace.arrived_by",
        "upper bound of start to the first content on this machine; only where that was earlier"
        " than it was read",
    )
    client_lag_ns: int | None = wired(
        "llmtrace.client_lag",
        "lower bound of the time for which data was on this machine and the client, busy with"
        " something else, did not read it",
    )


_MEASURED: Final = tuple(wired_fields(RowFields))
_OF_TIMELINE: Final = tuple(wired_fields(Timeline, seconds=True))
_TYPES: Final = {one.name: one.type for one in fields(Timeline)}

# Written as they are. Absent when unknown.
PLAIN: Final = tuple(line for line in _MEASURED if line.kind != "seconds")
WIRE_NAMES: Final = {line.field: line.name for line in PLAIN}
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
