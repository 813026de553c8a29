"""An engine's wait is bounded without its report only if no gateway may be in between."""

from __future__ import annotations

from typing import Any

import pytest

from llmtrace.core.row import Row
from tests.support.sse_server import Answer, Request, Script, Server

from .answers import WORDS, delta
from .reading import near, read, recorded, seconds, settled

WAIT_S = 0.1
VLLM = {"server": "uvicorn"}
MARK = {"system_fingerprint": "vllm-0.32.0-abcd"}


def bare(
    *,
    head_s: float = 0.0,
    wait_s: float = WAIT_S,
    gap_s: float = 0.02,
    words: int = 5,
    headers: dict[str, str] | None = None,
    completion: bool = False,
) -> Script:
    """Respond as a vLLM without per-request metrics does: it names itself in the last chunk."""

    def made(text: str = "", finish: str | None = None) -> dict[str, Any]:
        chunk = delta(text, finish=finish)
        if completion:
            chunk["choices"] = [{"index": 0, "text": text, "finish_reason": finish}]
        return chunk

    def script(_request: Request, answer: Answer) -> None:
        answer.wait(head_s)
        answer.head(headers=VLLM if headers is None else headers)
        answer.wait(wait_s)
        answer.event(made())
        for number, word in enumerate(WORDS[:words]):
            answer.wait(gap_s if number else 0)
            answer.event(made(word))
        answer.wait(gap_s)
        answer.event({**made(finish="stop"), **MARK})
        answer.event("[DONE]")

    return script


def bounded(row: Row) -> None:
    """Check that a row's prefill is the wait between headers and first byte."""
    assert row.stages.sources.get("prefill") == "client_bound"
    near(seconds(row, "prefill"), WAIT_S)
    assert row.stages.queue is None


@pytest.mark.parametrize("each_s", [0.0, 0.005], ids=["eager", "busy"])
def test_headers_to_first_byte(mode: str, server: Server, each_s: float) -> None:
    """What lies between is queue and prefill, also for a reader who does something with chunks."""
    server.play(bare())

    settled(lambda: recorded(lambda: read(mode, server, each_s=each_s)), bounded)


def test_completions_too(server: Server) -> None:
    """The older endpoint is bounded as well."""
    server.play(bare(completion=True))

    settled(lambda: recorded(lambda: read("sync", server, "completions")), bounded)


@pytest.mark.parametrize(
    "given",
    [
        {"headers": {}},
        {"headers": {"server": "nginx"}},
        {"headers": {**VLLM, "via": "1.1 edge"}},
        {"head_s": WAIT_S, "wait_s": 0.0},
        {"head_s": 3 * WAIT_S},
        {"gap_s": 0.0},
        {"words": 4},
    ],
    ids=["no-gateway", "nginx", "via", "together", "late-headers", "bursts", "few-chunks"],
)
def test_what_may_have_been_held_back_bounds_nothing(server: Server, given: Any) -> None:
    """Headers or chunks that a proxy may have held report nothing of the engine."""
    server.play(bare(**given))
    row = recorded(lambda: read("sync", server))

    assert (row.outcome, row.provider) == ("success", "vllm")
    assert (row.stages.prefill, row.stages.queue, row.stages.first_chunk) == (None, None, None)


def test_a_late_reader_bounds_nothing(server: Server) -> None:
    """Who was not reading does not know when the first byte came."""
    server.play(bare())
    row = recorded(lambda: read("sync", server, late_s=2 * WAIT_S))

    assert row.stages.prefill is None
