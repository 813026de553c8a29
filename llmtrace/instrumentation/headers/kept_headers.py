"""List the response headers that are kept on the row as they came.

They are a provider's or gateway's own reports that cannot be turned into a stage, for people who
read the row. Nothing here identifies a user or grants access: no cookies, no keys, no accounts, no
prices.
"""

from __future__ import annotations

from typing import Final

MAX: Final = 32
MAX_LENGTH: Final = 256

_NAMES: Final = frozenset(
    {
        # Ids to quote to the provider: OpenAI, Anthropic, Cloudflare, Azure, AWS, LiteLLM.
        "x-request-id", "request-id", "cf-ray", "apim-request-id", "x-amzn-requestid",
        "x-litellm-call-id", "x-litellm-model-id",
        # When to retry, and a gateway's attempts before its response.
        "retry-after", "retry-after-ms", "x-envoy-attempt-count",
        "x-litellm-attempted-retries", "x-litellm-attempted-fallbacks",
        # Times, each of its own meaning: see docs/instrument/gateways.md.
        "openai-processing-ms", "x-envoy-upstream-service-time", "server-timing",
        "x-kong-proxy-latency", "x-kong-upstream-latency", "x-kong-response-latency",
        "x-litellm-overhead-duration-ms", "x-litellm-response-duration-ms",
        "x-litellm-callback-duration-ms",
        # Compressing a stream gathers its chunks.
        "content-encoding",
    }
)  # fmt: skip
# What is left of a limit, and when it starts anew; LiteLLM's detailed timing.
_PREFIXES: Final = (
    "x-ratelimit-", "anthropic-ratelimit-", "ratelimit-", "x-ai-ratelimit-", "x-litellm-timing-",
)  # fmt: skip


def worth_keeping(name: str) -> bool:
    """Return whether a header, by its lower-case name, is kept."""
    return name in _NAMES or name.startswith(_PREFIXES)
