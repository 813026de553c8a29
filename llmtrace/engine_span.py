"""What does an engine's own OTLP span tell of the request it served?

vLLM, SGLang and TensorRT-LLM write the same `gen_ai.latency.*` attributes, in seconds. A request's
span and its row share a trace id, because the SDK sends `traceparent`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from llmtrace.stages import EngineFigures, Reported

_PREFIX: Final = "gen_ai.latency."
_NS: Final = 1_000_000_000
# A duration an engine reports is believed up to a day; beyond that it is garbage.
_LONGEST_S: Final = 86_400.0


def read_engine_span(attributes: Mapping[str, Any]) -> EngineFigures | None:
    """Read the engine's figures from a span's attributes, or `None` if it carries none.

    The front end is what TTFT as the engine counts it holds beside queue and prefill: template,
    tokenising, IPC, and waiting for the running step.
    """
    queue = _reported(attributes.get(f"{_PREFIX}time_in_queue"))
    prefill = _reported(attributes.get(f"{_PREFIX}time_in_model_prefill"))
    decode = _reported(attributes.get(f"{_PREFIX}time_in_model_decode"))
    ttft = _reported(attributes.get(f"{_PREFIX}time_to_first_token"))
    if queue is None and prefill is None and decode is None:
        return None
    frontend = None
    if ttft is not None and queue is not None and prefill is not None:
        frontend = Reported(max(0, ttft.ns - queue.ns - prefill.ns), "engine_span")
    return EngineFigures(queue=queue, prefill=prefill, decode=decode, frontend=frontend)


def _reported(seconds: Any) -> Reported | None:
    known = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not known or not 0 <= seconds < _LONGEST_S:
        return None
    return Reported(round(seconds * _NS), "engine_span")
