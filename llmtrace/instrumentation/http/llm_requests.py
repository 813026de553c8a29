"""Recognise plain HTTP requests to models, and record them as rows without an SDK.

They are `POST`s to the paths that model servers have, or known by their body where the path is not
enough. `httpx_requests` and `aiohttp` share this code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from llmtrace.core.error_codes import code_in
from llmtrace.core.failopen import fails_open, internal_error
from llmtrace.core.listen_address import with_port
from llmtrace.core.recording import Recording
from llmtrace.instrumentation import join_call
from llmtrace.instrumentation.http.sse import Events
from llmtrace.instrumentation.llm_sdks import message_content, request_settings
from llmtrace.instrumentation.llm_sdks.attribute_view import View
from llmtrace.instrumentation.llm_sdks.endpoints import Endpoint, plain_endpoint, provider_of
from llmtrace.runtime.runtime import active, current

HTTP_ERROR: Final = 400
_SUCCESS: Final = 200
_REDIRECTION: Final = 300
_EVENT_STREAM: Final = "text/event-stream"
_PAGE: Final = "text/html"
# Bytes of a body that are searched for the model's name, and that are parsed for its content.
_MAX_LOOKED_AT: Final = 1 << 14
MAX_PARSED: Final = 1 << 20
_COULD_BE: Final = ""

_decode = json.JSONDecoder().raw_decode
_OPENS: Final = re.compile(r"\s*\{")
_KEY: Final = re.compile(r'\s*"((?:[^"\\]|\\.)*)"\s*:\s*')
_NEXT: Final = re.compile(r"\s*,")
_STREAM: Final = re.compile(rb'"stream"\s*:\s*true\b')


@dataclass(frozen=True, slots=True)
class LlmRequest:
    """A request to a model under way: its recording, and the fields that the call itself gave."""

    recording: Recording
    endpoint: Endpoint | None
    filled: set[str]


def begin(
    client: str,
    host: str,
    port: int | None,
    path: str,
    body: bytes | Mapping[str, Any] | None,
) -> LlmRequest | None:
    """Start recording a `POST` request, or join the decorated function that makes it.

    Args:
        client: the HTTP library.
        host: of the URL.
        port: where the URL names one.
        path: of the URL.
        body: as bytes, or before it is made JSON; `None` where it is neither.

    Returns:
        `None` for a request to no model, and for one that a client's call is recorded for already.
    """
    runtime = active()
    if runtime is None:
        return None
    outer = current.get()
    if outer is not None and outer.calling and not outer.ended:
        return None
    try:
        target = _target(path, body)
        if target is None:
            return None
        (sdk, endpoint), model = target
        info = {
            "operation": "chat" if endpoint is None else endpoint.operation,
            "model": model or None,
            "provider": provider_of(host) or sdk,
            "server": with_port(host, port),
            "client": client,
        }
        recording, filled = join_call.join(runtime, info)
        # Until a response says what it is; one that fails was what the body requests.
        recording.stream, recording.usage_hidden = _requests_stream(body), False
        recording.calling = True
        request_settings.note(recording, body)
    except Exception as error:  # noqa: BLE001 - the request goes out unrecorded
        internal_error("http.post", error)
        return None
    if recording.content is not None and endpoint is not None:
        prompt = parsed(body) if isinstance(body, bytes) else body
        message_content.note_prompt(recording, endpoint.chunk, prompt)
    return LlmRequest(recording, endpoint, filled)


def _target(
    path: str, body: bytes | Mapping[str, Any] | None
) -> tuple[tuple[str | None, Endpoint | None], str | None] | None:
    """Return the endpoint of a request and the model it names; `None` = it calls no model."""
    found = plain_endpoint(path)
    if found is None and not _requests_stream(body):
        return None
    model = model_in(body) if isinstance(body, bytes) else (body or {}).get("model")
    if not isinstance(model, str):
        model = None
    if found is None:
        # A custom path: a body that names a model and requests a stream is a model's.
        return ((None, None), model) if model else None
    # Other services have such paths too: messengers have `/messages`. Theirs name no model.
    return (found, model) if model is not None or path.endswith("/chat/completions") else None


def _requests_stream(body: bytes | Mapping[str, Any] | None) -> bool:
    if isinstance(body, bytes):
        ends = body[:_MAX_LOOKED_AT], body[_MAX_LOOKED_AT:][-_MAX_LOOKED_AT:]
        return any(map(_STREAM.search, ends))
    return body is not None and body.get("stream") is True


def model_in(body: bytes) -> str | None:
    """Return the model that a JSON body names at its top; `""` if it may do so further on.

    Only its beginning is looked at, since prompts can be long.
    """
    text = body[:_MAX_LOOKED_AT].decode("utf-8", "replace")
    opens = _OPENS.match(text)
    if opens is None:
        return None
    at = opens.end()
    try:
        while key := _KEY.match(text, at):
            value, at = _decode(text, key.end())
            if key[1] == "model":
                return value[:512] if isinstance(value, str) else None
            after = _NEXT.match(text, at)
            if after is None:
                break
            at = after.end()
    except (ValueError, RecursionError):
        pass
    return _COULD_BE if len(body) > _MAX_LOOKED_AT else None


def is_stream(content_type: str) -> bool:
    """Return whether a response of this type is a stream of events."""
    return content_type.lower().startswith(_EVENT_STREAM)


def is_success(status: int) -> bool:
    """Return whether an HTTP status is a success, and not a redirect or an error."""
    return _SUCCESS <= status < _REDIRECTION


def opened(post: LlmRequest, content_type: str) -> None:
    """Note that the application has a response whose body is still to be read.

    A page, as of a login, in place of a stream that was requested is no whole response.
    """
    recording, events = post.recording, is_stream(content_type)
    recording.expects_finish |= recording.stream and content_type.lower().startswith(_PAGE)
    recording.opened()
    recording.stream = events
    recording.reads_bytes = True


def unary_response(post: LlmRequest, body: bytes | bytearray, content_type: str) -> None:
    """Note what a unary response reports, and end its row.

    In place of a stream that was requested, JSON must be a completion with a finish reason.
    """
    recording, events, streamed = post.recording, is_stream(content_type), post.recording.stream
    recording.expects_finish |= streamed and content_type.lower().startswith(_PAGE)
    recording.stream = events
    try:
        if events:
            Events().tell(recording, bytes(body))
        elif post.endpoint is not None and isinstance(fields := parsed(body), dict):
            recording.expects_finish |= streamed
            if fields.get("error"):
                recording.failure = ("error", code_in(fields) or "error")
            answer = View(fields)
            post.endpoint.answer(recording, answer)
            if recording.info.get("model") is None:
                recording.info["model"] = recording.info.get("response_model")
            message_content.note_response(recording, post.endpoint.chunk, answer)
    except (TypeError, AttributeError, ValueError):
        pass  # an odd response is still the application's
    recording.exhausted()


def rejected(post: LlmRequest, status: int, body: bytes | None, *, ends: bool) -> None:
    """Note that the response is an error, after which a decorated function may retry.

    Args:
        post: the request.
        status: of the response.
        body: of the response, where it is here already.
        ends: whether the row ends with it.
    """
    recording = post.recording
    because = code(body) or str(status)
    join_call.rejected(recording, post.filled, because)
    if recording.in_decorated_function:
        return
    if ends:
        recording.finish("error", because)
    else:
        recording.switch_interval(reading=False)
        recording.open = True


@fails_open("http.post")
def rejected_because(recording: Recording, status: int, body: bytes | bytearray) -> None:
    """Note what the body of an error says, which was read later."""
    found = code(body)
    if found is not None and recording.failure == ("error", str(status)):
        recording.failure = ("error", found)


def code(body: bytes | bytearray | None) -> str | None:
    """Return the provider's code in the body of an error."""
    return None if body is None else code_in(parsed(body))


@fails_open("http.post")
def failed(post: LlmRequest, error: BaseException) -> None:
    """Note the exception that was raised in place of a response."""
    post.recording.calling = False
    join_call.failed(post.recording, post.filled, error)


def parsed(body: bytes | bytearray) -> Any:
    """Return a body as parsed from JSON; `None` if it is none, or too long to be worth it."""
    if len(body) > MAX_PARSED:
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
