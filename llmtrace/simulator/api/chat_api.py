"""Read and write /v1/chat/completions and /v1/completions in vLLM's format.

Key sets follow what vLLM 0.32 sends, plus `system_fingerprint` in every chunk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from llmtrace.simulator.api import request_body
from llmtrace.simulator.api.fault_header import EngineFailedError
from llmtrace.simulator.api.wire_format import (
    DONE,
    Answer,
    Dialect,
    Json,
    Reply,
    call_id,
    inband,
    openai_error,
    openai_refusal,
    parts,
    same_part,
    sse,
)
from llmtrace.simulator.engine.scheduler import Figures
from llmtrace.simulator.engine.text import Piece


def _read_chat(body: request_body.Body) -> request_body.ParsedRequest:
    prompt = request_body.messages_text(body, "messages")
    return request_body.read_request(body, prompt, ("max_completion_tokens", "max_tokens"))


def _read_completion(body: request_body.Body) -> request_body.ParsedRequest:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise request_body.RejectedError(400, "prompt must be one string", "prompt")
    return request_body.read_request(body, request_body.text_of(prompt), ("max_tokens",))


async def _stream_chat(reply: Reply, answer: Answer) -> AsyncIterator[bytes]:
    """Tell a chat: the role with the first token, a chunk a token, usage with figures, done."""
    figures = None
    before: Piece | None = None
    try:
        async for piece, token in answer:
            figures = token.figures
            choice: Json = {"index": 0, "delta": _delta(reply, before, piece), "logprobs": None}
            choice["finish_reason"] = reply.finish if figures else None
            if figures:
                choice["stop_reason"] = None
            choice["token_ids"] = None
            chunk = sse(_chunk(reply, choice, token.number + 1))
            yield _role_chunk(reply) + chunk if before is None else chunk
            before = piece
    except EngineFailedError as failed:
        yield sse(openai_error(str(failed), 500))
    if figures and reply.ask.include_usage:
        yield sse(_usage_chunk(reply, "chat.completion.chunk", figures))
    yield DONE


async def _stream_completion(reply: Reply, answer: Answer) -> AsyncIterator[bytes]:
    figures = None
    try:
        async for piece, token in answer:
            figures = token.figures
            choice: Json = {
                "index": 0,
                "text": piece.text,
                "logprobs": None,
                "finish_reason": reply.finish if figures else None,
                "stop_reason": None,
                "prompt_token_ids": None,
                "token_ids": None,
            }
            yield sse(_chunk(reply, choice, token.number + 1, "text_completion"))
    except EngineFailedError as failed:
        yield sse(openai_error(str(failed), 500))
    if figures and reply.ask.include_usage:
        yield sse(_usage_chunk(reply, "text_completion", figures))
    yield DONE


def _whole_chat(reply: Reply, figures: Figures) -> Json:
    grouped = parts(reply.pieces)
    calls = [
        {
            "id": call_id(reply, piece),
            "type": "function",
            "function": {"name": reply.ask.tool, "arguments": text},
        }
        for piece, text in grouped
        if piece.kind == "tool"
    ]
    message: Json = {
        "role": "assistant",
        "content": _joined(grouped, "text"),
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning_content": _joined(grouped, "reasoning"),
    }
    if calls:
        message["tool_calls"] = calls
    return _whole(reply, "chat.completion", {"message": message}, figures)


def _whole_completion(reply: Reply, figures: Figures) -> Json:
    text = "".join(piece.text for piece in reply.pieces)
    return _whole(reply, "text_completion", {"text": text}, figures)


def _whole(reply: Reply, kind: str, said: Json, figures: Figures) -> Json:
    choice: Json = {"index": 0, **said, "logprobs": None, "finish_reason": reply.finish}
    choice |= {"stop_reason": None, "token_ids": None}
    return {
        "id": reply.reply_id,
        "object": kind,
        "created": reply.created,
        "model": reply.model,
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": reply.fingerprint,
        "usage": {**_usage(reply, figures), "completion_tokens_details": None},
        "metrics": {**inband(figures), "speculative_decoding": None},
    }


def _joined(grouped: list[tuple[Piece, str]], kind: str) -> str | None:
    return "".join(text for piece, text in grouped if piece.kind == kind) or None


def _delta(reply: Reply, before: Piece | None, piece: Piece) -> Json:
    if piece.kind == "text":
        return {"content": piece.text}
    if piece.kind == "reasoning":
        return {"reasoning_content": piece.text}
    call: Json = {"index": piece.call, "function": {"arguments": piece.text}}
    if not same_part(before, piece):
        call["id"] = call_id(reply, piece)
        call["type"] = "function"
        call["function"] = {"name": reply.ask.tool, "arguments": piece.text}
    return {"tool_calls": [call]}


def _role_chunk(reply: Reply) -> bytes:
    delta = {"role": "assistant", "content": ""}
    choice: Json = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    return sse(_chunk(reply, choice, 0) | {"prompt_token_ids": None, "prompt_text": None})


def _chunk(reply: Reply, choice: Json, produced: int, kind: str = "chat.completion.chunk") -> Json:
    chunk = _head(reply, kind) | {"choices": [choice]}
    if reply.ask.continuous_usage and reply.ask.include_usage:
        chunk["usage"] = {
            "prompt_tokens": reply.prompt_tokens,
            "total_tokens": reply.prompt_tokens + produced,
            "completion_tokens": produced,
            "completion_tokens_details": None,
        }
    return chunk


def _usage_chunk(reply: Reply, kind: str, figures: Figures) -> Json:
    head = _head(reply, kind)
    return head | {"choices": [], "usage": _usage(reply, figures), "metrics": inband(figures)}


def _head(reply: Reply, kind: str) -> Json:
    return {
        "id": reply.reply_id,
        "object": kind,
        "created": reply.created,
        "model": reply.model,
        "system_fingerprint": reply.fingerprint,
    }


def _usage(reply: Reply, figures: Figures) -> Json:
    produced = figures.request.output_tokens
    return {
        "prompt_tokens": reply.prompt_tokens,
        "total_tokens": reply.prompt_tokens + produced,
        "completion_tokens": produced,
        "prompt_tokens_details": {
            "cached_tokens": figures.cached_tokens,
            "created_cache_tokens": None,
        },
    }


CHAT = Dialect(
    path="/v1/chat/completions",
    id_prefix="chatcmpl-",
    read=_read_chat,
    stream=_stream_chat,
    whole=_whole_chat,
    refusal=openai_refusal,
)
COMPLETIONS = Dialect(
    path="/v1/completions",
    id_prefix="cmpl-",
    read=_read_completion,
    stream=_stream_completion,
    whole=_whole_completion,
    refusal=openai_refusal,
)
