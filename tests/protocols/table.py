"""List every protocol with its possible endings, and the outcome of the row.

The data behind the tests of `test_matrix.py` and the table in docs/instrument/protocols.md. Plain
data: it imports no client.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

SYNC: Final = "sync"
ASYNC: Final = "async"
MODES: Final = (SYNC, ASYNC)


@dataclass(frozen=True, slots=True)
class Ending:
    """A way in which a request ends.

    Attributes:
        name: what tests call it.
        title: what happens.
        outcome: what the row says.
        whole: whether it can happen to a unary response.
    """

    name: str
    title: str
    outcome: str
    whole: bool = False


ENDINGS: Final = (
    Ending("success", "read to its end", "success", whole=True),
    Ending("empty", "ended without content", "success"),
    Ending("refused", "rejected before it began", "error", whole=True),
    Ending("broken", "broken in the middle", "error"),
    Ending("truncated", "ended in the middle", "truncated"),
    Ending("timeout", "no data until a timeout", "timeout", whole=True),
    Ending("left", "the consumer stops reading", "cancelled"),
    Ending("cancelled", "closed, or its task cancelled", "cancelled", whole=True),
)


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol as a client speaks it.

    Attributes:
        name: what tests call it.
        title: what the documents call it.
        modes: sync, async or both.
    """

    name: str
    title: str
    modes: tuple[str, ...] = MODES


PROTOCOLS: Final = (
    Protocol("chat", "SSE, `openai` chat completions"),
    Protocol("completions", "SSE, `openai` completions"),
    Protocol("responses", "SSE, `openai` Responses"),
    Protocol("messages", "SSE, `anthropic` messages"),
    Protocol("httpx", "SSE, `httpx` without an SDK"),
    Protocol("httpx2", "SSE, `httpx2` without an SDK"),
    Protocol("aiohttp", "SSE, `aiohttp` without an SDK", (ASYNC,)),
    Protocol("websocket", "WebSocket, `websockets`"),
    Protocol("events", "WebSocket, OpenAI's events"),
    Protocol("grpc", "gRPC, `grpc` and `grpc.aio`"),
)

# What cannot be, and why: by protocol, ending, mode and whether it streams; `None` stands for any.
_BLOCKED: Final = "a call that blocks its thread cannot be cancelled"
NOT: Final[dict[tuple[str, str | None, str | None, bool], str]] = {
    ("chat", "cancelled", SYNC, False): _BLOCKED,
    ("completions", "cancelled", SYNC, False): _BLOCKED,
    ("responses", "cancelled", SYNC, False): _BLOCKED,
    ("messages", "cancelled", SYNC, False): _BLOCKED,
    ("httpx", "cancelled", SYNC, False): _BLOCKED,
    ("httpx2", "cancelled", SYNC, False): _BLOCKED,
    ("websocket", None, None, False): "messages are sent one by one, so it always streams",
    ("events", None, None, False): "messages are sent one by one, so it always streams",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: a test, or the reason why there is none."""

    protocol: Protocol
    ending: Ending
    mode: str
    stream: bool
    reason: str | None = None

    @property
    def id(self) -> str:
        """Return the id of the test."""
        kind = "stream" if self.stream else "whole"
        return f"{self.protocol.name}-{kind}-{self.ending.name}-{self.mode}"


def cells() -> Iterator[Cell]:
    """Yield every cell of the table."""
    for protocol in PROTOCOLS:
        for stream in (True, False):
            for ending in ENDINGS:
                if not stream and not ending.whole:
                    continue
                for mode in MODES:
                    reason = _reason(protocol, ending, mode, stream)
                    yield Cell(protocol, ending, mode, stream, reason)


def _reason(protocol: Protocol, ending: Ending, mode: str, stream: bool) -> str | None:
    if mode not in protocol.modes:
        return f"there is no {mode} client"
    name = protocol.name
    for key in (
        (name, ending.name, mode, stream),
        (name, ending.name, None, stream),
        (name, None, mode, stream),
        (name, None, None, stream),
    ):
        if key in NOT:
            return NOT[key]
    return None


def markdown() -> str:
    """Draw the table, with its reasons below."""
    reasons: list[str] = []
    parts = []
    for stream, title in ((True, "Streamed responses"), (False, "Unary responses")):
        endings = [ending for ending in ENDINGS if stream or ending.whole]
        head = ["protocol", *(ending.title for ending in endings)]
        outcomes = ["`outcome`", *(f"`{ending.outcome}`" for ending in endings)]
        lines = [title, "", _line(head), _line(["---"] * len(head)), _line(outcomes)]
        for protocol in PROTOCOLS:
            row = [protocol.title]
            for ending in endings:
                found = [
                    cell
                    for cell in cells()
                    if (cell.protocol, cell.ending, cell.stream) == (protocol, ending, stream)
                ]
                row.append(_shown(found, reasons))
            lines.append(_line(row))
        parts.append("\n".join(lines))
    notes = "\n".join(f"{number}. {reason}." for number, reason in enumerate(reasons, 1))
    return "\n\n".join([*parts, notes] if notes else parts)


def _shown(found: list[Cell], reasons: list[str]) -> str:
    shown = []
    for cell in found:
        if cell.reason is None:
            shown.append(cell.mode)
        elif cell.reason not in reasons:
            reasons.append(cell.reason)
    notes = dict.fromkeys(
        f"({reasons.index(cell.reason) + 1})" for cell in found if cell.reason is not None
    )
    return " ".join([", ".join(shown) or "-", *notes])


def _line(columns: list[str]) -> str:
    return f"| {' | '.join(columns)} |"
