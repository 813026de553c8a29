"""The vLLM metrics that the simulated engine keeps, and the events that change each.

Names, labels and buckets are those of vLLM 0.32; the help texts say that it is a simulation. The
functions know a `Meter`, not Prometheus: `prometheus.py` has the client library.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final, Literal, Protocol

from llmtrace.simulator.engine import scheduler


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
    """What the engine's metrics are written to."""

    def count(self, name: str, amount: float, value: str = "") -> None:
        """Add to a counter, under `value` of its own label if it has one."""

    def observe(self, name: str, amount: float) -> None:
        """Put one figure into a histogram."""


_TABLE: Final = tomllib.loads(files(__package__).joinpath("metrics.toml").read_text("utf-8"))
FAMILIES: Final = tuple(
    Family(
        **one | {"buckets": tuple(_TABLE["buckets"].get(one.get("buckets"), ())),
                 "values": tuple(one.get("values", ()))}
    )
    for one in _TABLE["families"]
)  # fmt: skip

# Gauges are read at each scrape: family and value of its own label -> figure.
READINGS: Final[
    Mapping[tuple[str, str], Callable[[scheduler.EngineConfig, scheduler.EngineState], float]]
] = {
    ("vllm:num_requests_running", ""): lambda _, state: len(state.running),
    ("vllm:num_requests_waiting", ""): lambda _, state: len(state.waiting),
    ("vllm:num_requests_waiting_by_reason", "capacity"): lambda _, state: len(state.waiting),
    ("vllm:kv_cache_usage_perc", ""): scheduler.kv_usage,
}


def record_step(meter: Meter, step: scheduler.Step, tokens: Sequence[scheduler.Token]) -> None:
    """Record one step: its size, the sequences it admitted and finished, and the tokens it made.

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


def _record_finished(meter: Meter, figures: scheduler.Figures) -> None:
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
