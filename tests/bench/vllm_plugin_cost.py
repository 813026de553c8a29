"""What does the plugin in vLLM cost it: a step of the engine, and a finished request?

    python -m tests.bench.vllm_plugin_cost

`record` runs on vLLM's event loop; what it hands over is written and sent by a thread. The stats
have the fields of vLLM 0.32, with 256 requests running.
"""

from __future__ import annotations

import os
import timeit
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from llmtrace.core.span import Span
from llmtrace.engines.vllm_plugin.stat_logger import SWITCH, Reporter
from llmtrace.exporters.otlp.encode import Resources, encode

CALLS = 5_000
ROUNDS = 9
RUNNING = 256
FINISHED = 16


def finished_request(number: int) -> SimpleNamespace:
    """Make what vLLM tells of one finished request."""
    return SimpleNamespace(
        finish_reason="length", request_id=f"chatcmpl-lt-{number:016x}", e2e_latency=1.5,
        num_prompt_tokens=512 + number, num_preemptions=0, num_generation_tokens=128,
        max_tokens_param=128, queued_time=0.04, prefill_time=0.2, inference_time=1.4,
        decode_time=1.2, mean_time_per_output_token=0.0094, is_corrupted=False,
        num_cached_tokens=256,
    )  # fmt: skip


def step(finished: int) -> SimpleNamespace:
    """Make what vLLM tells after a step that ended so many requests."""
    return SimpleNamespace(
        iteration_timestamp=1_800_000_000.0,
        num_generation_tokens=RUNNING,
        inter_token_latencies_iter=[0.0094] * RUNNING,
        finished_requests=[finished_request(number) for number in range(finished)],
    )


class Keep:
    """A sink that keeps the last spans."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def write(self, span: Span) -> None:
        """Keep it, and not too many."""
        if len(self.spans) < FINISHED:
            self.spans.append(span)


def best_us(call: Callable[[], Any], times: int = CALLS) -> float:
    """Return the microseconds of a call, in the best round."""
    return min(timeit.repeat(call, number=times, repeat=ROUNDS)) / times * 1e6


def main() -> None:
    """Print the figures."""
    os.environ[SWITCH] = "1"
    on: Any = Reporter()
    on._sink.close()
    on._sink = Keep()
    os.environ[SWITCH] = "0"
    off = Reporter()
    none, some = step(0), step(FINISHED)
    resources = Resources()

    def record(reporter: Any, stats: Any) -> Callable[[], None]:
        return lambda: reporter.record(
            scheduler_stats=None, iteration_stats=stats, mm_cache_stats=None, engine_idx=0
        )

    print(f"a step, plugin off             {best_us(record(off, some)):6.2f} µs")
    print(f"a step that ends no request    {best_us(record(on, none)):6.2f} µs")
    ended = best_us(record(on, some), CALLS // FINISHED) / FINISHED
    print(f"a finished request             {ended:6.2f} µs")
    spans = on._sink.spans
    written = best_us(lambda: list(encode(spans, resources, 1 << 20)), CALLS // FINISHED)
    print(f"writing it, on the thread      {written / FINISHED:6.2f} µs")


if __name__ == "__main__":
    main()
