"""The functions and records shared by all protocols of the simulated server.

A `Dialect` is four functions: they read a body, and write a stream, a unary response and a
rejection.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from llmtrace.simulator.api.request_body import Body, ParsedRequest, RejectedError
from llmtrace.simulator.engine.scheduler import Figures, Token
from llmtrace.simulator.engine.text import Piece

Json = dict[str, object]
Answer = AsyncIterator[tuple[Piece, Token]]
SERVER = "llmtrace-simulated-engine"
DONE = b"data: [DONE]\n\n"
_KINDS = {400: "BadRequestError", 404: "NotFoundError", 429: "RateLimitError"}


@dataclass(frozen=True, slots=True)
class Reply:
    """A response in the making: the request, and everything a wire format needs to send it."""

    ask: ParsedRequest
    reply_id: str
    model: str
    created: int  # unix seconds
    fingerprint: str
    prompt_tokens: int
    finish: Literal["stop", "length", "tool_calls"]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One endpoint: its path, the prefix of its reply ids, its reader and its writers."""

    path: str
    id_prefix: str
    read: Callable[[Body], ParsedRequest]
    stream: Callable[[Reply, Answer], AsyncIterator[bytes]]
    whole: Callable[[Reply, Figures], Json]
    refusal: Callable[[RejectedError], Json]
    keeps_request_id: bool = True  # whether the client's request id becomes part of the reply's


def sse(payload: Mapping[str, object], event: str | None = None) -> bytes:
    """Return the bytes of one server-sent event."""
    text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {text}\n\n".encode()


def inband(figures: Figures) -> Json:
    """Return a finished request's figures as vLLM reports them, in milliseconds.

    `time_to_first_token_ms` counts from scheduled, so it is prefill; `tokens_per_second` counts
    prefill in. Both are vLLM's definitions, kept.
    """
    tokens = figures.request.output_tokens
    inference_s = figures.prefill_s + figures.decode_s
    return {
        "time_to_first_token_ms": 1e3 * figures.prefill_s,
        "generation_time_ms": 1e3 * figures.decode_s,
        "queue_time_ms": 1e3 * figures.queue_s,
        "mean_itl_ms": None if figures.tpot_s is None else 1e3 * figures.tpot_s,
        "tokens_per_second": tokens / inference_s if inference_s else None,
    }


def parts(pieces: Sequence[Piece]) -> list[tuple[Piece, str]]:
    """Group an answer into its parts: the first piece of each, and the part's whole text."""
    grouped: list[tuple[Piece, str]] = []
    for piece in pieces:
        if grouped and same_part(grouped[-1][0], piece):
            grouped[-1] = (grouped[-1][0], grouped[-1][1] + piece.text)
        else:
            grouped.append((piece, piece.text))
    return grouped


def same_part(before: Piece | None, piece: Piece) -> bool:
    """Return whether a piece continues the part before it."""
    return before is not None and (before.kind, before.call) == (piece.kind, piece.call)


def call_id(reply: Reply, piece: Piece) -> str:
    """Return the id of the tool call a piece belongs to."""
    return f"call_{reply.reply_id}_{piece.call}"


def openai_error(message: str, status: int, param: str | None = None) -> Json:
    """Return an error in OpenAI's shape, as vLLM words it."""
    kind = _KINDS.get(status, "InternalServerError")
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def openai_refusal(refused: RejectedError) -> Json:
    """Return a refusal in OpenAI's shape."""
    return openai_error(refused.message, refused.status, refused.param)
