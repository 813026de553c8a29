"""Convert vLLM's statistics of one finished request to a span.

Pure: vLLM's `FinishedRequestStats` in, a `Span` out. vLLM calls that class unstable, and it grew
from version to version, so that every field is looked for, checked, and unknown if it is odd.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from llmtrace.core.random_ids import random_id
from llmtrace.core.span import Span, Value
from llmtrace.engines import spans
from llmtrace.engines.join import client_ids

_NAME: Final = "llmtrace.engine_request"
_NS: Final = 1_000_000_000
_MAX_S: Final = 86_400.0
# An id holds what the client sent as X-Request-Id.
_MAX_ID: Final = 512
_MAX_REASON: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The attributes that all requests of one vLLM have in common.

    Attributes:
        service: the name its spans go by.
        model: as served.
        replica: which of several engines with that name: the host.
        version: vLLM's.
        parallel: whether several engines share the replica (data parallel).
        kv_connector: the connector that loads KV blocks of other engines or tiers, if any.
    """

    service: str
    model: str | None = None
    replica: str | None = None
    version: str | None = None
    parallel: bool = False
    kv_connector: str | None = None


def finished_request(
    stats: Any, engine: Engine, *, finished_at: float, engine_index: Any = 0
) -> Span | None:
    """Make the span of a finished request, or `None` where vLLM does not identify it.

    Its trace is its own: vLLM does not pass the client's to a stat logger. It starts when the
    request arrived, by vLLM's clock, and lasts until vLLM was done with it.

    Args:
        stats: one of `IterationStats.finished_requests`.
        engine: which vLLM this is.
        finished_at: unix time of the iteration, in seconds.
        engine_index: which of the data parallel engines served it.
    """
    engine_id = getattr(stats, "request_id", None)
    if not isinstance(engine_id, str) or not engine_id:
        return None
    engine_id = engine_id[:_MAX_ID]
    reason = _reason(getattr(stats, "finish_reason", None))
    attributes = _attributes(stats, engine, engine_id, _count(engine_index))
    attributes["gen_ai.response.finish_reasons"] = None if reason is None else (reason,)
    e2e = _seconds(getattr(stats, "e2e_latency", None))
    attributes[spans.E2E] = e2e
    duration_ns = round((e2e or 0.0) * _NS)
    return Span(
        name=_NAME,
        kind="server",
        trace_id=random_id(16),
        span_id=random_id(8),
        service=engine.service,
        start=max(0, round(finished_at * _NS) - duration_ns),
        duration_ns=duration_ns,
        attributes={name: value for name, value in attributes.items() if value is not None},
        error="the engine failed" if reason == "error" else None,
    )


def _attributes(
    stats: Any, engine: Engine, engine_id: str, index: int | None
) -> dict[str, Value | None]:
    """Return what vLLM reports of a request, `None` where it does not."""
    ids = client_ids(engine_id)
    replica = engine.replica
    if engine.parallel and replica is not None and index is not None:
        replica = f"{replica}/{index}"
    queue = _passed(getattr(stats, "queued_time", None))
    prefill = _passed(getattr(stats, "prefill_time", None))
    inference = decode = None
    if prefill is not None:
        # vLLM counts from stamps that are 0 where nothing was stamped. With one token there is
        # nothing to decode, and that is known.
        inference = _passed(getattr(stats, "inference_time", None))
        decode = _seconds(getattr(stats, "decode_time", None))
    return {
        spans.ENGINE_SOURCE: spans.PLUGIN,
        spans.ENGINE_ID: engine_id,
        spans.ENGINE_INDEX: index,
        spans.ENGINE_VERSION: engine.version,
        spans.NAMES["response_id"]: ids.response_id,
        spans.NAMES["request_id"]: ids.request_id,
        spans.NAMES["provider"]: "vllm",
        spans.NAMES["model"]: engine.model,
        spans.NAMES["replica"]: replica,
        spans.NAMES["kv_connector"]: engine.kv_connector,
        spans.QUEUE: queue,
        spans.PREFILL: prefill,
        spans.DECODE: decode,
        spans.INFERENCE: inference,
        spans.NAMES["prompt_tokens"]: _count(getattr(stats, "num_prompt_tokens", None)),
        spans.NAMES["cached_tokens"]: _count(getattr(stats, "num_cached_tokens", None)),
        spans.NAMES["output_tokens"]: _count(getattr(stats, "num_generation_tokens", None)),
        spans.NAMES["preemptions"]: _count(getattr(stats, "num_preemptions", None)),
    }


def _seconds(value: Any) -> float | None:
    """Read a duration. One that is negative comes of a stamp that is missing."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known and 0 <= value < _MAX_S else None


def _passed(value: Any) -> float | None:
    """Read a duration that takes some time whenever it is measured: 0 is one that was not."""
    return _seconds(value) or None


def _count(value: Any) -> int | None:
    known = isinstance(value, int) and not isinstance(value, bool)
    return value if known and value >= 0 else None


def _reason(value: Any) -> str | None:
    """Read vLLM's `FinishReason`, whose text is `stop`, `length`, `abort`, `error`, …."""
    return None if value is None else str(value)[:_MAX_REASON]
