"""Split one HTTP attempt of httpx or httpx2 into its network phases.

While an SDK's call is being recorded, `send` is timed through the `trace` extension of httpcore,
the live socket's round trip is read, and the response's first byte and close are noted.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache, partial, wraps
from operator import itemgetter
from typing import Any, Final

from llmtrace.core.attempt_clock import LiveAttempt
from llmtrace.core.error_outcomes import type_name
from llmtrace.core.failopen import internal_error
from llmtrace.core.recording import Recording
from llmtrace.core.request_clock import Clock
from llmtrace.instrumentation.headers import propagation, sse_comments
from llmtrace.instrumentation.http import (
    dns,
    httpx_bodies,
    httpx_requests,
    llm_requests,
    phases,
    tcp_info,
)
from llmtrace.runtime.runtime import current, entered

_LIBRARIES: Final = ("httpx", "httpx2")


def _trace(
    attempt: LiveAttempt, clock: Clock, extensions: dict[str, Any]
) -> Callable[[str, Any], None]:
    theirs = extensions.get("trace")
    note = phases.noting(attempt, clock, partial(_give_back, extensions, theirs))
    if theirs is None:
        return note

    def trace(name: str, info: Any) -> None:
        note(name, info)
        theirs(name, info)

    return trace


def _atrace(
    attempt: LiveAttempt, clock: Clock, extensions: dict[str, Any]
) -> Callable[[str, Any], Awaitable[None]]:
    theirs = extensions.get("trace")
    note = phases.noting(attempt, clock, partial(_give_back, extensions, theirs))

    async def trace(name: str, info: Any) -> None:
        note(name, info)
        if theirs is not None:
            await theirs(name, info)

    return trace


def _give_back(extensions: dict[str, Any], theirs: Any) -> None:
    """Stop httpcore's events for a request that is sent: it saves time."""
    if theirs is None:
        extensions.pop("trace", None)
    else:
        extensions["trace"] = theirs


def _begin(
    sender: Any, request: Any, make_trace: Callable[..., Any]
) -> tuple[Recording, LiveAttempt] | None:
    recording = current.get()
    if recording is None or not recording.on_the_wire:
        return None
    try:
        if recording.outgoing is not None and recording.outgoing[0] is sender:
            _add_headers(recording, request, recording.outgoing[1])
    except Exception as error:  # noqa: BLE001 - the request goes out as it was
        internal_error("http.headers", error)
    recording.span.count_once()
    try:
        attempt = recording.attempt()
        attempt.under_way = True
        # Our own copy: retries may share the application's.
        request.extensions = extensions = dict(request.extensions)
        extensions["trace"] = make_trace(attempt, recording.clock, extensions)
    except Exception as error:  # noqa: BLE001
        internal_error("http", error)
        return None
    return recording, attempt


def _add_headers(recording: Recording, request: Any, added: Mapping[str, str]) -> None:
    """Set headers on a request: once, however often it is sent."""
    if getattr(request, "_llmtrace", None) is recording:
        return
    request._llmtrace = recording  # noqa: SLF001 - our own attribute on their object
    try:
        # The documented way searches all of them for each one, several times.
        ours = [(*_name(name), text.encode("latin-1")) for name, text in added.items()]
        names = {lowered for _, lowered, _ in ours}
        listed = request.headers._list  # noqa: SLF001
        listed[:] = [one for one in listed if one[1] not in names] + ours
    except AttributeError:
        request.headers.update(added)


@lru_cache(maxsize=16)
def _name(name: str) -> tuple[bytes, bytes]:
    """Return the name of a header as sent, and its lower-case form for look-ups."""
    return name.encode(), name.lower().encode()


def _answered(recording: Recording, attempt: LiveAttempt, response: Any, *, stream: bool) -> None:
    try:
        attempt.under_way = False
        attempt.answered = recording.clock()
        attempt.status = status = response.status_code
        network_stream = response.extensions.get("network_stream")
        if network_stream is not None:
            tcp_info.answered(recording, attempt, _socket(network_stream))
        ok = llm_requests.is_success(status)
        more = propagation.answered(recording, _raw(response.headers), ok=ok)
        if status >= llm_requests.HTTP_ERROR:
            attempt.ended = attempt.answered
            attempt.retry_after = propagation.retry_after(recording)
        if ok and stream:
            httpx_bodies.watch(recording, response, comments=more)
            if more:
                sse_comments.watch(recording, response)
    except Exception as error:  # noqa: BLE001
        internal_error("http", error)


_as_sent: Final = itemgetter(0, 2)


def _raw(headers: Any) -> Iterable[tuple[bytes, bytes]]:
    """Return headers as they came: httpx's own look-ups search the whole list for every name."""
    listed = getattr(headers, "_list", None)
    return headers.raw if listed is None else map(_as_sent, listed)


def _socket(network_stream: Any) -> Any:
    # anyio's plain TCP stream: the documented way costs dozens of microseconds.
    inner = getattr(network_stream, "_stream", None)
    known = getattr(inner, "_raw_socket", None)
    return network_stream.get_extra_info("socket") if known is None else known


def _broke(recording: Recording, attempt: LiveAttempt, error: BaseException) -> None:
    try:
        response = getattr(error, "response", None)
        if isinstance(getattr(response, "extensions", None), dict):
            # Raised by the client's event hook or auth: the server had responded.
            _answered(recording, attempt, response, stream=False)
        attempt.under_way = False
        if attempt.ended is None:
            attempt.ended, attempt.error = recording.clock(), type_name(error)
    except Exception as broken:  # noqa: BLE001
        internal_error("http", broken)


def _send(plain: Callable[..., Any], client: str) -> Callable[..., Any]:
    @wraps(plain)
    def send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        call = httpx_requests.begin(client, self, request)
        if call is not None:
            return recorded(call, self, request, args, kwargs)
        begun = _begin(self, request, _trace)
        if begun is None:
            return plain(self, request, *args, **kwargs)
        try:
            response = plain(self, request, *args, **kwargs)
        except BaseException as error:
            _broke(*begun, error)
            raise
        _answered(*begun, response, stream=bool(kwargs.get("stream")))
        return response

    def recorded(
        call: httpx_requests.Begun, self: Any, request: Any, args: Any, kwargs: Any
    ) -> Any:
        post, added = call
        try:
            with entered(post.recording):  # so that it is an attempt of this call
                response = send(self, request, *args, **kwargs)
        except BaseException as error:
            llm_requests.failed(post, error)
            raise
        finally:
            httpx_requests.take_back(request, added)
        httpx_requests.deliver(post, response, stream=bool(kwargs.get("stream")))
        return response

    return send


def _asend(plain: Callable[..., Awaitable[Any]], client: str) -> Callable[..., Awaitable[Any]]:
    @wraps(plain)
    async def send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        call = httpx_requests.begin(client, self, request)
        if call is not None:
            return await recorded(call, self, request, args, kwargs)
        begun = _begin(self, request, _atrace)
        if begun is None:
            return await plain(self, request, *args, **kwargs)
        try:
            response = await plain(self, request, *args, **kwargs)
        except BaseException as error:
            _broke(*begun, error)
            raise
        _answered(*begun, response, stream=bool(kwargs.get("stream")))
        return response

    async def recorded(
        call: httpx_requests.Begun, self: Any, request: Any, args: Any, kwargs: Any
    ) -> Any:
        post, added = call
        try:
            with entered(post.recording):
                response = await send(self, request, *args, **kwargs)
        except BaseException as error:
            llm_requests.failed(post, error)
            raise
        finally:
            httpx_requests.take_back(request, added)
        httpx_requests.deliver(post, response, stream=bool(kwargs.get("stream")))
        return response

    return send


_users = 0
_undo: dict[str, Callable[[], None]] = {}


def install() -> None:
    """Time the HTTP attempts of recorded calls from here on; each call needs its `uninstall`."""
    global _users
    _users += 1
    for name in _LIBRARIES:
        library = sys.modules.get(name)
        if library is not None and name not in _undo:
            _undo[name] = _patch(library)
    if "dns" not in _undo:
        _undo["dns"] = dns.install()


def uninstall() -> None:
    """Undo one `install`; the last one puts everything back."""
    global _users
    _users = max(0, _users - 1)
    while _users == 0 and _undo:
        _undo.popitem()[1]()


def _patch(library: Any) -> Callable[[], None]:
    plain, plain_async = library.Client.send, library.AsyncClient.send
    name = library.__name__
    ours, ours_async = _send(plain, name), _asend(plain_async, name)
    library.Client.send, library.AsyncClient.send = ours, ours_async

    def undo() -> None:
        # Where another library patched it since, its function stays, and ours passes calls
        # through.
        if library.Client.send is ours:
            library.Client.send = plain
        if library.AsyncClient.send is ours_async:
            library.AsyncClient.send = plain_async

    return undo
