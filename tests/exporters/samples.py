"""Rows for the exporters' tests."""

from __future__ import annotations

from dataclasses import replace

from llmtrace.core.request_clock import GAP_BOUNDS_NS
from llmtrace.core.row import Row
from llmtrace.core.stages import Network, Reported, Timeline

MS = 1_000_000
START = 1_790_000_000 * 1_000_000_000
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


def typical(number: int = 0, **given: object) -> Row:
    """A streamed chat answered by vLLM: six stages took time, the gateway is not known."""
    gaps = [0] * (len(GAP_BOUNDS_NS) + 1)
    gaps[4], gaps[5] = 120, 79  # at most 10 ms, at most 15 ms
    row = Row(
        request_id=f"lt-{number:016x}",
        trace_id=TRACE,
        span_id=f"{int(SPAN, 16) + number:016x}",
        parent_span_id="b7ad6b7169203331",
        response_id=f"chatcmpl-{number}",
        start=START,
        service="shop",
        model="llama-3.1-8b",
        provider="vllm",
        server="10.0.0.5:8000",
        route="/chat",
        region="eu",
        version="1.2.3",
        client="openai",
        finish_reason="stop",
        http_status=200,
        prompt_tokens=1200,
        cached_tokens=1024,
        output_tokens=200,
        chunks=200,
        max_gap_ns=14 * MS,
        last_content_ns=2_390 * MS,
        first_byte_ns=390 * MS,
        first_event_ns=390 * MS,
        first_text_ns=400 * MS,
        gap_counts=tuple(gaps),
        gap_sum_ns=1_950 * MS,
        timeline=Timeline(
            e2e=2_400 * MS,
            ttft=400 * MS,
            held_before=2 * MS,
            held_after=50 * MS,
            network=Network(
                client_wait=0,
                dns=0,
                connect=0,
                tls=0,
                send=100_000,
                rtt=1 * MS,
                rtt_source="kernel",
            ),
            queue=Reported(120 * MS, "engine_inband"),
            prefill=Reported(230 * MS, "engine_inband"),
        ),
    )
    return replace(row, **given)


def unsplit(**given: object) -> Row:
    """The same from a hosted API that tells nothing of its engine."""
    row = typical()
    return replace(row, timeline=replace(row.timeline, queue=None, prefill=None), **given)
