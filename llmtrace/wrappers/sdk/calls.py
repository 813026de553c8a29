"""How are the OpenAI and Anthropic SDKs instrumented?

Both are made by the same generator, so one seam serves both: every call, streamed or not, raw or
parsed, sync or async, goes through the client's `request`. What differs is in `endpoints`.
"""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, TypeGuard

from llmtrace.failopen import internal_error
from llmtrace.record import Recording
from llmtrace.runtime import Runtime, active, entered
from llmtrace.wrappers import joining
from llmtrace.wrappers.headers import exchange
from llmtrace.wrappers.sdk import answers, contents
from llmtrace.wrappers.sdk.endpoints import PROVIDERS, Endpoint, endpoint_at, library

# Servers that refused a request because of `stream_options`: they are not asked again.
_refuses_usage: set[str] = set()


@dataclass(slots=True)
class _Patch:
    """Whether an instrumentation still counts: what was put over it may go on calling it."""

    on: bool = True

    def records(self, client: Any) -> bool:
        """Say whether it records a client: not if that one is instrumented by itself, too."""
        outermost = getattr(type(client).request, "_llmtrace_patch", self)
        return self.on and (outermost is self or not outermost.on)


@dataclass(slots=True)
class _Call:
    """One call as it goes through the seam."""

    recording: Recording
    endpoint: Endpoint
    options: Any
    server: str
    filled: set[str]
    asked_usage: bool = False


def instrument_client(target: Any) -> Callable[[], None]:
    """Record every call that goes through the `request` of a client class, or of one client.

    Returns:
        What undoes it. It does not keep the client alive.
    """
    patch = _Patch()
    kind: Any = target if inspect.isclass(target) else type(target)
    plain = kind.request
    if kind is target:
        kind.request = ours = _seam(plain, patch)

        def undo() -> None:
            patch.on = False
            if kind.request is ours:
                kind.request = plain

        return undo

    # A class of its own and not an attribute: that would be a reference cycle, which keeps the
    # connections of a dropped client open; and `with_options` makes more of the same class.
    class Client(kind):  # type: ignore[misc]
        request = _seam(plain, patch)

    target.__class__ = answers.pass_for(Client, kind)
    client = weakref.ref(target)

    def undo_one() -> None:
        patch.on = False
        alive = client()
        if alive is not None and type(alive) is Client:
            alive.__class__ = kind

    return undo_one


def is_instrumented(target: Any) -> bool:
    """Say whether this very class, or this one client, is instrumented already."""
    kind = target if inspect.isclass(target) else type(target)
    patch = getattr(vars(kind).get("request"), "_llmtrace_patch", None)
    return patch is not None and patch.on


def _seam(plain: Callable[..., Any], patch: _Patch) -> Callable[..., Any]:
    made = (_arequest if inspect.iscoroutinefunction(plain) else _request)(plain, patch)
    made._llmtrace_patch = patch  # type: ignore[attr-defined]  # noqa: SLF001
    return made


def _request(plain: Callable[..., Any], patch: _Patch) -> Callable[..., Any]:
    @wraps(plain)
    def request(self: Any, cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        call = _begin(self, options, kwargs) if patch.records(self) else None
        if call is None:
            return plain(self, cast_to, options, *args, **kwargs)
        refused = False
        try:
            with entered(call.recording):
                try:
                    result = plain(self, cast_to, call.options, *args, **kwargs)
                except Exception as error:
                    refused = _refused_usage(call, error)
                    if not refused:
                        raise
                if refused:  # out here, so that another error has no trace of this one
                    result = plain(self, cast_to, call.options, *args, **kwargs)
                    _refuses_usage.add(call.server)
        except BaseException as error:
            _failed(call, error)
            raise
        return _deliver(call, result)

    return request


def _arequest(plain: Callable[..., Awaitable[Any]], patch: _Patch) -> Callable[..., Any]:
    @wraps(plain)
    async def request(self: Any, cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        call = _begin(self, options, kwargs) if patch.records(self) else None
        if call is None:
            return await plain(self, cast_to, options, *args, **kwargs)
        refused = False
        try:
            with entered(call.recording):
                try:
                    result = await plain(self, cast_to, call.options, *args, **kwargs)
                except Exception as error:
                    refused = _refused_usage(call, error)
                    if not refused:
                        raise
                if refused:
                    result = await plain(self, cast_to, call.options, *args, **kwargs)
                    _refuses_usage.add(call.server)
        except BaseException as error:
            _failed(call, error)
            raise
        return _deliver(call, result)

    return request


def _failed(call: _Call, error: BaseException) -> None:
    call.recording.calling, call.recording.outgoing = False, None
    joining.failed(call.recording, call.filled, error)


def _begin(client: Any, options: Any, kwargs: Mapping[str, Any]) -> _Call | None:
    """Start recording a call, or join the decorated function that makes it; `None` = leave it."""
    runtime = active()
    if runtime is None:
        return None
    try:
        sdk = library(client)
        endpoint = endpoint_at(str(options.url), sdk)
        if endpoint is None or options.method.lower() != "post":
            return None
        info = _known(client, options, endpoint, sdk)
        recording, filled = joining.join(runtime, info)
        recording.stream = bool(kwargs.get("stream"))
        recording.usage_hidden = False
        recording.calling = True
    except Exception as error:  # noqa: BLE001
        internal_error("sdk", error)
        return None
    call = _Call(recording, endpoint, options, str(info["server"]), filled)
    contents.asked(recording, endpoint.chunk, options.json_data)
    try:
        _prepare(runtime, client, call)
    except Exception as error:  # noqa: BLE001 - the request goes out as it was
        internal_error("sdk.request", error)
        call.options = options
        call.asked_usage = recording.usage_hidden = False
    return call


def _known(client: Any, options: Any, endpoint: Endpoint, sdk: str | None) -> dict[str, Any]:
    """Return the row fields that the call itself tells."""
    host, server = _server(client)
    body = options.json_data if isinstance(options.json_data, dict) else {}
    model = body.get("model")
    return {
        "operation": endpoint.operation,
        "model": model if isinstance(model, str) else None,
        "provider": PROVIDERS.get(host, sdk),
        "server": server,
        "client": sdk,
    }


def _server(client: Any) -> tuple[str, str]:
    """Return the host a client asks, and the same with its port, if the URL names one."""
    url = client._base_url  # noqa: SLF001 - OpenAI's `base_url` takes longer than all of this
    known: tuple[Any, str, str] | None = getattr(client, "_llmtrace_server", None)
    if known is None or known[0] is not url:
        known = url, url.host, f"{url.host}:{url.port}" if url.port else url.host
        client._llmtrace_server = known  # noqa: SLF001 - our own attribute on their object
    return known[1:]


def _prepare(runtime: Runtime, client: Any, call: _Call) -> None:
    """Note the headers that go along, and ask for usage on a copy of the request's options."""
    recording, options = call.recording, call.options
    given = options.headers if _is_mapping(options.headers) else {}
    # The client's own: `default_headers` would compute all the others for each request.
    custom = getattr(client, "_custom_headers", None)
    if not _is_mapping(custom):
        custom = client.default_headers
    raw = given.get(_RAW_HEADER)
    parsed = recording.stream and raw != "stream"
    added = exchange.outgoing(recording, {**custom, **given}, parsed=parsed)
    # Its HTTP client adds them: the SDK would take each through half a dozen merges.
    recording.outgoing = client._client, added  # noqa: SLF001
    body = options.json_data
    if not (recording.stream and call.endpoint.usage_option and isinstance(body, dict)):
        return
    extra = options.extra_json if _is_mapping(options.extra_json) else {}
    asked = extra.get("stream_options", body.get("stream_options"))
    if _is_mapping(asked) and "include_usage" in asked:
        return
    if "stream_options" in extra or raw == "stream":
        # The one would win over ours; the other's bytes are the caller's to read, and nothing
        # could be hidden among them.
        return
    if runtime.ask_usage and call.server not in _refuses_usage:
        wanted = {**(asked if _is_mapping(asked) else {}), "include_usage": True}
        call.options = copy.copy(options)
        call.options.json_data = {**body, "stream_options": wanted}
        recording.usage_hidden = call.asked_usage = True


def _is_mapping(value: Any) -> TypeGuard[Mapping[str, Any]]:
    # What is not given is false, and most mappings are dictionaries: the rest takes long to ask.
    return isinstance(value, dict) or (bool(value) and isinstance(value, Mapping))


# How the SDKs say that `with_raw_response` or `with_streaming_response` was used.
_RAW_HEADER: Final = "X-Stainless-Raw-Response"

_REFUSALS: Final = frozenset({400, 422})


def _refused_usage(call: _Call, error: Exception) -> bool:
    """Take back what llmtrace added, if that is what the server refused; say whether it was."""
    try:
        if not call.asked_usage or getattr(error, "status_code", None) not in _REFUSALS:
            return False
        said = str(error)
        if "stream_options" not in said and "include_usage" not in said:
            return False
        body = dict(call.options.json_data)
        wanted = dict(body.pop("stream_options"))
        del wanted["include_usage"]
        if wanted:
            body["stream_options"] = wanted
    except Exception as broken:  # noqa: BLE001 - the caller gets the server's error, not ours
        internal_error("sdk.request", broken)
        return False
    call.asked_usage = call.recording.usage_hidden = False
    call.options.json_data = body
    return True


def _deliver(call: _Call, result: Any) -> Any:
    """Hand the caller what the SDK returned, timed from here on."""
    call.recording.calling, call.recording.outgoing = False, None
    try:
        answers.deliver(call.recording, call.endpoint, result)
    except Exception as error:  # noqa: BLE001
        answers.unrecorded(call.recording, call.endpoint, result, error)
    return result
