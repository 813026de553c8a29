"""Send a request by the API of an endpoint, OpenAI's or Anthropic's, and read its response."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, Literal

import llmtrace
from llmtrace.demo.preflight import probe
from llmtrace.demo.sample_app import make_client
from llmtrace.demo.target import Target
from llmtrace.errors import SourceError, missing_extra
from llmtrace.load_test.requests import Request

Api = Literal["openai", "anthropic"]

APIS: Final[tuple[Api, ...]] = ("openai", "anthropic")
ROUTE: Final = "bench"
WARM_UP: Final = "warm-up"
_MAX_TOKENS: Final = 1024  # Anthropic's API wants a limit
_TIMEOUT_S: Final = 120.0
_MAX_WORDS: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """How requests are sent.

    Attributes:
        target: the endpoint.
        api: that it speaks.
        stream: whether responses are streamed.
        ignore_eos: ask for all of `max_tokens`, which vLLM and SGLang understand.
        temperature: of the sampling; `None` = the endpoint's own.
    """

    target: Target
    api: Api = "openai"
    stream: bool = True
    ignore_eos: bool = False
    temperature: float | None = 0.0


async def check(sending: Sending) -> Target:
    """Return the target as it accepts requests, after one small one.

    Raises:
        SourceError: the endpoint does not answer; the message says why.
    """
    target = sending.target
    if sending.api == "openai":
        return await probe(target)
    async with client_of(sending) as client:
        hello = {"role": "user", "content": "Say hello."}
        try:
            await client.messages.create(model=target.model, messages=[hello], max_tokens=8)
        except Exception as error:  # noqa: BLE001 - the SDK may not be imported to name its own
            words = target.hide_key(" ".join(str(error).split())[:_MAX_WORDS])
            raise SourceError(f"{target.url}, as Anthropic's API: {words}") from None
    return target


def client_of(sending: Sending) -> Any:
    """Return an asynchronous client of the endpoint that retries nothing."""
    target = sending.target
    if sending.api == "openai":
        return make_client(target, max_retries=0)
    try:
        anthropic = import_module("anthropic")
    except ImportError as error:
        raise missing_extra("--api anthropic", "anthropic", error.name or "") from error
    options = {}
    if target.ours:  # a proxy named in the environment is not for loopback
        options["http_client"] = anthropic.DefaultAsyncHttpxClient(trust_env=False)
    return anthropic.AsyncAnthropic(
        base_url=target.url.removesuffix("/").removesuffix("/v1"),
        api_key=target.api_key,
        max_retries=0,
        timeout=_TIMEOUT_S,
        **options,
    )


async def respond(client: Any, sending: Sending, request: Request) -> str:
    """Send a request and return the text of its response, tool calls included."""
    pieces = _openai_pieces if sending.api == "openai" else _anthropic_pieces
    if not sending.stream:
        return "".join(pieces(await _create(client, sending, request)))
    async with await _create(client, sending, request) as stream:
        parts = [piece async for part in _each(stream) for piece in pieces(part)]
    return "".join(parts)


async def _each(stream: Any) -> AsyncIterator[Any]:
    async for part in stream:
        yield part


def _openai_pieces(part: Any) -> list[str]:
    """Return the text in a chunk or a whole response of OpenAI's API."""
    if not part.choices:
        return []
    said = getattr(part.choices[0], "delta", None) or part.choices[0].message
    calls = [call.function for call in said.tool_calls or () if call.function is not None]
    return [said.content or "", *(f"{call.name or ''}{call.arguments or ''}" for call in calls)]


def _anthropic_pieces(part: Any) -> list[str]:
    """Return the text in an event or a whole response of Anthropic's API."""
    if part.type == "message":
        return [piece for block in part.content for piece in _block(block)]
    if part.type == "content_block_start":
        return _block(part.content_block)
    if part.type == "content_block_delta":
        delta = part.delta
        return [getattr(delta, "text", None) or getattr(delta, "partial_json", None) or ""]
    return []


def _block(block: Any) -> list[str]:
    if block.type == "tool_use":
        return [block.name, str(block.input or "")]
    return [getattr(block, "text", None) or ""]


@llmtrace.trace
async def _create(client: Any, sending: Sending, request: Request) -> Any:
    target = sending.target
    llmtrace.annotate(
        route=WARM_UP if request.number < 0 else ROUTE,
        request=request.number,
        simulated=target.simulated,
    )
    more: dict[str, Any] = dict(request.options)
    limit = "max_tokens" if sending.api == "anthropic" else target.limit
    if request.max_tokens is not None:
        more[limit] = request.max_tokens
    if sending.ignore_eos:
        more["ignore_eos"] = True
    if sending.temperature is not None:
        more["temperature"] = sending.temperature
    given: dict[str, Any] = {
        "model": target.model,
        "messages": list(request.messages),
        "stream": sending.stream,
    }
    if sending.api == "anthropic":
        given["max_tokens"] = more.pop("max_tokens", _MAX_TOKENS)
        return await client.messages.create(**given, extra_body=more)
    return await client.chat.completions.create(**given, extra_body=more)
