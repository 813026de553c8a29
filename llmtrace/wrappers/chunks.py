"""What does a chunk carry, and what does it tell of its request?

One small function a dialect. Each looks at one chunk (or at a whole answer), notes usage, finish
reason and the engine's in-band figures on the recording, and returns what kind of content it saw.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from llmtrace.record import HIDDEN, NOTHING, OTHER, REASONING, TEXT, TOOL_CALL, Recording
from llmtrace.stages import EngineFigures, Reported

_NS_PER_MS: Final = 1_000_000
_EAGER_NS: Final = 1_000_000
# A duration an engine reports is believed up to a day; beyond that it is garbage.
_LONGEST_MS: Final = 86_400_000.0
_LONGEST_STRING: Final = 512


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
    for choice in choices:
        if choice.finish_reason is not None:
            recording.info["finish_reason"] = _string(choice.finish_reason)
            _identity(recording, chunk)
        delta = choice.delta
        try:
            if delta.content:
                return TEXT
        except AttributeError:
            if delta is None:  # as some gateways send
                continue
            raise
        kind = TOOL_CALL if delta.tool_calls else _rare(delta) or kind
    return kind


def _rare(delta: Any) -> int:
    """Classify a chat delta that has neither text nor tool calls."""
    extra = delta.model_extra or {}
    if extra.get("reasoning_content") or extra.get("reasoning"):
        return REASONING
    if delta.refusal or extra.get("audio") or delta.function_call:
        return OTHER
    return NOTHING


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
    for choice in choices:
        if choice.finish_reason is not None:
            recording.info["finish_reason"] = _string(choice.finish_reason)
        if choice.text:
            kind = TEXT
    return kind


_RESPONSES: Final[Mapping[str, int]] = {
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
    kind = _RESPONSES.get(event.type)
    if kind is not None:
        return kind if event.delta else NOTHING
    answer = getattr(event, "response", None)
    if answer is not None:
        _identity(recording, answer)
        if event.type in {"response.completed", "response.incomplete", "response.failed"}:
            answer_responses(recording, answer)
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
        recording.info["response_id"] = _string(message.id)
        _anthropic_usage(recording, message.usage)
    elif kind == "message_delta":
        if event.delta.stop_reason is not None:
            recording.info["finish_reason"] = _string(event.delta.stop_reason)
        _anthropic_usage(recording, event.usage)
    elif kind == "error":
        recording.failure = ("error", _text(getattr(event, "error", None)))
    return NOTHING


def anything(_recording: Recording, chunk: Any) -> int:
    """Classify a chunk of an iterator llmtrace knows nothing about: what is not empty counts."""
    if isinstance(chunk, str | bytes | bytearray):
        return TEXT if chunk else NOTHING
    return NOTHING if chunk is None else OTHER


def nothing(_recording: Recording, _chunk: Any) -> int:
    """Classify a piece of an answer that is no stream: its parts say nothing by themselves."""
    return NOTHING


def raw_sse(_recording: Recording, data: bytes) -> int:
    """Classify a piece of an event stream nobody has parsed: comments alone keep it alive."""
    return OTHER if b"data:" in data else NOTHING


def answer_chat(recording: Recording, answer: Any) -> None:
    """Note what a whole chat or text completion tells."""
    _identity(recording, answer)
    if answer.choices:
        recording.info["finish_reason"] = _string(answer.choices[0].finish_reason)
        message = getattr(answer.choices[0], "message", None)
        calls = getattr(message, "tool_calls", None)
        if calls:
            recording.info["tool_calls"] = len(calls)
    _usage(recording, answer)


def answer_responses(recording: Recording, answer: Any) -> None:
    """Note what a whole response of the Responses API tells."""
    _identity(recording, answer)
    incomplete = getattr(answer, "incomplete_details", None)
    reason = getattr(incomplete, "reason", None)
    recording.info["finish_reason"] = _string(reason or answer.status)
    error = getattr(answer, "error", None)
    if answer.status == "failed":
        recording.failure = ("error", _text(getattr(error, "code", None)) or "response.failed")
    usage = answer.usage
    if usage is not None:
        recording.info["prompt_tokens"] = _count(usage.input_tokens)
        recording.info["output_tokens"] = _count(usage.output_tokens)
        details = getattr(usage, "input_tokens_details", None)
        recording.info["cached_tokens"] = _count(getattr(details, "cached_tokens", None))
    inband(recording, _extra(answer, "metrics"))


def answer_messages(recording: Recording, answer: Any) -> None:
    """Note what a whole Anthropic message tells."""
    recording.info["response_id"] = _string(answer.id)
    recording.info["finish_reason"] = _string(answer.stop_reason)
    _anthropic_usage(recording, answer.usage)


def inband(recording: Recording, metrics: Any) -> None:
    """Read vLLM's per-request metrics. Its `time_to_first_token_ms` is the prefill, not TTFT."""
    if not isinstance(metrics, Mapping):
        return
    figures = EngineFigures(
        queue=_reported(metrics.get("queue_time_ms")),
        prefill=_reported(metrics.get("time_to_first_token_ms")),
        decode=_reported(metrics.get("generation_time_ms")),
    )
    recording.engine.append(figures)
    speculative = metrics.get("speculative_decoding")
    if isinstance(speculative, Mapping):
        recording.info["spec_drafted"] = _count(speculative.get("num_draft_tokens"))
        recording.info["spec_accepted"] = _count(speculative.get("num_accepted_draft_tokens"))


def _reported(ms: Any) -> Reported | None:
    """Read a duration in milliseconds; anything that cannot be one is unknown."""
    if isinstance(ms, bool) or not isinstance(ms, int | float) or not 0 <= ms < _LONGEST_MS:
        return None
    return Reported(round(ms * _NS_PER_MS), "engine_inband")


def _identity(recording: Recording, answer: Any) -> None:
    """Note the answer's id, and who made it where the answer says so."""
    recording.info["response_id"] = _string(getattr(answer, "id", None))
    mark = getattr(answer, "system_fingerprint", None) or _extra(answer, "system_fingerprint")
    if not isinstance(mark, str):
        return
    if mark.startswith("vllm-"):
        recording.info["provider"] = "vllm"
        recording.attributes["llmtrace.engine.version"] = mark.removeprefix("vllm-")[:64]
        _bound(recording)
    elif mark.startswith("llmtrace-sim"):
        recording.info["provider"] = "llmtrace-sim"


def _bound(recording: Recording) -> None:
    """Bound the engine's wait by the client's own clock, for want of the engine's figures.

    A bare vLLM sends its headers before it schedules the request and its first byte with the first
    token. What lies between is queue and prefill together, and goes to `prefill`, so marked.
    """
    answered = recording.attempts[-1].answered if recording.attempts else None
    if not recording.bare or answered is None or recording.first_byte is None:
        return
    if recording.held > _EAGER_NS:
        return  # nobody was reading: when the first byte came is not known
    wait = Reported(max(0, recording.first_byte - answered), "client_bound")
    recording.engine.append(EngineFigures(prefill=wait))


def _usage(recording: Recording, answer: Any) -> None:
    usage = answer.usage
    if usage is not None:
        info = recording.info
        info["prompt_tokens"] = _count(getattr(usage, "prompt_tokens", None))
        info["output_tokens"] = _count(getattr(usage, "completion_tokens", None))
        details = getattr(usage, "prompt_tokens_details", None)
        info["cached_tokens"] = _count(getattr(details, "cached_tokens", None))
        if recording.info.get("response_id") is None:
            _identity(recording, answer)
    metrics = _extra(answer, "metrics")
    if metrics is not None:
        # vLLM names itself in the last chunk only.
        _identity(recording, answer)
        inband(recording, metrics)


def _anthropic_usage(recording: Recording, usage: Any) -> None:
    if usage is None:
        return
    info = recording.info
    cached = _count(getattr(usage, "cache_read_input_tokens", None))
    fresh = _count(getattr(usage, "input_tokens", None))
    if fresh is not None:
        # Anthropic counts what came from its cache apart from the rest of the prompt.
        made = _count(getattr(usage, "cache_creation_input_tokens", None))
        info["prompt_tokens"] = fresh + (cached or 0) + (made or 0)
    if cached is not None:
        info["cached_tokens"] = cached
    output = _count(getattr(usage, "output_tokens", None))
    if output is not None:
        info["output_tokens"] = output


def _extra(answer: Any, key: str) -> Any:
    extra = getattr(answer, "model_extra", None)
    return extra.get(key) if extra else None


def _count(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 <= value < 1 << 53 else None


def _string(value: Any) -> str | None:
    """Take a string as it is, within bounds; a server may send anything for one."""
    return value[:_LONGEST_STRING] if isinstance(value, str) else None


def _text(value: Any) -> str | None:
    """Name an error by its type or code, in few characters."""
    named = getattr(value, "type", value)
    return named[:128] if isinstance(named, str) else None
