"""What engines and gateways report inside their answers, in the formats that they document.

A golden answer for each: what it says, and what the row makes of it.
"""

from __future__ import annotations

from typing import Any

import pytest

from llmtrace.core import engine_figures
from llmtrace.core.engine_figures import IN_ANSWERS, REPORTS, STAGE_OF, read_answer
from llmtrace.core.row import Row
from llmtrace.core.stages import STAGES
from tests.support.sse_server import Answer, Request, Server

from . import answers
from .reading import answer, read, recorded

MS = 1_000_000

# llama.cpp's server, `timings` in its last chunk and in unary answers.
LLAMA_CPP = {
    "timings": {
        "cache_n": 236, "prompt_n": 1, "prompt_ms": 30.958, "prompt_per_token_ms": 30.958,
        "prompt_per_second": 32.3, "predicted_n": 35, "predicted_ms": 661.064,
        "predicted_per_token_ms": 18.89, "predicted_per_second": 52.94,
    }
}  # fmt: skip
# Dynamo's frontend, for `"nvext": {"extra_fields": ["timing"]}`.
DYNAMO = {
    "nvext": {
        "timing": {
            "request_received_ms": 1777312800000, "prefill_wait_time_ms": 12.5,
            "prefill_time_ms": 70.25, "ttft_ms": 82.75, "total_time_ms": 1000.125,
            "kv_hit_rate": 0.875,
        }
    }
}  # fmt: skip
# NIM with NIM_PER_REQ_METRICS_ENABLE=1.
NIM = {
    "stats": {
        "type": "NIM LLM Model Stats", "version": "0.1.0", "llm_input_token_length": 512,
        "llm_output_token_length": 64, "generation_time_in_ms": 800.0,
        "time_in_queue_in_ms": 10.0, "response_tokens": {
            "response_token_length": 64, "time_to_first_token_in_ms": 110.0,
            "token_to_token_time_in_ms": 12.0, "tokens_per_second": 80.0,
        },
    }
}  # fmt: skip
# SGLang's native answers; its points in time are of one clock.
SGLANG = {
    "meta_info": {
        "id": "d4b5", "finish_reason": {"type": "length", "length": 8}, "prompt_tokens": 17,
        "completion_tokens": 8, "cached_tokens": 4, "queue_time": 2.0, "e2e_latency": 3.25,
        "request_received_ts": 1790000000.0, "forward_entry_time": 1790000002.015625,
        "prefill_finished_time": 1790000002.140625, "request_finished_ts": 1790000003.25,
    }
}  # fmt: skip
VLLM = {"metrics": answers.METRICS}


def row_of(server: Server, mode: str, report: dict[str, Any], *, stream: bool) -> Row:
    """Return the row of a request whose answer holds a report, where its server puts it."""

    def script(_request: Request, reply: Answer) -> None:
        if not stream:
            choice = {"index": 0, "message": {"role": "assistant", "content": "x"},
                      "finish_reason": "stop"}  # fmt: skip
            reply.whole({**answers.delta(), "object": "chat.completion", "choices": [choice],
                         "usage": answers.USAGE, **report})  # fmt: skip
            return
        reply.head()
        reply.event(answers.delta("x"))
        reply.event(answers.delta(finish="stop") | report)
        reply.event("[DONE]")

    server.play(script)
    return recorded(lambda: (read if stream else answer)(mode, server))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("report", "wanted"),
    [
        (LLAMA_CPP, {"prefill": 30_958_000, "cached_tokens": 236}),
        (DYNAMO, {"gateway": 12_500_000, "name": "dynamo"}),
        (NIM, {"queue": 10 * MS}),
        (SGLANG, {"queue": 2000 * MS, "prefill": 125 * MS, "cached_tokens": 4}),
        (VLLM, {"queue": 1_500_000, "prefill": 20_250_000}),
    ],
    ids=["llama.cpp", "Dynamo", "NIM", "SGLang", "vLLM"],
)
def test_golden_answers(
    server: Server, mode: str, report: dict[str, Any], wanted: dict[str, Any], *, stream: bool
) -> None:
    """Each figure goes to the stage between whose events it lies, and to no other."""
    row = row_of(server, mode, report, stream=stream)

    timeline = row.timeline
    for stage in ("queue", "prefill", "gateway"):
        figure = getattr(timeline, stage)
        assert (None if figure is None else figure.ns) == wanted.get(stage)
        assert figure is None or figure.source == "engine_inband"
    assert row.gateway == wanted.get("name")
    if "cached_tokens" in wanted:
        assert row.cached_tokens == wanted["cached_tokens"]
    assert row.stages.total == row.e2e_ns


def test_sglangs_report_in_its_choice(server: Server, mode: str) -> None:
    """Its chat endpoint has `meta_info` in the choice, where the request asks for it."""

    def script(_request: Request, reply: Answer) -> None:
        choice = {"index": 0, "message": {"role": "assistant", "content": "x"},
                  "finish_reason": "stop", **SGLANG}  # fmt: skip
        reply.whole({**answers.delta(), "object": "chat.completion", "choices": [choice],
                     "usage": answers.USAGE})  # fmt: skip

    server.play(script)
    row = recorded(lambda: answer(mode, server))
    assert row.timeline.queue is not None
    assert row.timeline.queue.ns == 2000 * MS


def test_another_servers_stats_are_not_nims(server: Server, mode: str) -> None:
    """LM Studio has `stats`, too, in seconds: only what names itself is read."""
    stats = {"stats": {"tokens_per_second": 51.4, "time_to_first_token": 0.111,
                       "time_in_queue_in_ms": 5.0}}  # fmt: skip
    row = row_of(server, mode, stats, stream=True)
    assert row.timeline.queue is row.timeline.prefill is None


@pytest.mark.parametrize("report", IN_ANSWERS, ids=lambda report: report.name)
@pytest.mark.parametrize("odd", [None, "x", 5, True, [], {}, {"timing": 3}, {"queue_time": "1"}])
def test_an_odd_report_is_none(report: engine_figures.Report, odd: object) -> None:
    """What is no report, or reports nothing that can be a duration, is passed over."""
    assert read_answer(report, odd) is None


def test_the_table_says_what_each_figure_is() -> None:
    """Only intervals of a stage's own two events make that stage; a figure is listed once."""
    assert set(STAGE_OF.values()) <= set(STAGES)
    for report in REPORTS:
        paths = [figure.path for figure in report.figures]
        assert len(set(paths)) == len(paths)
    stages = {
        (one.name, one.carrier, figure.path.rpartition(".")[2]): figure.stage
        for one in REPORTS
        for figure in one.figures
    }
    assert stages["vllm", "span", "time_in_model_prefill"] == "prefill"
    assert stages["sglang", "span", "time_in_model_prefill"] is None
    assert stages["dynamo", "response", "prefill_time_ms"] is None
    assert stages["llm_d", "span", "prefill_duration_ms"] is None
    assert stages["llm_d", "span", "true_ttft_ms"] is None
    assert stages["vllm", "response", "time_to_first_token_ms"] == "prefill"


def test_what_a_request_asks_for_is_on_its_row(server: Server, mode: str) -> None:
    """`max_tokens` and the model that answered are row fields; the rest are attributes."""
    server.play(
        answers.events(
            answers.delta("x") | {"model": "tiny-2026-11-01"},
            answers.delta(finish="stop") | {"model": "tiny-2026-11-01"},
            answers.usage_chunk(
                model="tiny-2026-11-01",
                usage={**answers.USAGE, "completion_tokens_details": {"reasoning_tokens": 4}},
            ),
        )
    )
    row = recorded(
        lambda: read(
            mode, server, max_tokens=64, temperature=0.2, top_p=0.9, seed=7,
            response_format={"type": "json_object"},
        )
    )  # fmt: skip
    assert (row.model, row.response_model) == ("tiny", "tiny-2026-11-01")
    assert (row.max_tokens, row.reasoning_tokens) == (64, 4)
    expected = {
        "gen_ai.request.temperature": 0.2,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.seed": 7,
        "gen_ai.output.type": "json",
    }
    assert expected.items() <= row.attributes.items()


def test_anthropics_cache_writes(server: Server, mode: str) -> None:
    """What was written to the cache is a field of its own, and part of the prompt."""
    usage = {"input_tokens": 10, "output_tokens": 6, "cache_creation_input_tokens": 2000,
             "cache_read_input_tokens": 300}  # fmt: skip

    def script(_request: Request, reply: Answer) -> None:
        reply.whole({"id": "msg_1", "type": "message", "role": "assistant", "model": "tiny",
                     "content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn",
                     "stop_sequence": None, "usage": usage})  # fmt: skip

    server.play(script)
    row = recorded(lambda: answer(mode, server, "messages"))
    assert (row.prompt_tokens, row.cached_tokens, row.cache_write_tokens) == (2310, 300, 2000)
