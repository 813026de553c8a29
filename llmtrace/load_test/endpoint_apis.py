"""Send a request by the API of an endpoint, OpenAI's or Anthropic's, and read its response.

Over plain HTTP, recorded as that of an application is: with a vendor's SDK in between, the client
adds a millisecond to each request, and sends two thirds as many from one core.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Final, Literal
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import llmtrace
from llmtrace import __version__
from llmtrace.core.errors import LlmtraceError, SourceError
from llmtrace.demo.preflight import probe
from llmtrace.demo.target import Target
from llmtrace.load_test.arrival_transport import ArrivalTransport, arrived, http
from llmtrace.load_test.requests import Request

Api = Literal["openai", "anthropic"]

ROUTE: Final = "bench"
WARM_UP: Final = "warm-up"
_MAX_TOKENS: Final = 1024  # Anthropic's API wants a limit
_TIMEOUT_S: Final = 120.0
_MAX_WORDS: Final = 300
_ANTHROPIC_VERSION: Final = "2023-06-01"
_DATA: Final = b"data:"
_HELLO: Final = Request(-1, ({"role": "user", "content": "Say hello."},), 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """How requests are sent.

    Attributes:
        target: the endpoint.
        api: that it speaks.
        stream: whether responses are streamed.
        ignore_eos: ask for all of `max_tokens`, which vLLM and SGLang understand.
        temperature: of the sampling; `None` = the endpoint's own.
        usage: ask a stream of OpenAI's API for its token counts.
    """

    target: Target
    api: Api = "openai"
    stream: bool = True
    ignore_eos: bool = False
    temperature: float | None = 0.0
    usage: bool = True


class _RejectedError(Exception):
    """A response that reports an error; the message has its body."""


async def check(sending: Sending) -> Sending:
    """Return how the endpoint accepts requests, after a small one or two.

    Raises:
        SourceError: the endpoint does not answer; the message says why.
    """
    if sending.api == "openai":
        sending = replace(sending, target=await probe(sending.target))
    try:
        async with client_of(sending) as client:
            await respond(client, sending, _HELLO)
    except LlmtraceError:
        raise
    except Exception as error:  # noqa: BLE001 - of either HTTP library, or of odd JSON
        if sending.usage and "stream_options" in str(error):
            return replace(sending, usage=False)
        target = sending.target
        words = target.hide_key(" ".join(str(error).split())[:_MAX_WORDS]) or type(error).__name__
        raise SourceError(f"{target.url}, by the API of {sending.api}: {words}") from None
    return sending


def client_of(sending: Sending) -> Any:
    """Return an asynchronous HTTP client for the endpoint: it retries nothing."""
    key = sending.target.api_key
    headers = {"content-type": "application/json", "user-agent": f"llmtrace-bench/{__version__}"}
    if sending.api == "anthropic":
        headers |= {"x-api-key": key, "anthropic-version": _ANTHROPIC_VERSION}
    else:
        headers["authorization"] = f"Bearer {key}"
    url = sending.target.url
    proxied = urlsplit(url).scheme in getproxies() and not proxy_bypass(urlsplit(url).netloc)
    # A proxy named in the environment is not for loopback.
    proxied = proxied and not sending.target.ours
    return http.AsyncClient(
        headers=headers, timeout=_TIMEOUT_S,
        limits=http.Limits(max_connections=None, max_keepalive_connections=None),
        transport=None if proxied else ArrivalTransport(), trust_env=proxied,
    )  # fmt: skip


async def respond(client: Any, sending: Sending, request: Request) -> str:
    """Send a request and return the text of its response, tool calls included.

    Raises:
        Exception: it failed, or its stream reported an error.
    """
    url, body = _message(sending, request)
    message = client.build_request("POST", url, content=body)
    pieces = _openai_pieces if sending.api == "openai" else _anthropic_pieces
    arrived.set(0)
    answer = await _exchange(client, sending, request, message)
    if not sending.stream:
        return "".join(pieces(json.loads(answer)))
    parts, failure = list[str](), None
    for line in answer.splitlines():
        if line.startswith(_DATA) and (data := line[len(_DATA) :].lstrip()).startswith(b"{"):
            event = json.loads(data)
            failure = failure or event.get("error")
            parts += pieces(event)
    if failure:
        raise _RejectedError(str(failure))
    return "".join(parts)


@llmtrace.trace
async def _exchange(client: Any, sending: Sending, request: Request, message: Any) -> bytes:
    """Return the body of a response, once all of it is there."""
    route = WARM_UP if request.number < 0 else ROUTE
    llmtrace.annotate(route=route, request=request.number, simulated=sending.target.simulated)
    response = await client.send(message, stream=sending.stream)
    try:
        body = bytes(await response.aread())
        if response.is_error:
            text = body.decode(errors="replace")
            raise _RejectedError(f"HTTP {response.status_code}: {text}")
        return body
    finally:
        await response.aclose()


def _message(sending: Sending, request: Request) -> tuple[str, bytes]:
    """Return where a request goes, and its body."""
    target, ours = sending.target, sending.api == "openai"
    body: dict[str, Any] = {"model": target.model, "messages": list(request.messages)}
    body["stream"] = sending.stream
    if ours and sending.stream and sending.usage:
        body["stream_options"] = {"include_usage": True}
    if request.max_tokens is not None or not ours:
        body[target.limit if ours else "max_tokens"] = request.max_tokens or _MAX_TOKENS
    if sending.ignore_eos:
        body["ignore_eos"] = True
    if sending.temperature is not None:
        body["temperature"] = sending.temperature
    root = target.url.rstrip("/") if ours else f"{target.url.rstrip('/').removesuffix('/v1')}/v1"
    path = "chat/completions" if ours else "messages"
    return f"{root}/{path}", json.dumps(body | dict(request.options)).encode()


def _openai_pieces(event: Any) -> list[str]:
    """Return the text in a chunk or a whole response of OpenAI's API."""
    if not event.get("choices"):
        return []
    choice = event["choices"][0]
    said = choice.get("delta") or choice.get("message") or {}
    calls = [call.get("function") or {} for call in said.get("tool_calls") or ()]
    names = [f"{call.get('name') or ''}{call.get('arguments') or ''}" for call in calls]
    return [said.get("content") or "", *names]


def _anthropic_pieces(event: Any) -> list[str]:
    """Return the text in an event or a whole response of Anthropic's API."""
    kind = event.get("type")
    if kind == "message":
        return [piece for block in event["content"] for piece in _block(block)]
    if kind == "content_block_start":
        return _block(event["content_block"])
    if kind == "content_block_delta":
        delta = event["delta"]
        return [delta.get("text") or delta.get("partial_json") or ""]
    return []


def _block(block: Any) -> list[str]:
    if block.get("type") == "tool_use":
        return [block["name"], str(block.get("input") or "")]
    return [block.get("text") or ""]
