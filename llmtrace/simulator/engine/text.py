"""Draw the simulated engine's text and its length, and count the tokens of prompts.

Words drawn by seed from a small vocabulary; nothing understands them. The same prompt always gets
the same response.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

PieceKind = Literal["text", "reasoning", "tool"]

# A rule of thumb for English with a byte-pair tokenizer; the engine has no tokenizer.
_BYTES_PER_TOKEN = 4
_SPREAD = 0.4  # sigma of the log-normal answer length
_SHORTEST = 8
_OPENING = "This text was made up by llmtrace's simulated engine."
_WORDS = (  # noqa: SIM905 - words read better as words
    "the a one this each queue prefill decode step token batch cache block prompt answer stream "
    "request engine client network gateway waits runs fills grows shrinks starts ends returns "
    "first next last long short fast slow early late again once while before after because and "
    "so but then with without under over"
).split()


@dataclass(frozen=True, slots=True)
class Piece:
    """What one output token shows. Pieces of one part of the answer share `kind` and `call`."""

    kind: PieceKind
    text: str
    call: int | None = None  # which tool call, from 0; `None` outside of tool calls


def count_tokens(text: str) -> int:
    """Return the tokens of a text, as four bytes each; at least 1."""
    return max(1, math.ceil(len(text.encode()) / _BYTES_PER_TOKEN))


def natural_tokens(prompt: str, seed: int, median: int) -> int:
    """Draw the number of tokens of a response without a limit."""
    drawn = _draws(prompt, seed).lognormvariate(math.log(median), _SPREAD)
    return max(_SHORTEST, round(drawn))


def write_answer(
    prompt: str,
    seed: int,
    tokens: int,
    *,
    stops: bool,
    reasoning_tokens: int = 0,
    tool_calls: int = 0,
) -> tuple[Piece, ...]:
    """Write an answer of exactly `tokens` pieces: reasoning first, then text or tool calls.

    An answer that stops by itself ends with an empty piece, the end-of-text token.
    """
    words = _words(prompt, seed)
    spoken = tokens - 1 if stops else tokens
    thoughts = min(reasoning_tokens, spoken)
    pieces = [Piece("reasoning", next(words)) for _ in range(thoughts)]
    if tool_calls:
        for call in range(tool_calls):
            share = (spoken - thoughts + call) // tool_calls
            pieces += [Piece("tool", text, call) for text in _arguments(share, words)]
    else:
        pieces += [Piece("text", next(words)) for _ in range(spoken - thoughts)]
    if stops:
        pieces.append(Piece(pieces[-1].kind, "", pieces[-1].call) if pieces else Piece("text", ""))
    return tuple(pieces)


def _draws(prompt: str, seed: int) -> random.Random:
    return random.Random(zlib.crc32(prompt.encode()) + seed)  # noqa: S311


def _words(prompt: str, seed: int) -> Iterator[str]:
    """Yield words without end, each with the space before it, as tokenizers cut them."""
    yield from (f" {word}" if number else word for number, word in enumerate(_OPENING.split()))
    draws = _draws(prompt, seed)
    while True:
        yield f" {draws.choice(_WORDS)}"


def _arguments(tokens: int, words: Iterator[str]) -> list[str]:
    """Write one tool call in `tokens` pieces, the first its name, that join to valid JSON."""
    frame = ["", '{"query": "', '"}']
    if tokens < len(frame):
        return ([], ["{}"], ["", "{}"])[tokens]
    return [*frame[:2], *islice(words, tokens - len(frame)), frame[2]]
