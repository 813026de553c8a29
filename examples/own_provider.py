"""llmtrace inside an application that has OpenTelemetry set up already."""

from __future__ import annotations

import os

import openai
from engine import endpoint
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import llmtrace

# What the application does anyway: its own provider, with its own exporters and sampling.
spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)

# llmtrace finds it, and sends its spans through it.
llmtrace.init("own-provider", exporters=[])

with endpoint() as (url, model):
    client = openai.OpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    llmtrace.instrument(openai)
    with trace.get_tracer("shop").start_as_current_span("handle order"):
        for _ in client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=10,
            stream=True,
        ):
            pass

for span in spans.get_finished_spans():
    duration_ms = (span.end_time - span.start_time) / 1e6
    parent = "" if span.parent is None else f"  under {span.parent.span_id:016x}"
    print(f"{span.context.span_id:016x} {span.name:20} {duration_ms:8.1f} ms{parent}")

llmtrace.shutdown()
