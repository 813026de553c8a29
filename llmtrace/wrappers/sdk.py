"""How are the OpenAI and Anthropic SDKs instrumented?

Both are made by the same generator, so one seam serves both: every call, streamed or not, raw or
parsed, sync or async, goes through the client's `request`. What differs is in `Dialect`.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final

from llmtrace.failopen import internal_error
from llmtrace.record import Recording
from llmtrace.runtime import Runtime, active, current, entered
from llmtrace.wrappers import chunks, headers
from llmtrace.wrappers.cancel import cancelled
from llmtrace.wrappers.reads import Classify, areads, reads


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One kind of call: how its chunks and its whole answers are read."""

    operation: str
    chunk: Classify
    answer: Callable[[Recording, Any], None]
    usage_option: bool = False


# By the end of the URL's path.
ENDPOINTS: Final[Mapping[str, Endpoint]] = {
    "/chat/completions": Endpoint("chat", chunks.chat, chunks.answer_chat, usage_option=True),
    "/completions": Endpoint(
        "text_completion", chunks.completions, chunks.answer_chat, usage_option=True
    ),
    "/responses": Endpoint("chat", chunks.responses, chunks.answer_responses),
    "/messages": Endpoint("chat", chunks.messages, chunks.answer_messages),
}

_PROVIDERS: Final[Mapping[str, str]] = {
    "api.openai.com": "openai",
    "api.anthropic.com": "anthropic",
}

# Servers that refused a request because of `stream_options`: they are not asked again.
_refuses_usage: set[str] = set()


@dataclass(slots=True)
class _Call:
    """One call as it goes through the seam."""

    recording: Recording
    endpoint: Endpoint
    options: Any
    server: str
    asked_usage: bool


def instrument_client(client_class: Any) -> Callable[[], None]:
    """Record every call that goes through a client class's (or instance's) `request`.

    Returns:
        What undoes it.
    """
    plain = client_class.request
    bound = not inspect.isclass(client_class)
    function = plain.__func__ if bound else plain
    is_async = inspect.iscoroutinefunction(function)
    ours = (_arequest if is_async else _request)(function)
    if bound:
        client_class.request = ours.__get__(client_class)
    else:
        client_class.request = ours

    def undo() -> None:
        if bound:
            client_class.__dict__.pop("request", None)
        elif client_class.request is ours:
            client_class.request = plain

    return undo


def _request(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def request(self: Any, cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        call = _begin(self, options, kwargs)
        if call is None:
            return plain(self, cast_to, options, *args, **kwargs)
        recording = call.recording
        try:
            with entered(recording):
                try:
                    result = plain(self, cast_to, call.options, *args, **kwargs)
                except Exception as error:
                    if not _refused_usage(call, error):
                        raise
                    result = plain(self, cast_to, call.options, *args, **kwargs)
        except BaseException as error:
            recording.calling = False
            recording.failed(error)
            raise
        return _deliver(call, result)

    request._llmtrace_plain = plain  # type: ignore[attr-defined]  # noqa: SLF001
    return request


def _arequest(plain: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(plain)
    async def request(self: Any, cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        call = _begin(self, options, kwargs)
        if call is None:
            return await plain(self, cast_to, options, *args, **kwargs)
        recording = call.recording
        try:
            with entered(recording):
                try:
                    result = await plain(self, cast_to, call.options, *args, **kwargs)
                except Exception as error:
                    if not _refused_usage(call, error):
                        raise
                    result = await plain(self, cast_to, call.options, *args, **kwargs)
        except asyncio.CancelledError as error:
            recording.calling = False
            cancelled(recording, error)
            raise
        except BaseException as error:
            recording.calling = False
            recording.failed(error)
            raise
        return _deliver(call, result)

    request._llmtrace_plain = plain  # type: ignore[attr-defined]  # noqa: SLF001
    return request


def is_instrumented(client_class: Any) -> bool:
    """Say whether a client's `request` is ours already."""
    return hasattr(client_class.request, "_llmtrace_plain")


def _begin(client: Any, options: Any, kwargs: Mapping[str, Any]) -> _Call | None:
    """Start recording a call, or join the decorated function that makes it; `None` = leave it."""
    runtime = active()
    if runtime is None:
        return None
    try:
        path = str(options.url).partition("?")[0].rstrip("/")
        endpoint = next((e for end, e in ENDPOINTS.items() if path.endswith(end)), None)
        if endpoint is None or options.method.lower() != "post":
            return None
        recording = _recording(runtime, client, options, endpoint)
        recording.calling = True
        call = _Call(
            recording=recording,
            endpoint=endpoint,
            options=copy.copy(options),
            server=recording.info["server"],
            asked_usage=False,
        )
        _prepare(runtime, client, call, stream=bool(kwargs.get("stream")))
    except Exception as error:  # noqa: BLE001
        internal_error("sdk", error)
        return None
    return call


def _recording(runtime: Runtime, client: Any, options: Any, endpoint: Endpoint) -> Recording:
    url = client.base_url
    sdk = type(client).__module__.partition(".")[0]
    body = options.json_data if isinstance(options.json_data, dict) else {}
    info = {
        "operation": endpoint.operation,
        "model": body.get("model"),
        "provider": _PROVIDERS.get(url.host, sdk),
        "server": f"{url.host}:{url.port}" if url.port else url.host,
        "client": sdk,
    }
    around = current.get()
    if around is None or around.joined or around.ended:
        return runtime.start(info)
    around.joined = True
    around.boundary(reading=True)
    # What the decorator was told wins over what the call says.
    around.info.update({k: v for k, v in info.items() if around.info.get(k) is None})
    around.info["operation"] = endpoint.operation
    return around


def _prepare(runtime: Runtime, client: Any, call: _Call, *, stream: bool) -> None:
    recording, options = call.recording, call.options
    given = options.headers if isinstance(options.headers, Mapping) else {}
    added = headers.outgoing(recording, {**client.default_headers, **given})
    options.headers = {**given, **added}
    recording.stream = stream
    body = options.json_data
    if not (stream and call.endpoint.usage_option and isinstance(body, dict)):
        return
    asked = body.get("stream_options")
    if isinstance(asked, Mapping) and "include_usage" in asked:
        return
    if runtime.ask_usage and call.server not in _refuses_usage:
        wanted = {**(asked if isinstance(asked, Mapping) else {}), "include_usage": True}
        options.json_data = {**body, "stream_options": wanted}
        recording.usage_hidden = call.asked_usage = True


_REFUSALS: Final = frozenset({400, 422})


def _refused_usage(call: _Call, error: Exception) -> bool:
    """Take back what llmtrace added, if that is what the server refused; say whether it was."""
    if not call.asked_usage or getattr(error, "status_code", None) not in _REFUSALS:
        return False
    if "stream_options" not in str(error) and "include_usage" not in str(error):
        return False
    _refuses_usage.add(call.server)
    call.asked_usage = call.recording.usage_hidden = False
    body = dict(call.options.json_data)
    wanted = dict(body.pop("stream_options"))
    del wanted["include_usage"]
    if wanted:
        body["stream_options"] = wanted
    call.options.json_data = body
    return True


def _deliver(call: _Call, result: Any) -> Any:
    """Hand the caller what the SDK returned, timed from here on."""
    recording = call.recording
    recording.calling = False
    try:
        if not recording.stream:
            _whole(call, result)
        elif hasattr(result, "_iterator"):
            adopt(recording, result, call.endpoint.chunk)
        else:
            _raw(call, result)
    except Exception as error:  # noqa: BLE001
        internal_error("sdk", error)
        recording.finish("success")
    return result


def adopt(recording: Recording, stream: Any, classify: Classify) -> None:
    """Time an SDK's stream from its own iterator up: the object the caller gets is its own."""
    recording.opened()
    recording.raw = False
    recording.expects_finish = True
    iterator = stream._iterator  # noqa: SLF001 - the one seam that keeps the stream's class
    if hasattr(iterator, "__anext__"):
        stream._iterator = areads(recording, iterator.__anext__, classify)  # noqa: SLF001
    else:
        stream._iterator = reads(recording, iterator.__next__, classify)  # noqa: SLF001
    stream._llmtrace = recording  # noqa: SLF001 - how a decorator knows it


_SDKS: Final = ("openai", "anthropic")


def is_stream(value: Any) -> bool:
    """Say whether a value is one of the SDKs' own streams, not yet timed."""
    kind = type(value)
    return (
        kind.__name__ in {"Stream", "AsyncStream"}
        and kind.__module__.partition(".")[0] in _SDKS
        and not hasattr(value, "_llmtrace")
    )


def classify_for(stream: Any) -> Classify:
    """Pick how a stream's chunks are read, from the address it was asked of."""
    path = stream.response.request.url.path.rstrip("/")
    return next((e.chunk for end, e in ENDPOINTS.items() if path.endswith(end)), chunks.anything)


def read_answer(recording: Recording, answer: Any) -> None:
    """Note what a plain answer tells, if it is one of the SDKs' own."""
    kind = type(answer)
    if kind.__module__.partition(".")[0] in _SDKS:
        read = _ANSWERS.get(kind.__name__)
        if read is not None:
            read(recording, answer)


_ANSWERS: Final[Mapping[str, Callable[[Recording, Any], None]]] = {
    "ChatCompletion": chunks.answer_chat,
    "Completion": chunks.answer_chat,
    "Response": chunks.answer_responses,
    "Message": chunks.answer_messages,
}


def _whole(call: _Call, result: Any) -> None:
    """Read a whole answer. A raw response is parsed for it, which its caller would do anyway."""
    recording = call.recording
    response = getattr(result, "http_response", None)
    if response is not None and not response.is_closed:
        _raw(call, result)  # with_streaming_response: the body is still the caller's to read
        recording.stream = recording.raw = False
        return
    try:
        answer = result
        if response is not None:
            parse = result.parse
            answer = None if inspect.iscoroutinefunction(parse) else parse()
        if answer is not None and hasattr(answer, "id"):
            call.endpoint.answer(recording, answer)
    except Exception as error:  # noqa: BLE001 - an odd answer is still the caller's answer
        internal_error("sdk.answer", error)
    recording.finish("success")


def _raw(call: _Call, result: Any) -> None:
    """Time a raw response: from when it is parsed, if it is; its close ends the row anyway."""
    recording = call.recording
    recording.opened()
    recording.raw = recording.stream  # until it is parsed, its bytes are what is read
    plain = result.parse

    def adopted(parsed: Any) -> Any:
        try:
            if recording.ended or getattr(parsed, "_llmtrace", None) is recording:
                return parsed
            if hasattr(parsed, "_iterator"):
                adopt(recording, parsed, call.endpoint.chunk)
            elif hasattr(parsed, "id"):
                call.endpoint.answer(recording, parsed)
                recording.finish("success")
        except Exception as error:  # noqa: BLE001
            internal_error("sdk", error)
        return parsed

    @wraps(plain)
    def parse(*args: Any, **kwargs: Any) -> Any:
        return adopted(plain(*args, **kwargs))

    @wraps(plain)
    async def aparse(*args: Any, **kwargs: Any) -> Any:
        return adopted(await plain(*args, **kwargs))

    result.parse = aparse if inspect.iscoroutinefunction(plain) else parse
