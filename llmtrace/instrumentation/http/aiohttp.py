"""Split one aiohttp request into its network phases, and record requests to models as rows.

A `TraceConfig` notes the phases on the request being recorded; a request to a model that is not
recorded yet gets a row. aiohttp does not distinguish TCP from TLS: `connect` includes both.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakSet

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from llmtrace.core.attempt_clock import LiveAttempt
from llmtrace.core.error_outcomes import type_name
from llmtrace.core.failopen import internal_error
from llmtrace.core.recording import Recording
from llmtrace.instrumentation.headers import propagation
from llmtrace.instrumentation.http import aiohttp_bodies, llm_requests, tcp_info
from llmtrace.runtime.runtime import current, entered

_Note = Callable[[Recording, LiveAttempt, SimpleNamespace, Any], None]


def _connecting(recording: Recording, attempt: LiveAttempt, seen: SimpleNamespace, _: Any) -> None:
    seen.connecting, seen.dns_before = recording.clock(), attempt.dns or 0
    if attempt.first_wire is None:  # else a redirect was followed
        attempt.first_wire = seen.connecting


def _connected(recording: Recording, attempt: LiveAttempt, seen: SimpleNamespace, _: Any) -> None:
    seen.ready = recording.clock()
    if attempt.dns is None:
        attempt.dns = 0
    took = seen.ready - seen.connecting - (attempt.dns - seen.dns_before)
    attempt.connect = (attempt.connect or 0) + max(0, took)


def _resolving(recording: Recording, attempt: LiveAttempt, seen: SimpleNamespace, _: Any) -> None:
    seen.resolving = recording.clock() - (attempt.dns or 0)


def _resolved(recording: Recording, attempt: LiveAttempt, seen: SimpleNamespace, _: Any) -> None:
    # Replaces the time that `dns` noted, where the resolver is one that it sees as well.
    attempt.dns = recording.clock() - seen.resolving


def _reused(recording: Recording, attempt: LiveAttempt, seen: SimpleNamespace, _: Any) -> None:
    seen.ready = recording.clock()
    if attempt.first_wire is None:
        attempt.first_wire = seen.ready
        attempt.dns = attempt.connect = attempt.tls = 0


def _sent(recording: Recording, attempt: LiveAttempt, seen: SimpleNamespace, _: Any) -> None:
    if hasattr(seen, "ready"):
        attempt.send_started = seen.ready
        attempt.send = recording.clock() - seen.ready
        attempt.sent = True


def _answered(recording: Recording, attempt: LiveAttempt, _: SimpleNamespace, params: Any) -> None:
    if attempt.answered is not None:
        return  # before the application's own `raise_for_status`
    attempt.answered = recording.clock()
    attempt.status = params.response.status
    connection = params.response.connection
    transport = None if connection is None else connection.transport
    sock = None if transport is None else transport.get_extra_info("socket")
    tcp_info.answered(recording, attempt, sock)
    response = params.response
    if propagation.answered(
        recording, response.raw_headers, ok=llm_requests.is_success(response.status)
    ):
        response._llmtrace_comments = True  # noqa: SLF001 - our own attribute on their object
    if not response.ok:
        attempt.ended, attempt.retry_after = attempt.answered, propagation.retry_after(recording)


def _broke(recording: Recording, attempt: LiveAttempt, _: SimpleNamespace, params: Any) -> None:
    error = params.exception
    if attempt.ended is None:
        attempt.ended, attempt.error = recording.clock(), type_name(error)
    if isinstance(error, aiohttp.ClientResponseError) and attempt.answered is None:
        # Raised by `raise_for_status=True`: there was a response.
        attempt.answered, attempt.status = attempt.ended, error.status
        attempt.error = None
        raw = [(name.encode(), value.encode()) for name, value in (error.headers or {}).items()]
        propagation.answered(recording, raw, ok=False)
        attempt.retry_after = propagation.retry_after(recording)


def _received(recording: Recording, _: LiveAttempt, __: SimpleNamespace, ___: Any) -> None:
    if recording.first_byte is None:
        recording.first_byte = recording.clock()


def _callback(note: _Note) -> Callable[..., Awaitable[None]]:
    async def callback(_: Any, seen: SimpleNamespace, params: Any) -> None:
        recorded: tuple[Recording, LiveAttempt] | None = getattr(seen, "llmtrace", None)
        if recorded is not None:
            try:
                note(*recorded, seen, params)
            except Exception as error:  # noqa: BLE001 - the request must not notice
                internal_error("aiohttp", error)

    return callback


async def _begin(_: Any, seen: SimpleNamespace, __: Any) -> None:
    recording = current.get()
    if recording is None or not recording.on_the_wire:
        return
    try:
        last = recording.attempts[-1] if recording.attempts else None
        # httpx may send its requests through aiohttp: then they are one attempt.
        under_way = last is not None and last.under_way
        seen.llmtrace = recording, last if under_way else recording.attempt()
    except Exception as error:  # noqa: BLE001
        internal_error("aiohttp", error)


def trace_config() -> aiohttp.TraceConfig:
    """Make the trace configuration to give a `ClientSession`, if not by `llmtrace.instrument`."""
    config = aiohttp.TraceConfig()
    config.on_request_start.append(_begin)
    for signal, note in (
        (config.on_connection_create_start, _connecting),
        (config.on_connection_create_end, _connected),
        (config.on_dns_resolvehost_start, _resolving),
        (config.on_dns_resolvehost_end, _resolved),
        (config.on_connection_reuseconn, _reused),
        (config.on_request_headers_sent, _sent),
        (config.on_request_chunk_sent, _sent),
        (config.on_request_end, _answered),
        (config.on_request_exception, _broke),
        (config.on_response_chunk_received, _received),
    ):
        cast("Any", signal).append(_callback(note))
    config.freeze()
    return config


# Configurations made here; they identify the sessions that have one.
_made: WeakSet[aiohttp.TraceConfig] = WeakSet()


def is_instrumented(target: Any) -> bool:
    """Return whether the session class, or this one session, is instrumented already."""
    if isinstance(target, type):
        kind: Any = target
        return getattr(kind.__init__, "_llmtrace", False)
    return any(config in _made for config in target.trace_configs)


def instrument_session(session: aiohttp.ClientSession) -> Callable[[], None]:
    """Record one session, without keeping it alive; return the function that undoes it."""
    config = trace_config()
    _made.add(config)
    session.trace_configs.append(config)
    reference = weakref.ref(session)
    release = _patch_requests()

    def undo() -> None:
        alive = reference()
        if alive is not None and config in alive.trace_configs:
            alive.trace_configs.remove(config)
        release()

    return undo


def instrument_class(kind: Any) -> Callable[[], None]:
    """Record every session made from here on; return the function that undoes it."""
    plain = kind.__init__

    @wraps(plain)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - replaces it
        plain(self, *args, **kwargs)
        try:
            config = trace_config()
            _made.add(config)
            self.trace_configs.append(config)
        except Exception as error:  # noqa: BLE001 - the session works without
            internal_error("aiohttp", error)

    __init__._llmtrace = True  # type: ignore[attr-defined]  # noqa: SLF001
    kind.__init__ = __init__
    release = _patch_requests()

    def undo() -> None:
        if kind.__init__ is __init__:
            kind.__init__ = plain
        release()

    return undo


# --- requests to models that no SDK makes --------------------------------------------------------

_users = 0
_unpatch: list[Callable[[], None]] = []


def _patch_requests() -> Callable[[], None]:
    """Look at instrumented sessions' requests from here on; return the function that undoes it."""
    global _users
    _users += 1
    if not _unpatch:
        _unpatch.append(_patch(aiohttp.ClientSession))

    def release() -> None:
        global _users
        _users -= 1
        while _users == 0 and _unpatch:
            _unpatch.pop()()

    return release


def _patch(kind: Any) -> Callable[[], None]:
    # All of a session's methods call this one; trace configurations do not see the body.
    plain = kind._request  # noqa: SLF001

    @wraps(plain)
    async def _request(self: Any, method: str, url: Any, **options: Any) -> Any:
        _note_before_raising(self, options)
        call = _post(self, method, url, options) if is_instrumented(self) else None
        if call is None:
            return await plain(self, method, url, **options)
        post, options = call
        try:
            with entered(post.recording):
                response = await plain(self, method, url, **options)
        except BaseException as error:
            llm_requests.failed(post, error)
            raise
        _deliver(post, response)
        return response

    kind._request = _request  # noqa: SLF001

    def undo() -> None:
        if kind._request is _request:  # noqa: SLF001
            kind._request = plain  # noqa: SLF001

    return undo


def _note_before_raising(session: Any, options: dict[str, Any]) -> None:
    """Note the response before the application's own `raise_for_status` may raise.

    Trace configurations are given the exception alone.
    """
    if current.get() is None and not is_instrumented(session):
        return
    theirs = options.get("raise_for_status")
    if theirs is None:
        theirs = getattr(session, "_raise_for_status", None)
    if not callable(theirs):
        return

    async def raise_for_status(response: Any) -> None:
        recording = current.get()
        if recording is not None and recording.attempts:
            try:
                attempt = recording.attempts[-1]
                _answered(
                    recording, attempt, SimpleNamespace(), SimpleNamespace(response=response)
                )
            except Exception as error:  # noqa: BLE001 - the request must not notice
                internal_error("aiohttp", error)
        await theirs(response)

    options["raise_for_status"] = raise_for_status


def _post(
    session: Any, method: str, url: Any, options: dict[str, Any]
) -> tuple[llm_requests.LlmRequest, dict[str, Any]] | None:
    """Begin recording a request if it calls a model; return it, and the options to send."""
    if method.upper() != "POST":
        return None
    try:
        whole = _url(session, url)
        host = whole.host or ""
        post = llm_requests.begin("aiohttp", host, whole.explicit_port, whole.path, _body(options))
    except Exception as error:  # noqa: BLE001 - the request goes out unrecorded
        internal_error("aiohttp.post", error)
        return None
    if post is None:
        return None
    try:
        given = CIMultiDict(options.get("headers") or ())
        added = propagation.outgoing(post.recording, {**session.headers, **given}, host)
        given.update(added)
    except Exception as error:  # noqa: BLE001 - the request goes out as it was
        internal_error("aiohttp.post", error)
        return post, options
    return post, {**options, "headers": given}


def _body(options: Mapping[str, Any]) -> bytes | Mapping[str, Any] | None:
    fields, data = options.get("json"), options.get("data")
    if isinstance(fields, Mapping):
        return fields
    if isinstance(data, str):
        return data.encode("utf-8", "replace")
    return bytes(data) if isinstance(data, bytes | bytearray) else None


def _url(session: Any, url: Any) -> URL:
    base = getattr(session, "_base_url", None)
    given = URL(url)
    return base.join(given) if base is not None and not given.absolute else given


def _deliver(post: llm_requests.LlmRequest, response: Any) -> None:
    """Time the reading of a response from here on."""
    recording = post.recording
    recording.calling = False
    try:
        # A redirect that is not followed is no response either.
        if not llm_requests.is_success(response.status):
            llm_requests.rejected(post, response.status, None, ends=False)
            aiohttp_bodies.watch_error_body(recording, response)
        else:
            aiohttp_bodies.watch(
                post,
                response,
                events=llm_requests.is_stream(response.headers.get("content-type", "")),
                comments=getattr(response, "_llmtrace_comments", False),
            )
    except Exception as error:  # noqa: BLE001
        internal_error("aiohttp.post", error)
        recording.finish("success")
