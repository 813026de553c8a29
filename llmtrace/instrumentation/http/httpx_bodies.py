"""Watch the body of an httpx response; the response stays the same object.

Its first byte and its close are noted. Where no client parses it, it is timed piece by piece. The
body of an error is read for the error's code.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from functools import lru_cache, partial
from itertools import chain
from typing import Any

from llmtrace.core.failopen import internal_error
from llmtrace.core.recording import Recording
from llmtrace.instrumentation.http import llm_requests
from llmtrace.instrumentation.http.sse import Events
from llmtrace.instrumentation.http.unary_body import UnaryBody
from llmtrace.instrumentation.llm_sdks.chunks import nothing
from llmtrace.instrumentation.llm_sdks.responses import copy_identity
from llmtrace.instrumentation.streams import finalize
from llmtrace.instrumentation.streams.chunk_timing import Classify, atimed_reads, timed_reads


def watch(recording: Recording, response: Any, *, comments: bool = False) -> None:
    """Note the first byte of a streamed response, and when it is closed.

    Args:
        recording: of the request.
        response: as the HTTP library returned it.
        comments: whether a gateway may report its time in the stream.
    """
    kinds: Any = type(response), type(response.stream)
    response.stream = _body(*kinds)(recording, response, comments)
    response._llmtrace = recording  # noqa: SLF001 - our own attribute on their object


def watch_error_body(recording: Recording, response: Any) -> None:
    """End a row when the body of an error has been read, is closed or is garbage collected."""
    kind: Any = type(response)
    response.__class__ = _rejected(kind)
    response._llmtrace = recording  # noqa: SLF001 - our own attribute on their object
    if not recording.in_decorated_function:  # else the decorated function ends it, which may retry
        response._llmtrace_finalizer = finalize.StreamFinalizer(recording)  # noqa: SLF001


class _PassedOn:
    """An error's response whose body a gateway passes on: what it says is known as it comes."""

    def iter_raw(self: Any, *args: Any, **kwargs: Any) -> Iterator[bytes]:
        body = bytearray()
        for piece in super().iter_raw(*args, **kwargs):  # type: ignore[misc]
            self._llmtrace_piece(body, piece)
            yield piece

    async def aiter_raw(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[bytes]:
        body = bytearray()
        async for piece in super().aiter_raw(*args, **kwargs):  # type: ignore[misc]
            self._llmtrace_piece(body, piece)
            yield piece

    def _llmtrace_piece(self: Any, body: bytearray, piece: bytes) -> None:
        if len(body) <= llm_requests.MAX_PARSED:
            body += piece
            if piece.rstrip().endswith(b"}"):
                llm_requests.rejected_because(self._llmtrace, self.status_code, bytes(body))


@lru_cache(maxsize=8)
def _rejected(kind: Any) -> type[Any]:
    """Make the subclass of an error's response that looks at its body once that is read.

    A subclass and not an attribute on the instance: that would be a reference cycle, and keep
    connections of released responses open until the garbage collector runs.
    """

    class Response(_PassedOn, kind):  # type: ignore[misc]
        _llmtrace_reading = False

        def read(self) -> bytes:
            self._llmtrace_reading = True
            try:
                return super().read()  # type: ignore[no-any-return]
            finally:
                self._llmtrace_read()

        async def aread(self) -> bytes:
            self._llmtrace_reading = True
            try:
                return await super().aread()  # type: ignore[no-any-return]
            finally:
                self._llmtrace_read()

        def close(self) -> None:
            try:
                super().close()
            finally:
                self._llmtrace_closed()

        async def aclose(self) -> None:
            try:
                await super().aclose()
            finally:
                self._llmtrace_closed()

        def _llmtrace_read(self) -> None:
            self._llmtrace_reading = False
            body = getattr(self, "_content", None)
            if body is not None:
                llm_requests.rejected_because(self._llmtrace, self.status_code, body)
            self._llmtrace_closed()

        def _llmtrace_closed(self) -> None:
            if not self._llmtrace_reading:  # reading closes it before the whole body is here
                finalize.closed(self._llmtrace)

    return copy_identity(Response, kind)


class _WatchedBody(finalize.StreamFinalizer):
    """A response's byte stream that notes its first chunk, of whatever kinds it is made.

    Only the one that answers a client's call ends the row. A decorated function may read others
    before, such as documents to quote, whose responses are garbage while the answer is read.
    """

    _attempt: Any = None

    def __init__(self, recording: Recording, response: Any, comments: bool) -> None:
        super().__init__(recording)
        self._attempt = recording.attempts[-1] if recording.calling else None
        self._stream = response.stream
        self._headers = response.headers
        self._comments = comments

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __del__(self) -> None:
        if self._answers() and not self._recording.reading:
            super().__del__()

    def _answers(self) -> bool:
        return self._attempt is not None and self._recording.attempts[-1] is self._attempt

    def _closed(self) -> None:
        if self._answers():
            finalize.closed(self._recording)

    def _note(self, classify: Classify = nothing, chunk: bytes = b"") -> bytes:
        """Note the first byte, and what a piece reports; return the piece."""
        try:
            if self._recording.first_byte is None:
                self._recording.first_byte = self._recording.clock()
            classify(self._recording, chunk)
        except Exception as error:  # noqa: BLE001
            internal_error("http", error)
        return chunk

    def _json(self) -> bool:
        """Return whether the body is JSON, also in place of a stream that was requested."""
        return str(self._headers.get("content-type")).startswith("application/json")

    def _classify(self) -> Classify:
        try:
            encoding = self._headers.get("content-encoding", "")
            # The method: calling it is faster than calling the object.
            if self._recording.stream and not self._json():
                return Events(encoding=encoding, comments=self._comments).__call__
            return UnaryBody(encoding).__call__
        except Exception as error:  # noqa: BLE001
            internal_error("http", error)
            return nothing

    def _raw(self) -> bool:
        """Return whether the body is read as bytes, and not by the client that has the stream.

        A client reads while its consumer waits. A read at another time comes from code that
        has taken the response from the stream: then the row is that of the bytes.
        """
        recording = self._recording
        if recording.open and recording.stream and not recording.reading and self._answers():
            recording.reads_bytes = True
        return recording.reads_bytes

    def _first(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self._note()
            yield chunk
            break


@lru_cache(maxsize=64)
def _body(response: Any, stream: Any) -> type[Any]:
    """Make the proxy class of a response's byte stream, of the same kinds.

    It notes its first chunk and is then bypassed, until it is closed or garbage collected.
    """
    library = sys.modules[response.__module__.partition(".")[0]]
    kinds = (library.SyncByteStream, library.AsyncByteStream)

    class Body(_WatchedBody, *[kind for kind in kinds if issubclass(stream, kind)]):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            if self._raw():
                return timed_reads(self._recording, iter(self._stream).__next__, self._classify())
            chunks: Iterator[bytes] = iter(self._stream)
            if self._recording.first_byte is not None:  # draining it reads it again
                return chunks
            if self._answers() and self._json():
                return map(partial(self._note, self._classify()), chunks)
            return chain(self._first(chunks), chunks)  # all but the first bypass us

        def __aiter__(self) -> AsyncIterator[bytes]:
            chunks: AsyncIterator[bytes] = self._stream.__aiter__()
            if self._raw():
                timed = atimed_reads(self._recording, chunks.__anext__, self._classify())
                return _AsyncFirstByte(None, timed, timed, chunks)
            if self._recording.first_byte is not None:
                return chunks
            if self._answers() and self._json():
                note = partial(self._note, self._classify())
                return (note(chunk) async for chunk in chunks)
            return _AsyncFirstByte(self._note, chunks, chunks)

        # Its response calls these once, however it is closed, and at the end of the stream.
        def close(self) -> None:
            try:
                self._stream.close()
            finally:
                self._closed()

        async def aclose(self) -> None:
            try:
                await self._stream.aclose()
            finally:
                self._closed()

    return Body


class _AsyncFirstByte:
    """Hands out the stream's own awaitables; only the first is looked at.

    It can be closed like the async generator it replaces, since httpx2 does so where it can.
    """

    __slots__ = ("__anext__", "_close")  # a slot, so that it can become the stream's own
    __anext__: Callable[[], Awaitable[bytes]]

    def __init__(
        self, note: Callable[[], object] | None, chunks: AsyncIterator[bytes], *close: Any
    ) -> None:
        following = chunks.__anext__
        self.__anext__ = following if note is None else partial(_afirst, self, note, following)
        self._close = close

    def __aiter__(self) -> _AsyncFirstByte:
        return self

    async def asend(self, _: None) -> bytes:
        return await self.__anext__()

    async def athrow(self, *raised: Any) -> bytes:
        chunk: bytes = await self._close[0].athrow(*raised)
        return chunk

    async def aclose(self) -> None:
        for chunks in self._close:
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()


async def _afirst(
    stream: _AsyncFirstByte, note: Callable[[], object], following: Callable[[], Awaitable[bytes]]
) -> bytes:
    """Read and note the first byte; from then on the stream bypasses us."""
    try:
        chunk = await following()
    finally:
        stream.__anext__ = following  # and no longer a cycle
    note()
    return chunk
