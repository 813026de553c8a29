"""How does one HTTP request under aiohttp split into its network phases?

A `TraceConfig` that notes them on the request being recorded: for decorated functions that stream
over aiohttp themselves. aiohttp does not tell TCP from TLS: `connect` holds both.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable
from functools import wraps
from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakSet

import aiohttp

from llmtrace.failopen import internal_error
from llmtrace.record import Attempt, Recording
from llmtrace.runtime import current
from llmtrace.wrappers import headers, kernel

_Note = Callable[[Recording, Attempt, SimpleNamespace, Any], None]


def _connecting(recording: Recording, attempt: Attempt, seen: SimpleNamespace, _: Any) -> None:
    seen.connecting = attempt.first_wire = recording.clock()


def _connected(recording: Recording, attempt: Attempt, seen: SimpleNamespace, _: Any) -> None:
    seen.ready = recording.clock()
    if attempt.dns is None:
        attempt.dns = 0
    attempt.connect = max(0, seen.ready - seen.connecting - attempt.dns)


def _resolving(recording: Recording, attempt: Attempt, seen: SimpleNamespace, _: Any) -> None:
    seen.resolving = recording.clock() - (attempt.dns or 0)


def _resolved(recording: Recording, attempt: Attempt, seen: SimpleNamespace, _: Any) -> None:
    # In place of what was timed inside, where the resolver is one that `dns` sees as well.
    attempt.dns = recording.clock() - seen.resolving


def _reused(recording: Recording, attempt: Attempt, seen: SimpleNamespace, _: Any) -> None:
    seen.ready = attempt.first_wire = recording.clock()
    attempt.dns = attempt.connect = attempt.tls = 0


def _sent(recording: Recording, attempt: Attempt, seen: SimpleNamespace, _: Any) -> None:
    if hasattr(seen, "ready"):
        attempt.send_started = seen.ready
        attempt.send = recording.clock() - seen.ready
        attempt.sent = True


def _answered(recording: Recording, attempt: Attempt, _: SimpleNamespace, params: Any) -> None:
    attempt.answered = recording.clock()
    attempt.status = params.response.status
    connection = params.response.connection
    transport = None if connection is None else connection.transport
    kernel.look(attempt, None if transport is None else transport.get_extra_info("socket"))
    if params.response.ok:
        told = params.response.headers
        headers.incoming(recording, {name: ", ".join(told.getall(name)) for name in told})


def _received(recording: Recording, _: Attempt, __: SimpleNamespace, ___: Any) -> None:
    if recording.first_byte is None:
        recording.first_byte = recording.clock()


def _callback(note: _Note) -> Callable[..., Awaitable[None]]:
    async def callback(_: Any, seen: SimpleNamespace, params: Any) -> None:
        recorded: tuple[Recording, Attempt] | None = getattr(seen, "llmtrace", None)
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
        seen.llmtrace = recording, recording.attempt()
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
        (config.on_response_chunk_received, _received),
    ):
        cast("Any", signal).append(_callback(note))
    config.freeze()
    return config


# Configurations made here, by which a session that has one is known.
_made: WeakSet[aiohttp.TraceConfig] = WeakSet()


def is_instrumented(target: Any) -> bool:
    """Say whether the session class, or this one session, is instrumented already."""
    if isinstance(target, type):
        kind: Any = target
        return getattr(kind.__init__, "_llmtrace", False)
    return any(config in _made for config in target.trace_configs)


def instrument_session(session: aiohttp.ClientSession) -> Callable[[], None]:
    """Time the requests of one session; return what undoes it. It does not keep it alive."""
    config = trace_config()
    _made.add(config)
    session.trace_configs.append(config)
    reference = weakref.ref(session)

    def undo() -> None:
        alive = reference()
        if alive is not None and config in alive.trace_configs:
            alive.trace_configs.remove(config)

    return undo


def instrument_class(kind: Any) -> Callable[[], None]:
    """Time the requests of every session made from here on; return what undoes it."""
    plain = kind.__init__

    @wraps(plain)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - stands for it
        plain(self, *args, **kwargs)
        try:
            instrument_session(self)
        except Exception as error:  # noqa: BLE001 - the session works without
            internal_error("aiohttp", error)

    __init__._llmtrace = True  # type: ignore[attr-defined]  # noqa: SLF001
    kind.__init__ = __init__

    def undo() -> None:
        if kind.__init__ is __init__:
            kind.__init__ = plain

    return undo
