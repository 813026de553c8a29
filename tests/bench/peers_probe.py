"""What does one SDK add to the OpenAI client? One process of the benchmark beside the others.

Runs in the virtual environment of one of them, with `bare` or its name; reads a command a line,
answers with a line of JSON. See peers.py.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import httpx2
import openai

from tests.bench.cold import evict
from tests.bench.replay import MESSAGES, replaying

Flush = Callable[[], object]
OPTIONS: Any = {"include_usage": True}


# --- each SDK, as its own documents say, recording no content where that can be set --------------


def bare(_endpoint: str) -> Flush:
    """Use the client alone."""
    return lambda: None


def llmtrace(endpoint: str) -> Flush:
    """Set up llmtrace."""
    import llmtrace as sdk

    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = endpoint
    os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/protobuf"
    sdk.init("bench", exporters=["otlp"], instrument=["openai"])
    return sdk.flush


def opentelemetry(endpoint: str) -> Flush:
    """Set up OpenTelemetry's own GenAI instrumentation."""
    os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "no_content"
    from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor

    tracers, meters, flush = _providers(endpoint)
    OpenAIInstrumentor().instrument(tracer_provider=tracers, meter_provider=meters)
    return flush


def openllmetry(endpoint: str) -> Flush:
    """Set up OpenLLMetry's instrumentation."""
    os.environ["TRACELOOP_TRACE_CONTENT"] = "false"
    from opentelemetry.instrumentation.openai import OpenAIInstrumentor

    tracers, meters, flush = _providers(endpoint)
    OpenAIInstrumentor().instrument(tracer_provider=tracers, meter_provider=meters)
    return flush


def openinference(endpoint: str) -> Flush:
    """Set up OpenInference's instrumentation."""
    from openinference.instrumentation import TraceConfig
    from openinference.instrumentation.openai import OpenAIInstrumentor

    tracers, _, flush = _providers(endpoint)
    hidden = TraceConfig(hide_inputs=True, hide_outputs=True)
    OpenAIInstrumentor().instrument(tracer_provider=tracers, config=hidden)
    return flush


def langfuse(endpoint: str) -> Flush:
    """Set up Langfuse's own integration; what is asked and answered it always records."""
    os.environ |= {
        "LANGFUSE_PUBLIC_KEY": "pk-lf-bench",
        "LANGFUSE_SECRET_KEY": "sk-lf-bench",
        "LANGFUSE_BASE_URL": endpoint,
    }
    import langfuse.openai  # noqa: F401 - patches the OpenAI SDK
    from langfuse import get_client

    return get_client().flush


def logfire(endpoint: str) -> Flush:
    """Set up Logfire; what is asked and answered it always records."""
    import logfire as sdk
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    sdk.configure(
        send_to_logfire=False,
        console=False,
        inspect_arguments=False,
        additional_span_processors=[
            BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces"))
        ],
        metrics=sdk.MetricsOptions(
            additional_readers=[
                PeriodicExportingMetricReader(
                    OTLPMetricExporter(endpoint=f"{endpoint}/v1/metrics")
                )
            ]
        ),
    )
    sdk.instrument_openai()
    return sdk.force_flush


def _providers(endpoint: str) -> tuple[Any, Any, Flush]:
    """Make OpenTelemetry's providers with its batching OTLP exporters."""
    from opentelemetry import metrics, trace
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    tracers = TracerProvider()
    tracers.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces"))
    )
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=f"{endpoint}/v1/metrics"))
    meters = MeterProvider(metric_readers=[reader])
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(meters)

    def flush() -> None:
        tracers.force_flush()
        meters.force_flush()

    return tracers, meters, flush


SDKS = {
    made.__name__: made
    for made in (bare, llmtrace, opentelemetry, openllmetry, openinference, langfuse, logfire)
}


# --- what is measured ----------------------------------------------------------------------------


class Asking:
    """Asks for streams, sync and async, over a transport or over the network."""

    def __init__(self, url: str, transport: Any = None) -> None:
        self.sync = openai.OpenAI(
            base_url=url, api_key="none", http_client=httpx2.Client(transport=transport)
        )
        self.asynchronous = openai.AsyncOpenAI(
            base_url=url, api_key="none", http_client=httpx2.AsyncClient(transport=transport)
        )

    def create(self, how: str, model: str = "m") -> Any:
        """Ask, and return the stream, or what to await for it."""
        client: Any = self.sync if how == "sync" else self.asynchronous
        return client.chat.completions.create(
            model=model, messages=MESSAGES, stream=True, stream_options=OPTIONS
        )

    def read(self, how: str) -> None:
        """Ask, and read the whole stream at once."""
        if how == "sync":
            for _ in self.create("sync"):
                pass
        else:
            loop().run_until_complete(self._aread())

    async def _aread(self) -> None:
        async for _ in await self.create("async"):
            pass


@lru_cache(maxsize=1)
def loop() -> asyncio.AbstractEventLoop:
    """Return the loop that all async clients belong to."""
    return asyncio.new_event_loop()


def cpu(
    ask: Callable[[], None], times: int, flush: Flush | None = None, *, cold: bool = False
) -> float:
    """Return the CPU microseconds of one call, of all threads.

    Args:
        ask: the call.
        times: how often it is made.
        flush: called at the end, and counted.
        cold: whether the caches are evicted before each call, which is not counted.
    """
    gc.collect()
    began, evicting = time.process_time_ns(), 0
    for _ in range(times):
        if cold:
            before = time.process_time_ns()
            evict()
            evicting += time.process_time_ns() - before
        ask()
    if flush is not None:
        flush()
    return (time.process_time_ns() - began - evicting) / times / 1e3


def growth(how: str, tokens: int) -> int:
    """Return by how many bytes an open stream grows between its 100th and its last chunk."""
    asking = Asking("http://replay/v1", replaying(tokens))
    if how == "sync":
        stream = iter(asking.create("sync"))
        pull: Callable[[], Any] = stream.__next__
    else:
        stream = aiter(loop().run_until_complete(asking.create("async")))
        pull = lambda: loop().run_until_complete(stream.__anext__())  # noqa: E731
    for _ in range(50):
        pull()
    tracemalloc.start()
    for _ in range(50):
        pull()
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(tokens - 100):
        pull()
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return after - before


def reading(asking: Asking, how: str, late_s: float, slow_s: float) -> dict[str, Any]:
    """Read one stream late, or slowly; return when it began, and what its reader's clock says."""
    if how == "sync":
        return _reading(asking, late_s, slow_s)
    return loop().run_until_complete(_areading(asking, late_s, slow_s))


def _reading(asking: Asking, late_s: float, slow_s: float) -> dict[str, Any]:
    began = time.monotonic_ns()
    stream = asking.create("sync", "paced")
    held, first_s = _sleep(late_s), None
    for _ in stream:
        first_s = first_s or _since(began)
        held += _sleep(slow_s)
    return {"began": began, "first_s": first_s, "wall_s": _since(began), "held_s": held}


async def _areading(asking: Asking, late_s: float, slow_s: float) -> dict[str, Any]:
    began = time.monotonic_ns()
    stream = await asking.create("async", "paced")
    held, first_s = await _asleep(late_s), None
    async for _ in stream:
        first_s = first_s or _since(began)
        held += await _asleep(slow_s)
    return {"began": began, "first_s": first_s, "wall_s": _since(began), "held_s": held}


def _sleep(seconds: float) -> float:
    began = time.monotonic_ns()
    if seconds:
        time.sleep(seconds)
    return _since(began)


async def _asleep(seconds: float) -> float:
    began = time.monotonic_ns()
    if seconds:
        await asyncio.sleep(seconds)
    return _since(began)


def _since(began: int) -> float:
    return (time.monotonic_ns() - began) / 1e9


def main(name: str, endpoint: str) -> None:
    """Answer commands until there are no more."""
    flush = SDKS[name](endpoint)
    replays: dict[int, Asking] = {}
    wire = Asking(f"{endpoint}/v1")

    def replayed(tokens: int) -> Asking:
        if tokens not in replays:
            replays[tokens] = Asking("http://replay/v1", replaying(tokens))
        return replays[tokens]

    def chunks(how: str, tokens: int, times: int) -> float:
        return cpu(lambda: replayed(tokens).read(how), times)

    def requests(how: str, times: int, *, cold: bool = False) -> float:
        return cpu(lambda: wire.read(how), times, flush, cold=cold)

    def late(how: str, seconds: float) -> dict[str, Any]:
        observed = reading(wire, how, seconds, 0)
        flush()
        return observed

    def slow(how: str, seconds: float) -> dict[str, Any]:
        observed = reading(wire, how, 0, seconds)
        flush()
        return observed

    def versions(packages: list[str]) -> dict[str, str]:
        return {package: version(package) for package in packages}

    commands: dict[str, Callable[..., Any]] = {
        "chunks": chunks, "requests": requests, "growth": growth, "late": late, "slow": slow,
        "versions": versions, "flush": lambda: bool(flush() or True),
    }  # fmt: skip
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an SDK prints is no answer
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(commands[command.pop("do")](**command)), file=answers, flush=True)
    os._exit(0)  # nothing waits for the SDKs' threads


if __name__ == "__main__":
    main(*sys.argv[1:])
