"""In front of a real vLLM: does a client of our gateway see the gateway, and the engine behind?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

import llmtrace
from llmtrace import gateway
from llmtrace.core.row import Row, with_figures
from llmtrace.core.span import Span
from llmtrace.engines.spans import read_engine_span
from llmtrace.runtime.trace_context import HeaderPolicy
from llmtrace.testing import capture
from tests.gateway.asgi import Spans
from tests.gateway.serving import app, relay, serving
from tests.real.best_of import settles
from tests.support.machine_noise import allowed_s

GUARD_S = 0.050
TIMES = 7
# A random model ends its answer at once, or with half a character, one time in two hundred: of an
# answer without content no gateway tells an engine's figures. These tokens are a letter each.
LETTERS = {str(token): 100 for token in range(94)}
_MS = 1_000_000
_US = 1_000


@pytest.fixture
def sink() -> Iterator[Spans]:
    """Collect what client and gateway record: they are one process here."""
    collected = Spans()
    with capture(sinks=[collected], headers=HeaderPolicy(own_hosts=frozenset({"127.0.0.1"}))):
        yield collected
    assert llmtrace.internal_errors() == {}


def ask(
    vllm: Any,
    sink: Spans,
    guard_s: float,
    took_ns: list[int] | None = None,
    *,
    stream: bool,
) -> list[tuple[Row, Row, Span]]:
    """Ask several times through a gateway with a guard; no prefix of a prompt is cached.

    Return, of each time, the client's row, the gateway's own and the gateway's span.
    """
    sink.rows.clear()
    sink.finished.clear()
    edge = app(relay(f"{vllm.url}/v1", guard_s, guarded=took_ns))
    edge.add_middleware(gateway.Middleware, name="edge")
    with (
        serving(edge) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        for number in range(TIMES):
            question: Any = [{"role": "user", "content": f"{number} {guard_s} " + "word " * 200}]
            answer = client.chat.completions.create(
                model="tiny",
                messages=question,
                max_tokens=8,
                stream=stream,
                logit_bias=LETTERS,
            )
            if stream:
                assert list(answer)
        deadline = time.monotonic() + 20
        while len(sink.finished) < TIMES or len(sink.rows) < 2 * TIMES:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    spans = {span.parent_span_id: span for span in sink.finished}
    inner = {row.parent_span_id: row for row in sink.rows}
    # In the order they were asked, as the guards ran.
    outer = sorted(
        (row for row in sink.rows if row.parent_span_id is None), key=lambda row: row.start
    )
    return [(row, inner[spans[row.span_id].span_id], spans[row.span_id]) for row in outer]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_the_clients_row_has_every_stage(
    vllm: Any, engine_spans: Any, sink: Spans, stream: bool
) -> None:
    """Network, gateway, queue and prefill are known, the sum is exact, and the engine agrees."""
    for row, inner, span in ask(vllm, sink, GUARD_S, stream=stream):
        stages = row.stages
        assert stages.total == row.e2e_ns
        assert stages.inconsistent == ()
        assert None not in (stages.network, stages.gateway, stages.first_chunk, stages.decode)
        assert stages.gateway == round(span.attributes["llmtrace.gateway.self"] * 1e9)
        assert stages.gateway >= GUARD_S * 1e9
        # vLLM reported to the gateway in band, and the gateway its client in Server-Timing.
        assert inner.stages.sources["queue"] == "engine_inband"
        assert (stages.queue, stages.prefill) == (inner.stages.queue, inner.stages.prefill)
        assert (row.gateway, inner.gateway) == ("edge", None)
        # One trace, from the client to the engine.
        engine_span = engine_spans[0].of(row.trace_id)
        joined = with_figures(row, read_engine_span(engine_span)).stages
        assert abs(joined.prefill - stages.prefill) <= _US
        assert abs(joined.queue - stages.queue) <= _US


def test_a_guards_delay_is_the_gateways(vllm: Any, sink: Spans) -> None:
    """50 ms before the upstream call are 50 ms of `gateway`, and of nothing else."""
    plain: list[Row] = []
    guarded: list[Row] = []
    took_ns: list[int] = []

    def best(rows: list[Row], stage: str) -> int:
        """Each at its best: who is not scheduled takes longer for reasons of his own."""
        return min(getattr(row.stages, stage) for row in rows)

    def beyond_ns() -> int:
        """What the guarded gateway took beyond the guard, at its best, and the plain one not."""
        each = zip(guarded, took_ns, strict=True)
        rest = min(row.stages.gateway - ns for row, ns in each)
        return rest - best(plain, "gateway")

    def more() -> None:
        plain.extend(row for row, _, _ in ask(vllm, sink, 0.0, stream=True))
        guarded.extend(row for row, _, _ in ask(vllm, sink, GUARD_S, took_ns, stream=True))

    def check() -> None:
        noise_ns = allowed_s() * 1e9 / TIMES  # each is the best of so many
        assert abs(beyond_ns()) <= 5 * _MS + noise_ns
        for stage in ("network", "queue", "prefill", "first_chunk"):
            assert best(guarded, stage) <= best(plain, stage) * 1.05 + 10 * _MS + noise_ns, stage

    settles(more, check)
    for row, ns in zip(guarded, took_ns, strict=True):
        assert row.stages.gateway >= ns >= GUARD_S * 1e9
