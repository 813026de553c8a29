"""Classify the chunks of the SDKs' protocols, and read their usage and engine timings.

One small function a dialect. Each looks at one chunk (or at a unary response), notes usage, finish
reason and the engine's timings of the usage chunk on the recording, and returns what kind of
content it saw.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from llmtrace.core import engine_figures
from llmtrace.core.attempt_clock import LiveAttempt
from llmtrace.core.recording import Recording
from llmtrace.core.request_clock import HIDDEN, NOTHING, OTHER, REASONING, TEXT, TOOL_CALL
from llmtrace.core.stages import EngineFigures, Reported
from llmtrace.instrumentation.headers import propagation
from llmtrace.instrumentation.llm_sdks.attribute_view import viewed

_EAGER_NS: Final = 1_000_000
# Headers and first byte this close together came in one piece: no engine responds that fast.
_TOGETHER_NS: Final = 1_000_000
# A bare vLLM sends its headers once the prompt is tokenised.
_PROMPT_NS: Final = 100_000_000
_MIN_GAPS: Final = 4
_MAX_STRING: Final = 512
_NAME: Final = re.compile(r"[\w.:/-]{1,128}")


def chat(recording: Recording, chunk: Any) -> int:
    """Classify an OpenAI `chat.completion.chunk`."""
    if recording.first_event is None:
        _identity(recording, chunk)
    choices = chunk.choices
    if chunk.usage is not None:
        _usage(recording, chunk)
        if not choices and recording.usage_hidden:
            return HIDDEN
    kind = NOTHING
    for choice in choices or ():  # some gateways send null
        if choice.finish_reason:
            recording.info["finish_reason"] = string(choice.finish_reason)
            _identity(recording, chunk)
            _reports(recording, chunk)
        delta = choice.delta
        if delta is None:  # as some gateways send
            continue
        if delta.content:
            return TEXT
        kind = _rare(delta) or kind
    return kind


def _rare(delta: Any) -> int:
    """Classify a chat delta that has no text. A tool call without arguments yet is no content."""
    for call in delta.tool_calls if isinstance(delta.tool_calls, list) else ():
        function = viewed(getattr(call, "function", None) or getattr(call, "custom", None))
        if getattr(function, "arguments", None) or getattr(function, "input", None):
            return TOOL_CALL
    extra = delta.model_extra
    if extra:
        if extra.get("reasoning_content") or extra.get("reasoning"):
            return REASONING
        if extra.get("audio"):
            return OTHER
    called = getattr(delta.function_call, "arguments", None)
    return OTHER if delta.refusal or called else NOTHING


def completions(recording: Recording, chunk: Any) -> int:
    """Classify a chunk of OpenAI's older `text_completion`."""
    choices = chunk.choices
    if chunk.usage is not None:
        _usage(recording, chunk)
        if not choices and recording.usage_hidden:
            return HIDDEN
    if recording.first_event is None:
        _identity(recording, chunk)
    kind = NOTHING
    for choice in choices or ():  # some gateways send null
        if choice.finish_reason:
            recording.info["finish_reason"] = string(choice.finish_reason)
            _identity(recording, chunk)
            _reports(recording, chunk)
        if choice.text:
            kind = TEXT
    return kind


RESPONSE_DELTAS: Final[Mapping[str, int]] = {
    "response.output_text.delta": TEXT,
    "response.refusal.delta": OTHER,
    "response.reasoning_text.delta": REASONING,
    "response.reasoning_summary_text.delta": REASONING,
    "response.function_call_arguments.delta": TOOL_CALL,
    "response.custom_tool_call_input.delta": TOOL_CALL,
    "response.mcp_call_arguments.delta": TOOL_CALL,
    "response.code_interpreter_call_code.delta": TOOL_CALL,
    "response.audio.delta": OTHER,
}


def responses(recording: Recording, event: Any) -> int:
    """Classify an event of OpenAI's Responses stream."""
    kind = RESPONSE_DELTAS.get(event.type)
    if kind is not None:
        return kind if event.delta else NOTHING
    answer = getattr(event, "response", None)
    if answer is not None:
        _identity(recording, answer)
        if event.type in {"response.completed", "response.incomplete", "response.failed"}:
            answer_responses(recording, answer)
    elif event.type == "error":
        recording.failure = ("error", _text(event.code))
    return NOTHING


def messages(recording: Recording, event: Any) -> int:
    """Classify an event of Anthropic's Messages stream."""
    kind = event.type
    if kind == "content_block_delta":
        delta = event.delta
        if delta.type == "text_delta":
            return TEXT if delta.text else NOTHING
        if delta.type == "input_json_delta":
            return TOOL_CALL if delta.partial_json else NOTHING
        if delta.type == "thinking_delta":
            return REASONING if delta.thinking else NOTHING
        return NOTHING
    if kind == "message_start":
        message = event.message
        recording.info["response_id"] = string(message.id)
        recording.info["response_model"] = string(getattr(message, "model", None))
        _anthropic_usage(recording, message.usage)
    elif kind == "message_delta":
        if event.delta.stop_reason:
            recording.info["finish_reason"] = string(event.delta.stop_reason)
        _anthropic_usage(recording, event.usage)
    elif kind == "error":
        recording.failure = ("error", _text(getattr(event, "error", None)))
    return NOTHING


def anything(_recording: Recording, chunk: Any) -> int:
    """Classify a chunk of an unknown iterator: any chunk that is not empty is text."""
    if isinstance(chunk, str | bytes | bytearray):
        return TEXT if chunk else NOTHING
    return NOTHING if chunk is None else OTHER


def nothing(_recording: Recording, _chunk: Any) -> int:
    """Classify a piece of a unary response as nothing: only the whole can be read."""
    return NOTHING


def answer_chat(recording: Recording, answer: Any) -> None:
    """Note what a unary chat or text completion reports."""
    _identity(recording, answer)
    if answer.choices:
        recording.info["finish_reason"] = string(answer.choices[0].finish_reason)
        message = getattr(answer.choices[0], "message", None)
        calls = getattr(message, "tool_calls", None)
        if calls:
            recording.info["tool_calls"] = len(calls)
    _usage(recording, answer)


def answer_responses(recording: Recording, answer: Any) -> None:
    """Note what a unary response of the Responses API reports."""
    _identity(recording, answer)
    incomplete = getattr(answer, "incomplete_details", None)
    reason = getattr(incomplete, "reason", None)
    recording.info["finish_reason"] = string(reason or answer.status)
    error = getattr(answer, "error", None)
    if answer.status == "failed":
        recording.failure = ("error", _text(getattr(error, "code", None)) or "response.failed")
    usage = answer.usage
    if usage is not None:
        recording.info["prompt_tokens"] = count(usage.input_tokens)
        recording.info["output_tokens"] = count(usage.output_tokens)
        details = getattr(usage, "input_tokens_details", None)
        recording.info["cached_tokens"] = count(getattr(details, "cached_tokens", None))
        details = getattr(usage, "output_tokens_details", None)
        recording.info["reasoning_tokens"] = count(getattr(details, "reasoning_tokens", None))
    _reports(recording, answer)


def answer_messages(recording: Recording, answer: Any) -> None:
    """Note what a unary Anthropic message reports."""
    recording.info["response_id"] = string(answer.id)
    recording.info["response_model"] = string(getattr(answer, "model", None))
    recording.info["finish_reason"] = string(answer.stop_reason)
    _anthropic_usage(recording, answer.usage)


def _reports(recording: Recording, answer: Any) -> None:
    """Note what the engine or gateway reports of the request inside its answer."""
    extra = getattr(answer, "model_extra", None)
    if extra:
        for report in engine_figures.IN_ANSWERS:
            if (value := extra.get(report.key)) is not None:
                _noted(recording, report, value)
    # SGLang's report is in its choice.
    choices = getattr(answer, "choices", None)
    if choices and (extra := getattr(choices[0], "model_extra", None)):
        report = engine_figures.SGLANG_ANSWER
        if (value := extra.get(report.key)) is not None:
            _noted(recording, report, value)


def _noted(recording: Recording, report: engine_figures.Report, value: Any) -> None:
    reading = engine_figures.read_answer(report, value)
    if reading is None:
        return
    recording.add_engine_figures(reading.figures)
    if reading.gateway is not None:
        propagation.inside(recording, report.name, reading.gateway.ns)
    for field, number in reading.counts.items():
        if recording.info.get(field) is None:
            recording.info[field] = number


def _identity(recording: Recording, answer: Any) -> None:
    """Note the response's id, and its model and provider where the response names them."""
    recording.info["response_id"] = string(getattr(answer, "id", None))
    recording.info["response_model"] = string(getattr(answer, "model", None))
    mark = getattr(answer, "system_fingerprint", None)
    if not isinstance(mark, str):
        return
    if mark.startswith("vllm-"):
        recording.info["provider"] = "vllm"
        recording.attributes["llmtrace.engine.version"] = mark.removeprefix("vllm-")[:64]
        _bound(recording)
    elif mark.startswith("llmtrace-sim"):
        recording.info["provider"] = "llmtrace-sim"


def _bound(recording: Recording) -> None:
    """Bound the engine's wait by the client's clock where engine timings are not reported.

    A bare vLLM sends its headers before it schedules the request and its first byte with the first
    token. What lies between is queue and prefill together, and goes to `prefill`, so marked.
    """
    attempt = recording.attempts[-1] if recording.attempts else None
    if not recording.no_gateway_seen or attempt is None or attempt.answered is None:
        return
    if recording.first_byte is None or _late(recording) > _EAGER_NS:
        return  # no read was under way: the time of the first byte is not known
    wait_ns = recording.first_byte - attempt.answered
    if wait_ns >= _TOGETHER_NS and not _held_back(recording, attempt, wait_ns):
        wait = Reported(wait_ns, "client_bound")
        recording.add_engine_figures(EngineFigures(prefill=wait))


def _late(recording: Recording) -> int:
    """Return a lower bound of the consumer time before the read of the first byte."""
    if recording.ttft is None or recording.first_event is None:
        return recording.consumer_time
    # What it did between the role chunk and the content, which came together, was not late.
    between = recording.start + recording.ttft - recording.first_event
    return recording.held_before - between


def _held_back(recording: Recording, attempt: LiveAttempt, wait_ns: int) -> bool:
    """Return whether a proxy that no header shows may have delayed headers or chunks.

    HAProxy does, by default: up to 200 ms, to fill a packet. Few chunks do not show it.
    """
    if attempt.send_started is not None and attempt.send is not None:
        round_trip = 0 if attempt.rtt is None else attempt.rtt.ns
        sent = attempt.send_started + attempt.send
        headers_ns = (attempt.answered or sent) - sent - round_trip
        if headers_ns > max(_PROMPT_NS, wait_ns):
            return True
    gaps = sum(recording.gap_counts)
    return gaps < _MIN_GAPS or 2 * recording.gap_counts[0] > gaps


def _usage(recording: Recording, answer: Any) -> None:
    usage = answer.usage
    if usage is not None:
        info = recording.info
        info["prompt_tokens"] = count(getattr(usage, "prompt_tokens", None))
        info["output_tokens"] = count(getattr(usage, "completion_tokens", None))
        details = getattr(usage, "prompt_tokens_details", None)
        info["cached_tokens"] = count(getattr(details, "cached_tokens", None))
        details = getattr(usage, "completion_tokens_details", None)
        info["reasoning_tokens"] = count(getattr(details, "reasoning_tokens", None))
        if recording.info.get("response_id") is None:
            _identity(recording, answer)
    extra = getattr(answer, "model_extra", None)
    if extra and extra.get(engine_figures.VLLM_ANSWER.key) is not None:
        _identity(recording, answer)  # vLLM names itself in the last chunk only
    _reports(recording, answer)


def _anthropic_usage(recording: Recording, usage: Any) -> None:
    if usage is None:
        return
    info = recording.info
    cached = count(getattr(usage, "cache_read_input_tokens", None))
    fresh = count(getattr(usage, "input_tokens", None))
    if fresh is not None:
        # Anthropic counts what came from its cache separately from the rest of the prompt.
        made = count(getattr(usage, "cache_creation_input_tokens", None))
        info["prompt_tokens"] = fresh + (cached or 0) + (made or 0)
        info["cache_write_tokens"] = made
    if cached is not None:
        info["cached_tokens"] = cached
    output = count(getattr(usage, "output_tokens", None))
    if output is not None:
        info["output_tokens"] = output


def count(value: Any) -> int | None:
    """Return a count of tokens as it is; `None` if it cannot be one."""
    # `True` is no count, and what else is derived from a number comes from no server.
    return value if type(value) is int and 0 <= value < 1 << 53 else None


def string(value: Any) -> str | None:
    """Return a string as it is, cut to a bound; `None` if it is empty or of another type."""
    return value[:_MAX_STRING] or None if isinstance(value, str) else None


def _text(value: Any) -> str | None:
    """Name an error by its type or code. Prose is no name, and may quote the prompt."""
    named = getattr(value, "type", value)
    return named if isinstance(named, str) and _NAME.fullmatch(named) else None
