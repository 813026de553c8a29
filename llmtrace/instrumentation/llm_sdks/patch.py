"""Instrument the OpenAI and Anthropic SDKs.

Both are made by the same generator, so one patch serves both: every call, streamed or not, raw or
parsed, sync or async, goes through the client's `request`. What differs is in `endpoints`.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from llmtrace.core.failopen import internal_error
from llmtrace.core.listen_address import with_port
from llmtrace.core.recording import Recording
from llmtrace.instrumentation import join_call
from llmtrace.instrumentation.headers import propagation
from llmtrace.instrumentation.llm_sdks import message_content, request_settings, responses
from llmtrace.instrumentation.llm_sdks.code_patch import request_patch
from llmtrace.instrumentation.llm_sdks.endpoints import (
    SDKS,
    Endpoint,
    endpoint_at,
    library,
    provider_of,
)
from llmtrace.instrumentation.llm_sdks.usage import Altered, alter, is_mapping
from llmtrace.runtime.runtime import Runtime, active, entered

# On a class whose clients are recorded: an SDK's own, or one made for a single client.
_MARK: Final = "_llmtrace_patch"


@dataclass(slots=True)
class _Patch:
    """Whether an instrumentation is active: copies of a client keep the class made for it."""

    on: bool = True


@dataclass(slots=True)
class _Call:
    """One call that goes through the patched `request`."""

    recording: Recording
    endpoint: Endpoint
    options: Any
    server: str
    filled: set[str]
    altered: Altered | None = None


def instrument_client(target: Any) -> Callable[[], None]:
    """Record every call that goes through the `request` of a client class, or of one client.

    Returns:
        The function that undoes it. It does not keep the client alive.

    Raises:
        ConfigError: its `request` is not the SDK's.
    """
    patch = _Patch()
    kind: Any = target if inspect.isclass(target) else type(target)
    code_patch = request_patch(kind)
    code_patch.apply(_arequest if inspect.iscoroutinefunction(kind.request) else _request)
    if kind is target:
        setattr(kind, _MARK, patch)

        def undo() -> None:
            patch.on = False
            code_patch.remove()
            delattr(kind, _MARK)

        return undo

    # A class of its own and not an attribute: `with_options` makes more of the same class.
    class Client(kind):  # type: ignore[misc]
        _llmtrace_patch = patch

    target.__class__ = responses.copy_identity(Client, kind)
    client = weakref.ref(target)

    def undo_one() -> None:
        patch.on = False
        code_patch.remove()
        alive = client()
        if alive is not None and type(alive) is Client:
            alive.__class__ = kind

    return undo_one


def is_instrumented(target: Any) -> bool:
    """Return whether exactly this class, or this one client, is instrumented already."""
    kind = target if inspect.isclass(target) else type(target)
    patch = vars(kind).get(_MARK)
    return patch is not None and patch.on


def bypassed(path: str, version: str) -> bool:
    """Return whether a request should have gone through `request`, and has not.

    By the path of its URL, and the version of its SDK as its header says.
    """
    for sdk in SDKS:
        base = sys.modules.get(f"{sdk}._base_client")
        if base is None or getattr(sys.modules.get(sdk), "__version__", None) != version:
            continue
        if is_instrumented(base.SyncAPIClient) and endpoint_at(path, sdk) is not None:
            return True
    return False


def _records(client: Any) -> bool:
    """Return whether a client is instrumented, alone or by its class."""
    kind = type(client)
    patch = getattr(kind, _MARK, None)
    if patch is None or patch.on:
        return patch is not None
    return any(vars(base)[_MARK].on for base in kind.__mro__ if _MARK in vars(base))


def _request(plain: Callable[..., Any]) -> Callable[..., Any]:
    def request(self: Any, cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        call = _begin(self, options, kwargs) if _records(self) else None
        if call is None:
            return plain(self, cast_to, options, *args, **kwargs)
        rejected = False
        try:
            with entered(call.recording):
                try:
                    result = plain(self, cast_to, call.options, *args, **kwargs)
                except Exception as error:
                    rejected = _take_back(call, error)
                    if not rejected:
                        raise
                if rejected:  # outside, so that another error does not chain this one
                    result = plain(self, cast_to, call.options, *args, **kwargs)
        except BaseException as error:
            _failed(call, error, rejected=rejected)
            raise
        return _deliver(call, result, rejected=rejected)

    return request


def _arequest(plain: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    async def request(self: Any, cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        call = _begin(self, options, kwargs) if _records(self) else None
        if call is None:
            return await plain(self, cast_to, options, *args, **kwargs)
        rejected = False
        try:
            with entered(call.recording):
                try:
                    result = await plain(self, cast_to, call.options, *args, **kwargs)
                except Exception as error:
                    rejected = _take_back(call, error)
                    if not rejected:
                        raise
                if rejected:
                    result = await plain(self, cast_to, call.options, *args, **kwargs)
        except BaseException as error:
            _failed(call, error, rejected=rejected)
            raise
        return _deliver(call, result, rejected=rejected)

    return request


def _take_back(call: _Call, error: Exception) -> bool:
    """Return whether to send the application's unaltered request after this error."""
    unaltered = None if call.altered is None else call.altered.unaltered_after(error)
    if unaltered is None:
        return False
    call.options = unaltered
    call.recording.usage_hidden = False
    return True


def _failed(call: _Call, error: BaseException, *, rejected: bool) -> None:
    call.recording.calling, call.recording.outgoing = False, None
    if rejected and call.altered is not None and isinstance(error, Exception):
        call.altered.fails_without(error)
    join_call.failed(call.recording, call.filled, error)


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
        recording, filled = join_call.join(runtime, info)
        recording.stream = bool(kwargs.get("stream"))
        recording.usage_hidden = False
        recording.calling = True
    except Exception as error:  # noqa: BLE001
        internal_error("sdk", error)
        return None
    call = _Call(recording, endpoint, options, str(info["server"]), filled)
    message_content.note_prompt(recording, endpoint.chunk, options.json_data)
    try:
        request_settings.note(recording, options.json_data)
        _prepare(runtime, client, call)
    except Exception as error:  # noqa: BLE001 - the request goes out as it was
        internal_error("sdk.request", error)
        call.options, call.altered = options, None
        recording.usage_hidden = False
    return call


def _known(client: Any, options: Any, endpoint: Endpoint, sdk: str | None) -> dict[str, Any]:
    """Return the row fields that the call itself gives."""
    host, server = _server(client)
    kind: Any = type(client)
    body = options.json_data if isinstance(options.json_data, dict) else {}
    model = body.get("model")
    return {
        "operation": endpoint.operation,
        "model": model if isinstance(model, str) else None,
        "provider": provider_of(host, kind) or sdk,
        "server": server,
        "client": sdk,
    }


def _server(client: Any) -> tuple[str, str]:
    """Return the host a client calls, and the same with its port, if the URL names one."""
    url = client._base_url  # noqa: SLF001 - OpenAI's `base_url` takes longer than all of this
    known: tuple[Any, str, str] | None = getattr(client, "_llmtrace_server", None)
    if known is None or known[0] is not url:
        known = url, url.host, with_port(url.host, url.port)
        client._llmtrace_server = known  # noqa: SLF001 - our own attribute on their object
    return known[1:]


def _prepare(runtime: Runtime, client: Any, call: _Call) -> None:
    """Note the headers to send, and request usage on a copy of the request's options."""
    recording, options = call.recording, call.options
    given = options.headers if is_mapping(options.headers) else {}
    # The client's own: `default_headers` would compute all the others for each request.
    custom = getattr(client, "_custom_headers", None)
    if not is_mapping(custom):
        custom = client.default_headers
    raw = given.get(_RAW_HEADER)
    parsed = recording.stream and raw != "stream"
    host = _server(client)[0]
    added = propagation.outgoing(recording, {**custom, **given}, host, parsed=parsed)
    # Its HTTP client adds them: the SDK would take each through half a dozen merges.
    recording.outgoing = client._client, added  # noqa: SLF001
    # A raw stream's bytes are read by the application: nothing could be hidden among them.
    if not (recording.stream and call.endpoint.usage_option and runtime.ask_usage) or (
        raw == "stream"
    ):
        return
    call.altered = alter(options, host, call.server)
    if call.altered is not None:
        call.options = call.altered.options
        recording.usage_hidden = call.options is not options


# How the SDKs mark that `with_raw_response` or `with_streaming_response` was used.
_RAW_HEADER: Final = "X-Stainless-Raw-Response"


def _deliver(call: _Call, result: Any, *, rejected: bool) -> Any:
    """Return the SDK's result, timed from here on."""
    call.recording.calling, call.recording.outgoing = False, None
    if call.altered is not None:
        (call.altered.works_without if rejected else call.altered.taken)()
    try:
        responses.deliver(call.recording, call.endpoint, result)
    except Exception as error:  # noqa: BLE001
        responses.unrecorded(call.recording, call.endpoint, result, error)
    return result
