"""The vLLM metrics that the simulated engine keeps, and the events that change each.

Names, labels and buckets are those of vLLM 0.32; the help texts say that it is a simulation. The
functions know a `Meter`, not Prometheus: `llmtrace.simulator.server` brings the client library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from llmtrace.simulator.engine.scheduler import (
    EngineConfig,
    EngineState,
    Figures,
    Step,
    Token,
    kv_usage,
)

_REQUEST: Final = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip
_TTFT: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40,
    80, 160, 640, 2560,
)  # fmt: skip
_GAP: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
)  # fmt: skip
_TOKENS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
_STEP: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
_PREEMPTIONS: Final = (1, 2, 3, 4, 5, 10, 20)


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family; every value of its own label exists from the start, at zero."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    buckets: tuple[float, ...] = ()
    label: str | None = None
    values: tuple[str, ...] = ()


class Meter(Protocol):
    """Receiver of the engine's metrics."""

    def count(self, name: str, amount: float, value: str = "") -> None:
        """Add to a counter, under `value` of its own label if it has one."""

    def observe(self, name: str, amount: float) -> None:
        """Put one figure into a histogram."""


FAMILIES: Final = (
    Family("vllm:num_requests_running", "gauge", "Requests in the batch."),
    Family("vllm:num_requests_waiting", "gauge", "Requests in the queue."),
    Family(
        "vllm:num_requests_waiting_by_reason", "gauge", "Requests in the queue, by reason.",
        label="reason", values=("capacity", "deferred"),
    ),
    Family("vllm:kv_cache_usage_perc", "gauge", "Share of the KV cache in use, from 0 to 1."),
    Family("vllm:prompt_tokens", "counter", "Prompt tokens served."),
    Family(
        "vllm:prompt_tokens_by_source", "counter", "Prompt tokens by where they came from.",
        label="source", values=("local_compute", "local_cache_hit", "external_kv_transfer"),
    ),
    Family("vllm:prompt_tokens_cached", "counter", "Prompt tokens found in a cache."),
    Family("vllm:generation_tokens", "counter", "Output tokens made."),
    Family("vllm:prefix_cache_queries", "counter", "Prompt tokens looked up in the cache."),
    Family("vllm:prefix_cache_hits", "counter", "Prompt tokens found in the prefix cache."),
    Family("vllm:num_preemptions", "counter", "Sequences that lost their blocks."),
    Family(
        "vllm:request_success", "counter", "Requests finished.",
        label="finished_reason", values=("stop", "length", "abort", "error", "repetition"),
    ),
    Family("vllm:iteration_tokens_total", "histogram", "Tokens in a step.", _STEP),
    Family("vllm:time_to_first_token_seconds", "histogram", "Arrival to first token.", _TTFT),
    Family("vllm:inter_token_latency_seconds", "histogram", "Gap between two tokens.", _GAP),
    Family(
        "vllm:request_time_per_output_token_seconds", "histogram",
        "Time a token after the first, by request.", _GAP,
    ),
    Family("vllm:e2e_request_latency_seconds", "histogram", "Arrival to last token.", _REQUEST),
    Family("vllm:request_queue_time_seconds", "histogram", "Taken in to scheduled.", _REQUEST),
    Family("vllm:request_prefill_time_seconds", "histogram", "Scheduled to first.", _REQUEST),
    Family("vllm:request_decode_time_seconds", "histogram", "First to last token.", _REQUEST),
    Family("vllm:request_inference_time_seconds", "histogram", "Scheduled to last.", _REQUEST),
    Family("vllm:request_prompt_tokens", "histogram", "Prompt tokens a request.", _TOKENS),
    Family("vllm:request_generation_tokens", "histogram", "Output tokens a request.", _TOKENS),
    Family(
        "vllm:request_prefill_kv_computed_tokens", "histogram",
        "Prompt tokens a request that were not cached.", _TOKENS,
    ),
    Family(
        "vllm:request_num_preemptions", "histogram", "Preemptions a request.", _PREEMPTIONS
    ),
)  # fmt: skip

# Gauges are read at each scrape: family and value of its own label -> figure.
READINGS: Final[Mapping[tuple[str, str], Callable[[EngineConfig, EngineState], float]]] = {
    ("vllm:num_requests_running", ""): lambda _, state: len(state.running),
    ("vllm:num_requests_waiting", ""): lambda _, state: len(state.waiting),
    ("vllm:num_requests_waiting_by_reason", "capacity"): lambda _, state: len(state.waiting),
    ("vllm:kv_cache_usage_perc", ""): kv_usage,
}


def record_step(meter: Meter, step: Step, tokens: Sequence[Token]) -> None:
    """Book one step: its size, whom it admitted, the tokens it made and whom it finished.

    Like a real engine, what was aborted never reaches the figures of finished requests.
    """
    meter.observe("vllm:iteration_tokens_total", step.prefill_tokens + len(tokens))
    if step.preempted:
        meter.count("vllm:num_preemptions", step.preempted)
    for sequence in step.admitted:
        prompt, cached = sequence.request.prompt_tokens, sequence.cached
        meter.count("vllm:prompt_tokens", prompt)
        meter.count("vllm:prompt_tokens_by_source", prompt - cached, "local_compute")
        meter.count("vllm:prompt_tokens_by_source", cached, "local_cache_hit")
        meter.count("vllm:prompt_tokens_cached", cached)
        meter.count("vllm:prefix_cache_queries", prompt)
        meter.count("vllm:prefix_cache_hits", cached)
    meter.count("vllm:generation_tokens", len(tokens))
    for token in tokens:
        if token.gap_s is None:
            meter.observe("vllm:time_to_first_token_seconds", token.at_s - token.request.arrived_s)
        else:
            meter.observe("vllm:inter_token_latency_seconds", token.gap_s)
        if token.figures is not None:
            _record_finished(meter, token.figures)


def _record_finished(meter: Meter, figures: Figures) -> None:
    request = figures.request
    computed = request.prompt_tokens - figures.cached_tokens
    meter.count("vllm:request_success", 1, request.finish_reason)
    inference_s = figures.prefill_s + figures.decode_s
    for name, amount in (
        ("vllm:e2e_request_latency_seconds", figures.finished_s - request.arrived_s),
        ("vllm:request_queue_time_seconds", figures.queue_s),
        ("vllm:request_prefill_time_seconds", figures.prefill_s),
        ("vllm:request_decode_time_seconds", figures.decode_s),
        ("vllm:request_inference_time_seconds", inference_s),
        ("vllm:request_prompt_tokens", request.prompt_tokens),
        ("vllm:request_generation_tokens", request.output_tokens),
        ("vllm:request_prefill_kv_computed_tokens", computed),
        ("vllm:request_num_preemptions", figures.preemptions),
        # vLLM counts answers of one token as 0 here, and so does this.
        ("vllm:request_time_per_output_token_seconds", figures.tpot_s or 0.0),
    ):
        meter.observe(name, amount)
