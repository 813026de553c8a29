"""Read and write /v1/chat/completions and /v1/completions in vLLM's format.

Key sets follow what vLLM 0.32 sends, plus `system_fingerprint` in every chunk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial

from llmtrace.simulator.api import request_body
from llmtrace.simulator.api import wire_format as wire
from llmtrace.simulator.api.fault_header import EngineFailedError
from llmtrace.simulator.engine.scheduler import Figures, Token
from llmtrace.simulator.engine.text import Piece

_CHAT_CHUNK = "chat.completion.chunk"
_COMPLETION = "text_completion"
# Writes a token, given the piece before it and its own.
_Writer = Callable[[wire.Reply, Piece | None, Piece, Token], bytes]


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


async def _stream(
    reply: wire.Reply, answer: wire.Answer, *, kind: str, write: _Writer
) -> AsyncIterator[bytes]:
    """Stream a response: what `write` makes of each token, usage with figures, done."""
    figures, before = None, None
    try:
        async for piece, token in answer:
            figures = token.figures
            yield write(reply, before, piece, token)
            before = piece
    except EngineFailedError as failed:
        yield wire.sse(wire.openai_error(str(failed), 500))
    if figures and reply.ask.include_usage:
        usage, metrics = _usage(reply, figures), wire.inband(figures)
        yield wire.sse(_head(reply, kind) | {"choices": [], "usage": usage, "metrics": metrics})
    yield wire.DONE


def _chat_token(reply: wire.Reply, before: Piece | None, piece: Piece, token: Token) -> bytes:
    """Write a token of a chat; the first one comes with the role."""
    choice: wire.Json = {"index": 0, "delta": _delta(reply, before, piece), "logprobs": None}
    choice["finish_reason"] = reply.finish if token.figures else None
    if token.figures:
        choice["stop_reason"] = None
    choice["token_ids"] = None
    chunk = wire.sse(_chunk(reply, _CHAT_CHUNK, choice, token.number + 1))
    return _role_chunk(reply) + chunk if before is None else chunk


def _completion_token(
    reply: wire.Reply, before: Piece | None, piece: Piece, token: Token
) -> bytes:
    del before
    choice: wire.Json = {
        "index": 0,
        "text": piece.text,
        "logprobs": None,
        "finish_reason": reply.finish if token.figures else None,
        "stop_reason": None,
        "prompt_token_ids": None,
        "token_ids": None,
    }
    return wire.sse(_chunk(reply, _COMPLETION, choice, token.number + 1))


def _whole_chat(reply: wire.Reply, figures: Figures) -> wire.Json:
    grouped = wire.parts(reply.pieces)
    calls = [
        {
            "id": wire.call_id(reply, piece),
            "type": "function",
            "function": {"name": reply.ask.tool, "arguments": text},
        }
        for piece, text in grouped
        if piece.kind == "tool"
    ]
    message: wire.Json = {
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


def _whole_completion(reply: wire.Reply, figures: Figures) -> wire.Json:
    text = "".join(piece.text for piece in reply.pieces)
    return _whole(reply, _COMPLETION, {"text": text}, figures)


def _whole(reply: wire.Reply, kind: str, said: wire.Json, figures: Figures) -> wire.Json:
    choice: wire.Json = {"index": 0, **said, "logprobs": None, "finish_reason": reply.finish}
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
        "metrics": {**wire.inband(figures), "speculative_decoding": None},
    }


def _joined(grouped: list[tuple[Piece, str]], kind: str) -> str | None:
    return "".join(text for piece, text in grouped if piece.kind == kind) or None


def _delta(reply: wire.Reply, before: Piece | None, piece: Piece) -> wire.Json:
    if piece.kind == "text":
        return {"content": piece.text}
    if piece.kind == "reasoning":
        return {"reasoning_content": piece.text}
    call: wire.Json = {"index": piece.call, "function": {"arguments": piece.text}}
    if not wire.same_part(before, piece):
        call["id"] = wire.call_id(reply, piece)
        call["type"] = "function"
        call["function"] = {"name": reply.ask.tool, "arguments": piece.text}
    return {"tool_calls": [call]}


def _role_chunk(reply: wire.Reply) -> bytes:
    delta = {"role": "assistant", "content": ""}
    choice: wire.Json = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    chunk = _chunk(reply, _CHAT_CHUNK, choice, 0)
    return wire.sse(chunk | {"prompt_token_ids": None, "prompt_text": None})


def _chunk(reply: wire.Reply, kind: str, choice: wire.Json, produced: int) -> wire.Json:
    chunk = _head(reply, kind) | {"choices": [choice]}
    if reply.ask.continuous_usage and reply.ask.include_usage:
        chunk["usage"] = {
            "prompt_tokens": reply.prompt_tokens,
            "total_tokens": reply.prompt_tokens + produced,
            "completion_tokens": produced,
            "completion_tokens_details": None,
        }
    return chunk


def _head(reply: wire.Reply, kind: str) -> wire.Json:
    return {
        "id": reply.reply_id,
        "object": kind,
        "created": reply.created,
        "model": reply.model,
        "system_fingerprint": reply.fingerprint,
    }


def _usage(reply: wire.Reply, figures: Figures) -> wire.Json:
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


CHAT = wire.Dialect(
    path="/v1/chat/completions",
    id_prefix="chatcmpl-",
    read=_read_chat,
    stream=partial(_stream, kind=_CHAT_CHUNK, write=_chat_token),
    whole=_whole_chat,
    refusal=wire.openai_refusal,
)
COMPLETIONS = wire.Dialect(
    path="/v1/completions",
    id_prefix="cmpl-",
    read=_read_completion,
    stream=partial(_stream, kind=_COMPLETION, write=_completion_token),
    whole=_whole_completion,
    refusal=wire.openai_refusal,
)
