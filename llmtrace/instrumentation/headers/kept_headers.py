"""Which headers of an answer are worth keeping on the row, as they came?

What a provider or gateway tells in its own words and nobody can turn into a stage: evidence for
who reads the row. Nothing here identifies a user or lets anybody in: no cookies, no keys, no
accounts, no prices.
"""

from __future__ import annotations

from typing import Final

MAX: Final = 32
MAX_LENGTH: Final = 256

_NAMES: Final = frozenset(
    {
        # Ids to quote to who served it: OpenAI, Anthropic, Cloudflare, Azure, AWS, LiteLLM.
        "x-request-id", "request-id", "cf-ray", "apim-request-id", "x-amzn-requestid",
        "x-litellm-call-id", "x-litellm-model-id",
        # How long to stay away, and what a gateway tried before it answered.
        "retry-after", "retry-after-ms", "x-envoy-attempt-count",
        "x-litellm-attempted-retries", "x-litellm-attempted-fallbacks",
        # Times of theirs, each of its own meaning: see docs/gateways.md.
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
    """Say whether a header, by its lower-case name, is kept."""
    return name in _NAMES or name.startswith(_PREFIXES)
