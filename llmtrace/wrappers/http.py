"""How does one HTTP attempt split into its network phases, under httpx and httpx2?

While an SDK's call is being recorded, `send` is timed through the `trace` extension of httpcore,
the live socket is asked for its round trip, and the answer's first byte and its close are noted.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from functools import lru_cache, wraps
from typing import Any, Final

from llmtrace.failopen import internal_error
from llmtrace.record import Attempt, Clock, Recording
from llmtrace.runtime import current
from llmtrace.wrappers import dns, headers, kernel, letgo, phases
from llmtrace.wrappers.chunks import nothing, raw_sse
from llmtrace.wrappers.reads import Classify, areads, reads

_LIBRARIES: Final = ("httpx", "httpx2")


def _trace(
    attempt: Attempt, clock: Clock, extensions: dict[str, Any]
) -> Callable[[str, Any], None]:
    theirs = extensions.get("trace")

    def trace(name: str, info: Any) -> None:
        _note(attempt, clock, (name, info), extensions, theirs)
        if theirs is not None:
            theirs(name, info)

    return trace


def _atrace(
    attempt: Attempt, clock: Clock, extensions: dict[str, Any]
) -> Callable[[str, Any], Awaitable[None]]:
    theirs = extensions.get("trace")

    async def trace(name: str, info: Any) -> None:
        _note(attempt, clock, (name, info), extensions, theirs)
        if theirs is not None:
            await theirs(name, info)

    return trace


def _note(
    attempt: Attempt, clock: Clock, event: tuple[str, Any], extensions: dict[str, Any], theirs: Any
) -> None:
    try:
        phases.note(attempt, clock, *event)
        if attempt.sent:
            # Nothing that follows is of interest: httpcore need not tell us, and saves its time.
            if theirs is None:
                extensions.pop("trace", None)
            else:
                extensions["trace"] = theirs
    except Exception as error:  # noqa: BLE001
        internal_error("http.trace", error)


def _begin(request: Any, make_trace: Callable[..., Any]) -> tuple[Recording, Attempt] | None:
    recording = current.get()
    if recording is None or not recording.on_the_wire:
        return None
    try:
        attempt = recording.attempt()
        # A copy of ours: retries may share the caller's.
        request.extensions = extensions = dict(request.extensions)
        extensions["trace"] = make_trace(attempt, recording.clock, extensions)
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
            kernel.look(attempt, _socket(network_stream))
        if response.is_success:
            # Decoded once: httpx's own look-ups search the whole list for every name.
            told: dict[str, str] = {}
            for name, value in response.headers.raw:
                if (low := name.lower()) in headers.NAMES:
                    key, text = low.decode(), value.decode("latin-1")
                    told[key] = f"{told[key]}, {text}" if key in told else text
            headers.incoming(recording, told)
            if stream:
                _watch(recording, response)
    except Exception as error:  # noqa: BLE001
        internal_error("http", error)


def _socket(network_stream: Any) -> Any:
    try:
        # anyio's plain TCP stream: asking it the documented way costs dozens of microseconds.
        return network_stream._stream._raw_socket  # noqa: SLF001
    except AttributeError:
        return network_stream.get_extra_info("socket")


def _watch(recording: Recording, response: Any) -> None:
    """Note the first byte of a streamed answer, and when it is closed, whoever closes it."""
    library = sys.modules[type(response).__module__.partition(".")[0]]
    kind: Any = type(response)
    kinds = (library.SyncByteStream, library.AsyncByteStream)
    bases = tuple(base for base in kinds if isinstance(response.stream, base))
    response.stream = _first_byte(bases)(recording, response.stream)
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
                letgo.closed(self._llmtrace)

        async def aclose(self) -> None:
            try:
                await super().aclose()
            finally:
                letgo.closed(self._llmtrace)

    Response.__name__, Response.__qualname__ = kind.__name__, kind.__qualname__
    Response.__module__ = kind.__module__
    return Response


@lru_cache(maxsize=8)
def _first_byte(bases: tuple[Any, ...]) -> type[Any]:
    """Make the byte stream that notes its first chunk and is then out of the way."""

    class FirstByte(*bases):  # type: ignore[misc]
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

        def _classify(self) -> Classify:
            return raw_sse if self._recording.stream else nothing

        def __iter__(self) -> Iterator[bytes]:
            chunks = self._each()
            if self._recording.raw:
                return reads(self._recording, chunks.__next__, self._classify())
            return chunks

        def _each(self) -> Iterator[bytes]:
            chunks = iter(self._stream)
            for chunk in chunks:
                self._note()
                yield chunk
                break
            yield from chunks

        def __aiter__(self) -> AsyncIterator[bytes]:
            chunks = self._stream.__aiter__()
            first = _AsyncFirstByte(self._note, chunks, chunks)
            if self._recording.raw:
                timed = areads(self._recording, first.__anext__, self._classify())
                return _AsyncFirstByte(None, timed, timed, chunks)
            return first

        def close(self) -> None:
            self._stream.close()

        async def aclose(self) -> None:
            await self._stream.aclose()

    return FirstByte


class _AsyncFirstByte:
    """Hands out the stream's own awaitables; only the first is looked at.

    It can be closed like the async generator it stands for, since httpx2 does so where it can.
    """

    __slots__ = ("_close", "_next", "_note")

    def __init__(
        self, note: Callable[[], None] | None, chunks: AsyncIterator[bytes], *close: Any
    ) -> None:
        self._note = note
        self._next = chunks.__anext__
        self._close = close

    def __aiter__(self) -> _AsyncFirstByte:
        return self

    def __anext__(self) -> Awaitable[bytes]:
        return self._next() if self._note is None else self._first(self._note)

    async def _first(self, note: Callable[[], None]) -> bytes:
        chunk = await self._next()
        self._note = None
        note()
        return chunk

    async def asend(self, _: None) -> bytes:
        return await self.__anext__()

    async def athrow(self, *raised: Any) -> bytes:
        chunk: bytes = await self._close[0].athrow(*raised)
        return chunk

    async def aclose(self) -> None:
        for chunks in self._close:
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()


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
