"""Send requests to the simulated server, and read its responses."""

from __future__ import annotations

import json
from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from llmtrace.simulator.engine.scheduler import EngineConfig
from llmtrace.simulator.server import SimulatedServer

MODEL = "llmtrace-sim"
FAST = EngineConfig(base_s=0.001, sequence_s=0.0, prefill_token_s=1e-5, jitter=0.0)
# Keys of vLLM 0.32's in-band figures, in a stream and in a whole answer.
FIGURES = {
    "time_to_first_token_ms",
    "generation_time_ms",
    "queue_time_ms",
    "mean_itl_ms",
    "tokens_per_second",
}
WHOLE_FIGURES = FIGURES | {"speculative_decoding"}


def chat(text: str = "hello", **more: object) -> dict[str, object]:
    """Return the body of a chat request."""
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **more}


def streamed(text: str = "hello", tokens: int = 5, **more: object) -> dict[str, object]:
    """Return the body of a streamed chat of so many tokens, usage included."""
    options = {"include_usage": True}
    return chat(text, stream=True, max_tokens=tokens, stream_options=options, **more)


def post(server: SimulatedServer, path: str, body: object, **headers: str) -> httpx2.Response:
    """Post a body; header names are written with underscores."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.post(server.url + path, json=body, headers=named, timeout=30)


def faulty(faults: str) -> dict[str, str]:
    """Return the header that asks for faults."""
    return {"x-llmtrace-sim": faults}


def payloads(response: httpx2.Response) -> list[dict[str, Any]]:
    """Return the JSON of every event of a stream, `[DONE]` left out."""
    lines = [line for line in response.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def metric(server: SimulatedServer, name: str, **labels: str) -> float:
    """Return one sample of /metrics."""
    text = httpx2.get(server.root + "/metrics").text
    [value] = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return value


def extra_of(answer: Any) -> dict[str, Any]:
    """Return what an answer of an SDK carries beyond the protocol."""
    return answer.model_extra or {}
