"""Read an engine's figures from its spans: its own OTLP span, or that of our plugin.

vLLM and TensorRT-LLM write `gen_ai.latency.*` attributes, in seconds; SGLang writes the same names
and means other intervals by them: `core.engine_figures` has the table. A request's own span and
its row share a trace id, because the SDK sends `traceparent`. Our plugin in vLLM
(`vllm_plugin`) sees no trace, so its spans are joined by request id (`engines.join`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from llmtrace.core.engine_figures import SGLANG_SLICES, SGLANG_SPAN, VLLM_SPAN, read_attributes
from llmtrace.core.row_fields import PLAIN
from llmtrace.core.stages import EngineFigures, Reported, Source, reported

# The engine's own id of a request: as vLLM writes it, too.
ENGINE_ID: Final = "gen_ai.request.id"
# On every span of our plugin, and on no other; its value is the source of the figures.
ENGINE_SOURCE: Final = "llmtrace.engine.source"
PLUGIN: Final[Source] = "engine_plugin"
ENGINE_INDEX: Final = "llmtrace.engine.index"
ENGINE_VERSION: Final = "llmtrace.engine.version"
QUEUE: Final = "gen_ai.latency.time_in_queue"
PREFILL: Final = "gen_ai.latency.time_in_model_prefill"
DECODE: Final = "gen_ai.latency.time_in_model_decode"
INFERENCE: Final = "gen_ai.latency.time_in_model_inference"
TTFT: Final = "gen_ai.latency.time_to_first_token"
E2E: Final = "gen_ai.latency.e2e"

# SGLang's spans of one stage each, and the stage.
SGLANG_SCOPE: Final = "sglang server"
SLICES: Final = {one.path: one.stage for one in SGLANG_SLICES.figures if one.stage is not None}

# Attributes that rows have too have the same names.
NAMES: Final = {attribute.field: attribute.name for attribute in PLAIN}

_NS: Final = 1_000_000_000
_MAX: Final = 1 << 53
_MAX_TEXT: Final = 512


def read_engine_span(attributes: Mapping[str, Any]) -> EngineFigures | None:
    """Read the engine's figures from a span's attributes, or `None` if it carries none.

    The front end is the engine's TTFT less queue and prefill: template,
    tokenising, IPC, and waiting for the running step. A span without `time_in_queue` is SGLang's,
    whose prefill begins where the request was dispatched and holds its queue: it is left out.
    """
    report = SGLANG_SPAN if _reported(attributes, QUEUE) is None else VLLM_SPAN
    times = read_attributes(report, attributes, "engine_span")
    if not times:
        return None
    queue, prefill, ttft = times.get("queue"), times.get("prefill"), _reported(attributes, TTFT)
    frontend = None
    if ttft is not None and queue is not None and prefill is not None:
        frontend = Reported(max(0, ttft.ns - queue.ns - prefill.ns), "engine_span")
    found: dict[str, Any] = {**times, "frontend": frontend}
    return EngineFigures(**found)


def read_plugin_span(attributes: Mapping[str, Any]) -> tuple[str, EngineFigures] | None:
    """Read the span our plugin in vLLM wrote for a request, or `None` if this is not one.

    The front end is the request's time in vLLM less queue and inference, since the plugin does not
    receive TTFT: it includes the last token's transfer to the front end, not the first's.

    Returns:
        The engine's own id of the request (see `join.client_ids`), and its figures.
    """
    engine_id = _text(attributes, ENGINE_ID)
    if attributes.get(ENGINE_SOURCE) != PLUGIN or engine_id is None:
        return None
    queue = _reported(attributes, QUEUE, PLUGIN)
    inference = _reported(attributes, INFERENCE, PLUGIN)
    e2e = _reported(attributes, E2E, PLUGIN)
    frontend = None
    if e2e is not None and queue is not None and inference is not None:
        frontend = Reported(max(0, e2e.ns - queue.ns - inference.ns), PLUGIN)
    return engine_id, EngineFigures(
        queue=queue,
        prefill=_reported(attributes, PREFILL, PLUGIN),
        decode=_reported(attributes, DECODE, PLUGIN),
        frontend=frontend,
        prompt_tokens=_count(attributes, NAMES["prompt_tokens"]),
        cached_tokens=_count(attributes, NAMES["cached_tokens"]),
        output_tokens=_count(attributes, NAMES["output_tokens"]),
        preemptions=_count(attributes, NAMES["preemptions"]),
        replica=_text(attributes, NAMES["replica"]),
        kv_connector=_text(attributes, NAMES["kv_connector"]),
        engine=_text(attributes, NAMES["replica"]),
    )


def _reported(
    attributes: Mapping[str, Any], name: str, source: Source = "engine_span"
) -> Reported | None:
    return reported(attributes.get(name), _NS, source)


def _count(attributes: Mapping[str, Any], name: str) -> int | None:
    value = attributes.get(name)
    known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX
    return value if known else None


def _text(attributes: Mapping[str, Any], name: str) -> str | None:
    value = attributes.get(name)
    known = isinstance(value, str) and 0 < len(value) <= _MAX_TEXT
    return value if known else None
