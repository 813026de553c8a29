"""Send the spans of one streamed and one failed call as another instrumentation records them.

`python -m tests.contact.senders NAME ROOT`, in the environment of scripts/install_contact.py, with
OTEL_EXPORTER_OTLP_ENDPOINT naming where spans go. `record_senders` keeps what arrives there.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

# A server of the simulator rejects the first attempts of a request by this header.
FAILS: Final = {"x-llmtrace-sim": "reject_first=9"}
MESSAGES: Final = [{"role": "user", "content": "hi"}]


def _provider(exporter: Any = None) -> Any:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter or OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider


def _calls(root: str) -> None:
    """Make both calls by the OpenAI SDK."""
    import openai

    _both(openai.OpenAI, root)


def _both(make: Any, root: str) -> None:
    """Make a streamed call and one that fails, within a span of the application."""
    import openai
    from opentelemetry import trace

    client = make(base_url=f"{root}/v1", api_key="none", max_retries=0)
    given: dict[str, Any] = {"model": "sim", "messages": MESSAGES, "max_tokens": 16}
    options = {"include_usage": True}
    with trace.get_tracer("app").start_as_current_span("POST /ask"):
        for _ in client.chat.completions.create(**given, stream=True, stream_options=options):
            pass
        with suppress(openai.RateLimitError):
            client.chat.completions.create(**given, extra_headers=FAILS)


def _instrumented(module: str, name: str, exporter: Callable[[], Any] = lambda: None) -> Any:
    def send(root: str) -> None:
        provider = _provider(exporter())
        getattr(__import__(module, fromlist=[name]), name)().instrument()
        _calls(root)
        provider.shutdown()

    return send


def _logfire(root: str) -> None:
    import logfire

    logfire.configure(send_to_logfire=False, console=False)
    logfire.instrument_openai()
    _calls(root)
    logfire.shutdown()


def _pydantic_ai(root: str) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.exceptions import ModelHTTPError
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = _provider()
    Agent.instrument_all()
    model = OpenAIChatModel("sim", provider=OpenAIProvider(base_url=f"{root}/v1", api_key="none"))

    async def both() -> None:
        async with Agent(model).run_stream("hi", model_settings={"max_tokens": 16}) as answer:
            async for _ in answer.stream_text(delta=True):
                pass
        with suppress(ModelHTTPError):
            await Agent(model).run("hi", model_settings={"extra_headers": FAILS})

    asyncio.run(both())
    provider.shutdown()


def _langfuse(root: str) -> None:
    from langfuse import Langfuse
    from langfuse.openai import OpenAI
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    made = Langfuse(
        public_key="pk", secret_key="sk", base_url=root, span_exporter=OTLPSpanExporter()
    )
    _both(OpenAI, root)
    made.flush()


def _litellm(root: str) -> None:
    import litellm
    from litellm.litellm_core_utils.thread_pool_executor import executor

    os.environ["OTEL_EXPORTER"] = "otlp_http"
    provider = _provider()
    given: dict[str, Any] = {"model": "openai/sim", "messages": MESSAGES, "max_tokens": 16}
    given |= {"api_base": f"{root}/v1", "api_key": "none", "max_retries": 0}
    options = {"include_usage": True}
    with suppress(litellm.RateLimitError):  # the first call imports for seconds
        litellm.completion(**given, extra_headers=FAILS)
    litellm.callbacks = ["otel"]
    for _ in litellm.completion(**given, stream=True, stream_options=options):
        pass
    with suppress(litellm.RateLimitError):
        litellm.completion(**given, extra_headers=FAILS)
    executor.shutdown()  # its threads make the spans when the calls have ended
    provider.shutdown()


def _strands(*instrumented: str) -> Callable[[str], None]:
    def send(root: str) -> None:
        from strands import Agent
        from strands.models.openai import OpenAIModel
        from strands.types.exceptions import MaxTokensReachedException, ModelThrottledException

        provider = _provider()
        for module in instrumented:
            __import__(module, fromlist=["x"]).OpenAIInstrumentor().instrument()
        for headers in ({}, FAILS):
            client = {"api_key": "none", "base_url": f"{root}/v1", "max_retries": 0}
            model = OpenAIModel(
                client_args={**client, "default_headers": headers},
                model_id="sim",
                params={"max_tokens": 16},
            )
            with suppress(MaxTokensReachedException, ModelThrottledException):
                Agent(model=model, callback_handler=None, retry_strategy=None)("hi")
        provider.shutdown()

    return send


def _json_exporter() -> Any:
    from opentelemetry.exporter.otlp.json.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


SENDERS: Final[Mapping[str, Callable[[str], None]]] = {
    "openllmetry": _instrumented("opentelemetry.instrumentation.openai", "OpenAIInstrumentor"),
    "openinference": _instrumented("openinference.instrumentation.openai", "OpenAIInstrumentor"),
    "logfire": _logfire,
    "pydantic-ai": _pydantic_ai,
    "langfuse": _langfuse,
    "litellm": _litellm,
    # Not in the environment: `record_senders --packages`.
    "strands": _strands(),
    "strands-openllmetry": _strands("opentelemetry.instrumentation.openai"),
    "opentelemetry": _instrumented(
        "opentelemetry.instrumentation.genai.openai", "OpenAIInstrumentor", _json_exporter
    ),
}  # fmt: skip


def main() -> None:
    """Send what the sender of this name records."""
    name, root = sys.argv[1:]
    SENDERS[name](root)


if __name__ == "__main__":
    main()
