"""How does one HTTP attempt split into its network phases, under httpx and httpx2?

While an SDK's call is being recorded, `send` is timed through the `trace` extension of httpcore,
the live socket is asked for its round trip, and the answer's first byte and its close are noted.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import lru_cache, wraps
from typing import Any, Final

from llmtrace.failopen import internal_error
from llmtrace.record import Attempt, Clock, Recording
from llmtrace.runtime import current
from llmtrace.wrappers import dns, headers, kernel
from llmtrace.wrappers.chunks import raw_sse
from llmtrace.wrappers.reads import areads, reads

_LIBRARIES: Final = ("httpx", "httpx2")


class _Phases:
    """Turns httpcore's events of one attempt into its phases."""

    __slots__ = ("_attempt", "_clock", "_connect", "_tls")

    def __init__(self, attempt: Attempt, clock: Clock) -> None:
        self._attempt = attempt
        self._clock = clock
        self._connect = self._tls = 0

    def event(self, name: str) -> None:
        """Note an event: `connection.connect_tcp.started`, `http11.send_request_body.complete`."""
        attempt = self._attempt
        phase = name.partition(".")[2]
        if phase in {"connect_tcp.started", "connect_unix_socket.started"}:
            self._connect = now = self._clock()
            if attempt.first_wire is None:
                attempt.first_wire = now
        elif phase in {"connect_tcp.complete", "connect_unix_socket.complete"}:
            if attempt.dns is None and dns.watching():
                attempt.dns = 0  # an address, not a name: there was nothing to resolve
            took = self._clock() - self._connect - (attempt.dns or 0)
            attempt.connect = (attempt.connect or 0) + max(0, took)
        elif phase == "start_tls.started":
            self._tls = self._clock()
        elif phase == "start_tls.complete":
            attempt.tls = (attempt.tls or 0) + self._clock() - self._tls
        elif phase == "send_request_headers.started":
            attempt.send_started = now = self._clock()
            if attempt.first_wire is None:
                # A pooled connection: nothing was resolved or connected, and that was seen.
                attempt.first_wire = now
                attempt.dns = attempt.connect = attempt.tls = 0
            elif attempt.tls is None:
                attempt.tls = 0
        elif phase == "send_request_body.complete":
            attempt.send = self._clock() - (attempt.send_started or 0)
            attempt.sent = True


def _trace(attempt: Attempt, clock: Clock, theirs: Any) -> Callable[[str, Any], None]:
    phases = _Phases(attempt, clock)

    def trace(name: str, info: Any) -> None:
        try:
            phases.event(name)
        except Exception as error:  # noqa: BLE001
            internal_error("http.trace", error)
        if theirs is not None:
            theirs(name, info)

    return trace


def _atrace(attempt: Attempt, clock: Clock, theirs: Any) -> Callable[[str, Any], Awaitable[None]]:
    phases = _Phases(attempt, clock)

    async def trace(name: str, info: Any) -> None:
        try:
            phases.event(name)
        except Exception as error:  # noqa: BLE001
            internal_error("http.trace", error)
        if theirs is not None:
            await theirs(name, info)

    return trace


def _begin(request: Any, make_trace: Callable[..., Any]) -> tuple[Recording, Attempt] | None:
    recording = current.get()
    if recording is None or not recording.on_the_wire:
        return None
    try:
        attempt = recording.attempt()
        theirs = request.extensions.get("trace")
        trace = make_trace(attempt, recording.clock, theirs)
        request.extensions = {**request.extensions, "trace": trace}
    except Exception as error:  # noqa: BLE001
        internal_error("http", error)
        return None
    return recording, attempt


def _answered(recording: Recording, attempt: Attempt, response: Any, *, stream: bool) -> None:
    try:
        attempt.answered = recording.clock()
        attempt.status = response.status_code
        network_stream = response.extensions.get("network_stream")
        if network_stream is not None:
            kernel.look(attempt, network_stream.get_extra_info("socket"))
        if response.is_success:
            headers.incoming(recording, response.headers)
            if stream:
                _watch(recording, response)
    except Exception as error:  # noqa: BLE001
        internal_error("http", error)


def _watch(recording: Recording, response: Any) -> None:
    """Note the first byte of a streamed answer, and when it is closed, whoever closes it."""
    library = sys.modules[type(response).__module__.partition(".")[0]]
    kind: Any = type(response)
    response.stream = _first_byte(library)(recording, response.stream)
    response.__class__ = _watched(kind)
    response._llmtrace = recording  # noqa: SLF001 - our own attribute on their object


@lru_cache(maxsize=8)
def _watched(kind: Any) -> type[Any]:
    """Make the subclass of a response that says when it is closed.

    A subclass and not an attribute on the instance: that would be a reference cycle, and keep
    connections of dropped answers open until the garbage collector comes by.
    """

    class Response(kind):  # type: ignore[misc]
        def close(self) -> None:
            try:
                super().close()
            finally:
                self._llmtrace.closed()

        async def aclose(self) -> None:
            try:
                await super().aclose()
            finally:
                self._llmtrace.closed()

    Response.__name__, Response.__qualname__ = kind.__name__, kind.__qualname__
    Response.__module__ = kind.__module__
    return Response


@lru_cache(maxsize=4)
def _first_byte(library: Any) -> type[Any]:
    """Make the byte stream that notes its first chunk and is then out of the way."""

    class FirstByte(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc]
        def __init__(self, recording: Recording, stream: Any) -> None:
            self._recording = recording
            self._stream = stream

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

        def _note(self) -> None:
            try:
                if self._recording.first_byte is None:
                    self._recording.first_byte = self._recording.clock()
            except Exception as error:  # noqa: BLE001
                internal_error("http", error)

        def __iter__(self) -> Iterator[bytes]:
            chunks = self._each()
            if self._recording.raw:
                return reads(self._recording, chunks.__next__, raw_sse)
            return chunks

        def _each(self) -> Iterator[bytes]:
            chunks = iter(self._stream)
            for chunk in chunks:
                self._note()
                yield chunk
                break
            yield from chunks

        def __aiter__(self) -> AsyncIterator[bytes]:
            chunks = _AsyncFirstByte(self._note, self._stream.__aiter__())
            if self._recording.raw:
                return areads(self._recording, chunks.__anext__, raw_sse)
            return chunks

        def close(self) -> None:
            self._stream.close()

        async def aclose(self) -> None:
            await self._stream.aclose()

    return FirstByte


class _AsyncFirstByte:
    """Hands out the stream's own awaitables; only the first is looked at."""

    __slots__ = ("_next", "_note")

    def __init__(self, note: Callable[[], None], chunks: AsyncIterator[bytes]) -> None:
        self._note: Callable[[], None] | None = note
        self._next = chunks.__anext__

    def __aiter__(self) -> _AsyncFirstByte:
        return self

    def __anext__(self) -> Awaitable[bytes]:
        return self._next() if self._note is None else self._first(self._note)

    async def _first(self, note: Callable[[], None]) -> bytes:
        chunk = await self._next()
        self._note = None
        note()
        return chunk


def _send(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        begun = _begin(request, _trace)
        response = plain(self, request, *args, **kwargs)
        if begun is not None:
            _answered(*begun, response, stream=bool(kwargs.get("stream")))
        return response

    return send


def _asend(plain: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(plain)
    async def send(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        begun = _begin(request, _atrace)
        response = await plain(self, request, *args, **kwargs)
        if begun is not None:
            _answered(*begun, response, stream=bool(kwargs.get("stream")))
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
    ours, ours_async = _send(plain), _asend(plain_async)
    library.Client.send, library.AsyncClient.send = ours, ours_async

    def undo() -> None:
        # Where somebody patched over us since, theirs stays, and ours is passed through.
        if library.Client.send is ours:
            library.Client.send = plain
        if library.AsyncClient.send is ours_async:
            library.AsyncClient.send = plain_async

    return undo
