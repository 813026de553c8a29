"""Rows match reality: known delays over real sockets come out as stages."""

from __future__ import annotations

from llmtrace.core.row import Row
from tests.support.sse_server import Answer, Request, Server

from .answers import METRICS, chat, delta
from .reading import near, read, recorded, seconds, settled

_WORDS = ("x ",) * 20
_GAP_S = 0.01
_GAPS_S = _GAP_S * (len(_WORDS) - 1)


def test_waiting_for_the_server(mode: str, server: Server) -> None:
    """The wait for headers and first token is the TTFT; the gaps are the decode."""
    server.play(chat(_WORDS, head_s=0.1, first_s=0.3, gap_s=_GAP_S))

    def check(row: Row) -> None:
        _role, *words, _finish, _usage, _done = server.answers[-1].sent_at
        near(row.ttft_s, 0.4)
        near(seconds(row, "decode"), words[-1] - words[0])
        near(row.e2e_s, 0.4 + words[-1] - words[0])
        near(seconds(row, "render"), 0)

    row = settled(lambda: recorded(lambda: read(mode, server)), check)
    assert (row.outcome, row.finish_reason, row.chunks) == ("success", "stop", len(_WORDS))


def test_a_slow_consumer_is_not_a_slow_model(mode: str, server: Server) -> None:
    """Time between two reads is render; the gaps stay what the server made them, or less."""
    busy_s, gap_s = 0.03, 0.05
    server.play(chat(_WORDS[:10], first_s=0.1, gap_s=gap_s))
    slow = recorded(lambda: read(mode, server, each_s=busy_s))
    [(sent_body, _)] = [(r.body, r) for r in server.requests]
    assert sent_body["stream"]

    def check(row: Row) -> None:
        # The reader is back before the next chunk is due, so it waits for what is left of a gap.
        # It is busy with the role chunk and with the end, too.
        near(seconds(row, "decode"), 9 * (gap_s - busy_s))
        near(seconds(row, "render"), 12 * busy_s)
        assert row.max_gap_s is not None
        assert row.max_gap_s < gap_s - busy_s / 3

    settled(lambda: recorded(lambda: read(mode, server, each_s=busy_s)), check)
    assert (slow.stages.queue, slow.stages.prefill) == (1_500_000, 20_250_000)


def test_a_consumer_slower_than_the_model_waits_for_nothing(mode: str, server: Server) -> None:
    """Where the engine's gaps are shorter than the consumer's work, all is render."""
    server.play(chat(_WORDS, gap_s=_GAP_S))

    def check(row: Row) -> None:
        near(seconds(row, "render"), 0.03 * (len(_WORDS) + 2))
        decode = seconds(row, "decode")
        assert decode is not None
        assert decode < _GAPS_S / 4
        assert row.max_gap_s is not None
        assert row.max_gap_s < 0.015  # what the consumer took is twice that

    settled(lambda: recorded(lambda: read(mode, server, each_s=0.03)), check)


def test_a_role_chunk_is_not_the_first_token(mode: str, server: Server) -> None:
    """The TTFT is the first text at 0.5 s, not the role chunk at 0.1 s."""
    server.play(chat(role_s=0.1, first_s=0.4))

    def check(row: Row) -> None:
        near(row.ttft_s, 0.5)
        assert row.first_event_ns is not None
        assert row.first_text_ns is not None
        assert row.first_text_ns == row.ttft_ns
        role, text, *_ = server.answers[-1].sent_at
        near((row.first_text_ns - row.first_event_ns) / 1e9, text - role)

    settled(lambda: recorded(lambda: read(mode, server)), check)


def test_a_late_reader_is_not_a_slow_server(mode: str, server: Server) -> None:
    """The reader experiences its own lateness; the engine's figures do not move by it."""
    late_s = 0.3
    server.play(chat(first_s=0.05))
    eager = recorded(lambda: read(mode, server))

    def check(row: Row) -> None:
        near(row.ttft_s, late_s)
        rest = seconds(row, "first_chunk")
        first = seconds(eager, "first_chunk")
        assert rest is not None
        assert first is not None
        assert rest <= first + 0.005
        near(seconds(row, "render"), late_s - 0.0015 - 0.02025)

    row = settled(lambda: recorded(lambda: read(mode, server, late_s=late_s)), check)
    for stage, key in (("queue", "queue_time_ms"), ("prefill", "time_to_first_token_ms")):
        assert seconds(row, stage) == METRICS[key] / 1e3 == seconds(eager, stage)
    assert row.ttft_arrival_s is not None
    assert row.ttft_arrival_s < 0.1


def test_marks_of_the_first_of_each_kind(mode: str, server: Server) -> None:
    """First byte, event, reasoning, text and tool call are distinguished."""

    def script(_request: Request, answer: Answer) -> None:
        call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f"}}
        answer.head()
        for chunk in (
            None,
            delta("", role="assistant"),
            delta(reasoning_content="hm"),
            delta("text"),
            delta(tool_calls=[{**call, "function": {"name": "f", "arguments": "{}"}}]),
        ):
            answer.wait(0.1)
            answer.data(b": keep-alive\n\n") if chunk is None else answer.event(chunk)
        answer.event(delta(finish="tool_calls"))
        answer.event("[DONE]")

    server.play(script)

    def check(row: Row) -> None:
        seen = [
            row.first_byte_ns,
            row.first_event_ns,
            row.first_reasoning_ns,
            row.first_text_ns,
            row.first_tool_call_ns,
        ]
        sent = server.answers[-1].sent_at
        for before, after, sent_before, sent_after in zip(
            seen, seen[1:], sent, sent[1:], strict=False
        ):
            assert before is not None
            assert after is not None
            near((after - before) / 1e9, sent_after - sent_before)

    row = settled(lambda: recorded(lambda: read(mode, server)), check)
    assert row.ttft_ns == row.first_reasoning_ns
    assert row.chunks == 3
