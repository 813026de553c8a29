"""Read and write /v1/responses in vLLM's format.

Two events leave before prefill; the figures ride on the last one. Like a real vLLM it does not put
the client's request id into the reply's id.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable

from llmtrace.simulator.api import request_body, wire_format
from llmtrace.simulator.api.fault_header import EngineFailedError
from llmtrace.simulator.engine.scheduler import Figures
from llmtrace.simulator.engine.text import Piece

Event = Callable[..., bytes]
_DELTAS = {
    "text": "response.output_text",
    "reasoning": "response.reasoning_text",
    "tool": "response.function_call_arguments",
}


def _read(body: request_body.Body) -> request_body.ParsedRequest:
    given = body.get("input")
    prompt_text = (
        given if isinstance(given, str) and given else request_body.messages_text(body, "input")
    )
    prompt = request_body.text_of(body.get("instructions")) + prompt_text
    return request_body.read_request(body, prompt, ("max_output_tokens",))


async def _stream(reply: wire_format.Reply, answer: wire_format.Answer) -> AsyncIterator[bytes]:
    """Stream a response: created and in progress at once, an item a part, completed."""
    event = _numbered()
    yield event("response.created", response=_response(reply, None)) + event(
        "response.in_progress", response=_response(reply, None)
    )
    index, opened, text, figures = 0, None, "", None
    try:
        async for piece, token in answer:
            figures = token.figures
            frames = b""
            if not wire_format.same_part(opened, piece):
                if opened is not None:
                    frames += _close(event, reply, opened, text, index)
                    index += 1
                opened, text = piece, ""
                frames += _open(event, reply, piece, index)
            if piece.text:
                text += piece.text
                where = _where(reply, piece, index)
                frames += event(f"{_DELTAS[piece.kind]}.delta", delta=piece.text, **where)
            if frames:
                yield frames
    except EngineFailedError as failed:
        yield event("error", code="server_error", message=str(failed), param=None)
    if figures and opened:
        frames = _close(event, reply, opened, text, index)
        yield frames + event("response.completed", response=_response(reply, figures))


def _response(reply: wire_format.Reply, figures: Figures | None) -> wire_format.Json:
    """Return the response object, in progress without figures."""
    grouped = wire_format.parts(reply.pieces) if figures else []
    cut = figures is not None and reply.finish == "length"
    response: wire_format.Json = {
        "id": reply.reply_id,
        "object": "response",
        "created_at": reply.created,
        "model": reply.model,
        "status": "in_progress" if figures is None else "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": [_item(reply, piece, text) for piece, text in grouped],
        "system_fingerprint": reply.fingerprint,
        "max_output_tokens": reply.ask.limit,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "instructions": None,
        "metadata": None,
        "error": None,
        "temperature": 1.0,
        "top_p": 1.0,
        "usage": None,
    }
    if figures is not None:
        response["usage"] = _usage(reply, figures)
        response["metrics"] = {**wire_format.inband(figures), "speculative_decoding": None}
    return response


def _usage(reply: wire_format.Reply, figures: Figures) -> wire_format.Json:
    produced = figures.request.output_tokens
    thought = sum(piece.kind == "reasoning" for piece in reply.pieces)
    return {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": figures.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": produced,
        "output_tokens_details": {"reasoning_tokens": thought, "tool_output_tokens": 0},
        "total_tokens": reply.prompt_tokens + produced,
    }


def _numbered() -> Event:
    """Return a function that frames events and numbers them in the order they are sent."""
    numbers = itertools.count()

    def event(kind: str, **fields: object) -> bytes:
        return wire_format.sse({"type": kind, **fields, "sequence_number": next(numbers)}, kind)

    return event


def _item(
    reply: wire_format.Reply, piece: Piece, text: str, status: str = "completed"
) -> wire_format.Json:
    if piece.kind == "tool":
        return {
            "id": f"fc_{wire_format.call_id(reply, piece)}",
            "type": "function_call",
            "call_id": wire_format.call_id(reply, piece),
            "name": reply.ask.tool,
            "arguments": text,
            "status": status,
        }
    content = [_part(piece, text)] if status == "completed" else []
    if piece.kind == "reasoning":
        thought = {"id": f"rs_{reply.reply_id}", "type": "reasoning", "summary": []}
        return {**thought, "content": content, "status": status}
    message = {"id": f"msg_{reply.reply_id}", "type": "message", "role": "assistant"}
    return {**message, "content": content, "status": status}


def _part(piece: Piece, text: str) -> wire_format.Json:
    if piece.kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}


def _where(reply: wire_format.Reply, piece: Piece, index: int) -> wire_format.Json:
    """Return the fields that say which part of the output an event is about."""
    where: wire_format.Json = {"item_id": _item(reply, piece, "")["id"], "output_index": index}
    if piece.kind != "tool":
        where["content_index"] = 0
    if piece.kind == "text":
        where["logprobs"] = []
    return where


def _open(event: Event, reply: wire_format.Reply, piece: Piece, index: int) -> bytes:
    item = _item(reply, piece, "", "in_progress")
    frames = event("response.output_item.added", output_index=index, item=item)
    if piece.kind == "text":
        where = _where(reply, piece, index)
        frames += event("response.content_part.added", part=_part(piece, ""), **where)
    return frames


def _close(event: Event, reply: wire_format.Reply, piece: Piece, text: str, index: int) -> bytes:
    where = _where(reply, piece, index)
    if piece.kind == "tool":
        frames = event(f"{_DELTAS['tool']}.done", arguments=text, name=reply.ask.tool, **where)
    else:
        frames = event(f"{_DELTAS[piece.kind]}.done", text=text, **where)
    if piece.kind == "text":
        frames += event("response.content_part.done", part=_part(piece, text), **where)
    item = _item(reply, piece, text)
    return frames + event("response.output_item.done", output_index=index, item=item)


RESPONSES = wire_format.Dialect(
    path="/v1/responses",
    id_prefix="resp_",
    read=_read,
    stream=_stream,
    whole=_response,
    refusal=wire_format.openai_refusal,
    keeps_request_id=False,
)
