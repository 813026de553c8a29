"""Find the endpoint of a call to a model, and how its chunks and responses are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from llmtrace.core.recording import Recording
from llmtrace.instrumentation.llm_sdks import chunks
from llmtrace.instrumentation.streams.chunk_timing import Classify

SDKS: Final = ("openai", "anthropic")
# Providers by host or host suffix, by OpenTelemetry's names.
_PROVIDERS: Final[Mapping[str, str]] = {
    "api.openai.com": "openai",
    "api.anthropic.com": "anthropic",
    "api.cohere.com": "cohere",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral_ai",
    "api.perplexity.ai": "perplexity",
    "api.x.ai": "x_ai",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    "openai.azure.com": "azure.ai.openai",
    "services.ai.azure.com": "azure.ai.inference",
}
# The SDKs' own clients for other platforms.
_CLIENTS: Final[Mapping[str, str]] = {
    "AzureOpenAI": "azure.ai.openai",
    "AsyncAzureOpenAI": "azure.ai.openai",
    "AnthropicBedrock": "aws.bedrock",
    "AsyncAnthropicBedrock": "aws.bedrock",
    "AnthropicVertex": "gcp.vertex_ai",
    "AsyncAnthropicVertex": "gcp.vertex_ai",
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One kind of call: how its chunks and its unary responses are read."""

    operation: str
    chunk: Classify
    answer: Callable[[Recording, Any], None]
    usage_option: bool = False


# By SDK, and by the end of the URL's path: OpenAI has `/messages` too, and they are no requests
# to a model.
_ENDPOINTS: Final[Mapping[str, Mapping[str, Endpoint]]] = {
    "openai": {
        "/chat/completions": Endpoint("chat", chunks.chat, chunks.answer_chat, usage_option=True),
        "/completions": Endpoint(
            "text_completion", chunks.completions, chunks.answer_chat, usage_option=True
        ),
        "/responses": Endpoint("chat", chunks.responses, chunks.answer_responses),
    },
    "anthropic": {"/messages": Endpoint("chat", chunks.messages, chunks.answer_messages)},
}


@lru_cache(maxsize=256)
def endpoint_at(url: str, sdk: str | None) -> Endpoint | None:
    """Find the endpoint of a URL or its path; `None` for every other call."""
    path = url.partition("?")[0].rstrip("/")
    known = _ENDPOINTS.get(sdk or "", {})
    return next((found for end, found in known.items() if path.endswith(end)), None)


def plain_endpoint(path: str) -> tuple[str, Endpoint] | None:
    """Find the endpoint of a URL's path on any server, and the SDK whose protocol it is."""
    found = ((sdk, endpoint_at(path, sdk)) for sdk in SDKS)
    return next(((sdk, endpoint) for sdk, endpoint in found if endpoint is not None), None)


def library(value: Any) -> str | None:
    """Name the SDK that a class is of, or derives from; `None` if of neither."""
    kind: Any = type(value)
    return _library(kind)


@lru_cache(maxsize=256)
def _library(kind: Any) -> str | None:
    roots = (one.__module__.partition(".")[0] for one in kind.__mro__)
    return next((root for root in roots if root in SDKS), None)


@lru_cache(maxsize=256)
def provider_of(host: str, kind: Any = None) -> str | None:
    """Name the provider, by OpenTelemetry's names; `None` = neither host nor client shows it."""
    for base in () if kind is None else kind.__mro__:
        if base.__name__ in _CLIENTS and base.__module__.partition(".")[0] in SDKS:
            return _CLIENTS[base.__name__]
    for end, provider in _PROVIDERS.items():
        # Google's have the region before a hyphen: us-central1-aiplatform.googleapis.com.
        if host == end or host.endswith((f".{end}", f"-{end}")):
            return provider
    return None


def is_stream(value: Any) -> bool:
    """Return whether a value is one of the SDKs' own streams, not yet timed."""
    kind = type(value)
    return (
        kind.__name__ in {"Stream", "AsyncStream"}
        and kind.__module__.partition(".")[0] in SDKS
        and not hasattr(value, "_llmtrace")
    )


def classify_for(stream: Any) -> Classify:
    """Return the classifier of a stream's chunks, by the address of its request."""
    found = endpoint_at(stream.response.request.url.path, library(stream))
    return chunks.anything if found is None else found.chunk
