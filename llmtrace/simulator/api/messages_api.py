"""Read and write /v1/messages in Anthropic's format.

Like a real vLLM it carries no figures of the engine, and nothing is sent before the first token.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from llmtrace.simulator.api import request_body, wire_format
from llmtrace.simulator.api.fault_header import EngineFailedError
from llmtrace.simulator.engine.scheduler import Figures
from llmtrace.simulator.engine.text import Piece

_KINDS = {400: "invalid_request_error", 404: "not_found_error", 429: "rate_limit_error"}
_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def _read(body: request_body.Body) -> request_body.ParsedRequest:
    prompt = request_body.text_of(body.get("system")) + request_body.messages_text(
        body, "messages"
    )
    ask = request_body.read_request(body, prompt, ("max_tokens",))
    if ask.limit is None:
        raise request_body.RejectedError(400, "max_tokens: field required", "max_tokens")
    return ask


async def _stream(reply: wire_format.Reply, answer: wire_format.Answer) -> AsyncIterator[bytes]:
    """Stream an answer: a start, one content block a part, the reason it ended, a stop."""
    index, before, figures = 0, None, None
    try:
        async for piece, token in answer:
            figures = token.figures
            frames = b""
            if before is None:
                frames += _event("message_start", message=_message(reply, [], None))
            if not wire_format.same_part(before, piece):
                if before is not None:
                    frames += _event("content_block_stop", index=index)
                    index += 1
                block = _block(reply, piece, "")
                frames += _event("content_block_start", index=index, content_block=block)
            if piece.text:
                frames += _event("content_block_delta", index=index, delta=_delta(piece))
            before = piece
            if frames:
                yield frames
    except EngineFailedError as failed:
        yield _event("error", error={"type": "api_error", "message": str(failed)})
    if figures:
        delta = {"stop_reason": _STOPS[reply.finish], "stop_sequence": None}
        ending = _event("message_delta", delta=delta, usage=_usage(reply, figures))
        yield _event("content_block_stop", index=index) + ending + _event("message_stop")


def _whole(reply: wire_format.Reply, figures: Figures) -> wire_format.Json:
    content = [_block(reply, piece, text) for piece, text in wire_format.parts(reply.pieces)]
    return _message(reply, content, figures)


def _message(
    reply: wire_format.Reply, content: list[wire_format.Json], figures: Figures | None
) -> wire_format.Json:
    return {
        "id": reply.reply_id,
        "type": "message",
        "role": "assistant",
        "content": content,
        "model": reply.model,
        "stop_reason": _STOPS[reply.finish] if figures else None,
        "stop_sequence": None,
        "usage": _usage(reply, figures),
        "system_fingerprint": reply.fingerprint,
    }


def _usage(reply: wire_format.Reply, figures: Figures | None) -> wire_format.Json:
    """Count as Anthropic does: `input_tokens` are the ones that did not come from the cache."""
    if figures is None:
        return {"input_tokens": reply.prompt_tokens, "output_tokens": 0}
    return {
        "input_tokens": reply.prompt_tokens - figures.cached_tokens,
        "output_tokens": figures.request.output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": figures.cached_tokens,
    }


def _block(reply: wire_format.Reply, piece: Piece, text: str) -> wire_format.Json:
    """Return a content block that holds `text`, or opens empty for deltas to fill."""
    if piece.kind == "text":
        return {"type": "text", "text": text}
    if piece.kind == "reasoning":
        return {"type": "thinking", "thinking": text, "signature": ""}
    arguments = json.loads(text) if text else {}
    name = reply.ask.tool
    return {
        "type": "tool_use",
        "id": wire_format.call_id(reply, piece),
        "name": name,
        "input": arguments,
    }


def _delta(piece: Piece) -> wire_format.Json:
    if piece.kind == "text":
        return {"type": "text_delta", "text": piece.text}
    if piece.kind == "reasoning":
        return {"type": "thinking_delta", "thinking": piece.text}
    return {"type": "input_json_delta", "partial_json": piece.text}


def _event(kind: str, **fields: object) -> bytes:
    return wire_format.sse({"type": kind, **fields}, kind)


def _refusal(refused: request_body.RejectedError) -> wire_format.Json:
    kind = _KINDS.get(refused.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": refused.message}}


MESSAGES = wire_format.Dialect(
    path="/v1/messages",
    id_prefix="chatcmpl-",  # vLLM's own answer to Anthropic's API is a chat completion inside
    read=_read,
    stream=_stream,
    whole=_whole,
    refusal=_refusal,
)
