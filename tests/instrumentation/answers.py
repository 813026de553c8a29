"""Scripts for `sse_server` that respond in the four protocols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.sse_server import Answer, Request, Script

METRICS = {"queue_time_ms": 1.5, "time_to_first_token_ms": 20.25, "generation_time_ms": 40.0}
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
WORDS = tuple(f"word{number} " for number in range(5))

_CHUNK = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}


def delta(content: str | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """Make one chunk of a chat stream."""
    given = more if content is None else {"content": content, **more}
    return {**_CHUNK, "choices": [{"index": 0, "delta": given, "finish_reason": finish}]}


def usage_chunk(**more: Any) -> dict[str, Any]:
    """Make the chunk that ends a chat stream whose usage was requested."""
    return {**_CHUNK, "choices": [], "usage": USAGE, **more}


def asks_usage(request: Request) -> bool:
    """Return whether a request includes `include_usage`."""
    return bool((request.body.get("stream_options") or {}).get("include_usage"))


def chat(
    words: Sequence[str] = WORDS,
    *,
    head_s: float = 0.0,
    role_s: float = 0.0,
    first_s: float = 0.0,
    gap_s: float = 0.0,
    metrics: Any = METRICS,
    finish: str | None = "stop",
    headers: Mapping[str, str] | None = None,
) -> Script:
    """Respond to a chat request as vLLM does: head, role chunk, one chunk a word, finish, usage.

    Each `…_s` is a delay before its part; `finish=None` leaves the finish reason out.
    """

    def script(request: Request, answer: Answer) -> None:
        answer.wait(head_s)
        if not request.body.get("stream"):
            message = {"role": "assistant", "content": "".join(words)}
            choice = {"index": 0, "message": message, "finish_reason": finish}
            whole = {**_CHUNK, "object": "chat.completion", "choices": [choice], "usage": USAGE}
            answer.whole({**whole, "metrics": metrics}, headers=headers)
            return
        answer.head(headers=headers)
        answer.wait(role_s)
        answer.event(delta("", role="assistant"))
        answer.wait(first_s)
        for number, word in enumerate(words):
            answer.wait(gap_s if number else 0)
            answer.event(delta(word))
        if finish is not None:
            answer.event(delta(finish=finish))
        if asks_usage(request):
            answer.event(usage_chunk(metrics=metrics))
        answer.event("[DONE]")

    return script


def events(*chunks: object, done: bool = True) -> Script:
    """Respond with these events and nothing else."""

    def script(_request: Request, answer: Answer) -> None:
        answer.head()
        for chunk in chunks:
            answer.event(chunk)
        if done:
            answer.event("[DONE]")

    return script


def error(
    status: int,
    message: str = "no",
    headers: Mapping[str, str] | None = None,
    code: str | None = None,
) -> Script:
    """Respond with an HTTP error."""

    def script(_request: Request, answer: Answer) -> None:
        body = {"message": message, "type": "test_error", "code": code}
        if code is None:
            del body["code"]
        answer.whole({"error": body}, status=status, headers=headers)

    return script


def reset(_request: Request, answer: Answer) -> None:
    """Reset the connection without a word."""
    answer.reset()


def completion(request: Request, answer: Answer) -> None:
    """Respond to a request of the older text completions."""
    base = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "tiny"}

    def choice(text: str, finish: str | None = None) -> dict[str, Any]:
        return {"index": 0, "text": text, "finish_reason": finish, "logprobs": None}

    if not request.body.get("stream"):
        text = "".join(WORDS)
        answer.whole(
            {**base, "choices": [choice(text, "length")], "usage": USAGE, "metrics": METRICS}
        )
        return
    for word in WORDS:
        answer.event({**base, "choices": [choice(word)]})
    answer.event({**base, "choices": [choice("", "length")]})
    if asks_usage(request):
        answer.event({**base, "choices": [], "usage": USAGE, "metrics": METRICS})
    answer.event("[DONE]")


_RESPONSE_USAGE = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 1},
    "total_tokens": 15,
}


def response_object(status: str, **more: Any) -> dict[str, Any]:
    """Make the response object of the Responses API."""
    part = {"type": "output_text", "text": "".join(WORDS), "annotations": []}
    message = {
        "id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
        "content": [part],
    }  # fmt: skip
    return {
        "id": "resp_1", "object": "response", "created_at": 1.0, "model": "tiny",
        "status": status, "output": [message] if status == "completed" else [],
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "error": None,
        "incomplete_details": None, "usage": None, **more,
    }  # fmt: skip


def responses(request: Request, answer: Answer) -> None:
    """Respond to a request of the Responses API: reasoning first, then text."""
    done = response_object("completed", usage=_RESPONSE_USAGE, metrics=METRICS)
    if not request.body.get("stream"):
        answer.whole(done)
        return
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    opened = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress"}
    part = {"type": "output_text", "text": "", "annotations": []}
    stream = [
        {"type": "response.created", "response": response_object("in_progress")},
        {"type": "response.in_progress", "response": response_object("in_progress")},
        {"type": "response.reasoning_text.delta", **place, "item_id": "rs_1", "delta": "hm"},
        {"type": "response.output_item.added", "output_index": 0,
         "item": {**opened, "content": []}},
        {"type": "response.content_part.added", **place, "part": part},
        *({"type": "response.output_text.delta", **place, "delta": word, "logprobs": []}
          for word in WORDS),
        {"type": "response.output_text.done", **place, "text": "".join(WORDS), "logprobs": []},
        {"type": "response.completed", "response": done},
    ]  # fmt: skip
    for number, event in enumerate(stream):
        answer.event({**event, "sequence_number": number}, name=str(event["type"]))


def messages(request: Request, answer: Answer) -> None:
    """Respond to a request of Anthropic's Messages API: thinking first, then text."""
    usage = {
        "input_tokens": 4, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 1,
        "output_tokens": 1,
    }  # fmt: skip
    message = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "tiny", "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    if not request.body.get("stream"):
        text = [{"type": "text", "text": "".join(WORDS)}]
        whole = {**message, "content": text, "stop_reason": "end_turn"}
        answer.whole({**whole, "usage": {**usage, "output_tokens": 5}})
        return

    def block(number: int, kind: str, key: str) -> dict[str, Any]:
        started = {"type": kind, key: "", **({"signature": ""} if kind == "thinking" else {})}
        return {"type": "content_block_start", "index": number, "content_block": started}

    def piece(number: int, **content: str) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": number, "delta": content}

    stream: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "ping"},
        block(0, "thinking", "thinking"),
        piece(0, type="thinking_delta", thinking="hm"),
        {"type": "content_block_stop", "index": 0},
        block(1, "text", "text"),
        *(piece(1, type="text_delta", text=word) for word in WORDS),
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None},
         "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]  # fmt: skip
    for event in stream:
        answer.event(event, name=event["type"])
