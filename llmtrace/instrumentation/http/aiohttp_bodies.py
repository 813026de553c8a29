"""Time the reading of an aiohttp response's body; the response stays the same object.

Its `content` is replaced by a reader that forwards everything. Whether it is read by line, by
piece or as a whole, every byte is looked at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from typing import Any, TypeVar, cast

from aiohttp import StreamReader

from llmtrace.core.failopen import internal_error
from llmtrace.core.recording import Recording
from llmtrace.core.request_clock import NOTHING
from llmtrace.instrumentation.headers.sse_comments import Comments
from llmtrace.instrumentation.http import llm_requests
from llmtrace.instrumentation.http.sse import Events
from llmtrace.instrumentation.http.unary_body import UnaryBody
from llmtrace.instrumentation.llm_sdks.responses import copy_identity
from llmtrace.instrumentation.streams import cancellation, finalize

T = TypeVar("T")


def watch(post: llm_requests.LlmRequest, response: Any, *, events: bool, comments: bool) -> None:
    """Time how a response is read, and end its row with it.

    Args:
        post: its request.
        response: as the HTTP library returned it.
        events: whether it is a stream of events.
        comments: whether a gateway may report its time in them.
    """
    recording = post.recording
    kind = response.headers.get("content-type", "")
    llm_requests.opened(post, kind)
    look = Comments(recording).look if comments else None
    if events:
        reader = Reader(
            response.content, recording, Events(comments=comments), recording.exhausted, look
        )
    else:
        kept = _Kept()
        ended = partial(llm_requests.unary_response, post, kept.body, kind)
        reader = Reader(response.content, recording, kept, ended, look, at_once=True)
    response.content = reader
    _become(response, recording)
    # aiohttp keeps a response that is not closed until its connection ends.
    response._llmtrace_finalizer = finalize.StreamFinalizer(recording, late=True)  # noqa: SLF001


def timed(recording: Recording, response: Any, _classify: object) -> Any:
    """Time the reading of a response that a decorated function returns, and return it."""
    if response.status >= llm_requests.HTTP_ERROR:
        recording.failure = ("error", str(response.status))
    events = llm_requests.is_stream(response.headers.get("content-type", ""))
    recording.opened()
    recording.in_decorated_function = False
    recording.stream = events
    ended = recording.exhausted if events else partial(recording.finish, "success")
    classify = Events() if events else UnaryBody()
    response.content = Reader(response.content, recording, classify, ended, at_once=not events)
    _become(response, recording)
    response._llmtrace_finalizer = finalize.StreamFinalizer(recording, late=True)  # noqa: SLF001
    return response


def watch_error_body(recording: Recording, response: Any) -> None:
    """End a row when the body of an error has been read, is closed or is garbage collected."""
    kept = _Kept()
    ended = partial(_error_read, recording, response.status, kept)
    response.content = Reader(response.content, recording, kept, ended, at_once=True)
    _become(response, recording)
    if not recording.in_decorated_function:  # else the decorated function ends it, which may retry
        response._llmtrace_finalizer = finalize.StreamFinalizer(recording, late=True)  # noqa: SLF001


def _become(response: Any, recording: Recording) -> None:
    kind: Any = type(response)
    response.__class__ = _watched(kind)
    response._llmtrace = recording  # noqa: SLF001 - our own attribute on their object


@lru_cache(maxsize=8)
def _watched(kind: Any) -> type[Any]:
    """Make the subclass of a response that ends its row once it is read, released or closed."""

    class Response(kind):  # type: ignore[misc]
        async def read(self) -> bytes:
            try:
                return await super().read()  # type: ignore[no-any-return]
            finally:
                if self.status >= llm_requests.HTTP_ERROR and self._body is not None:
                    llm_requests.rejected_because(self._llmtrace, self.status, self._body)
                    finalize.closed(self._llmtrace)

        def release(self) -> Any:
            try:
                return super().release()
            finally:
                finalize.closed(self._llmtrace)

        def close(self) -> None:
            try:
                super().close()
            finally:
                finalize.closed(self._llmtrace)

    return copy_identity(Response, kind)


class _Kept:
    """Keeps the pieces of a unary response, up to the size that is worth parsing."""

    __slots__ = ("body",)

    def __init__(self) -> None:
        self.body = bytearray()

    def __call__(self, _recording: Recording, data: bytes) -> int:
        if len(self.body) <= llm_requests.MAX_PARSED:
            self.body += data
        return NOTHING


def _error_read(recording: Recording, status: int, kept: _Kept) -> None:
    llm_requests.rejected_because(recording, status, kept.body)
    finalize.closed(recording)


class Reader:
    """Proxy of aiohttp's `StreamReader`.

    Args:
        source: the reader.
        recording: of the request.
        classify: called with the bytes that are read.
        ended: called when the body has been read to its end.
        look: called with the same bytes, for a gateway's comments.
        at_once: the end is where the last byte was read, not where a read returned nothing.
    """

    def __init__(
        self,
        source: StreamReader,
        recording: Recording,
        classify: Callable[[Recording, bytes], int],
        ended: Callable[[], None],
        look: Callable[[bytes], None] | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        self._source = source
        self._recording = recording
        self._classify = classify
        self._ended = ended
        self._look = look
        self._at_once = at_once

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Return the reader's class, so that `isinstance` is unchanged."""
        return type(self._source)

    def __getattr__(self, name: str) -> Any:
        if name == "_source":  # __init__ never ran
            raise AttributeError(name)
        return getattr(self._source, name)

    # These read by the methods below.
    __aiter__ = StreamReader.__aiter__
    iter_chunked = StreamReader.iter_chunked
    iter_any = StreamReader.iter_any
    iter_chunks = StreamReader.iter_chunks

    async def readline(self, **options: Any) -> bytes:
        """Read a line, as the reader does."""
        return await self._timed(self._source.readline(**options))

    async def readuntil(self, *separator: bytes, **options: Any) -> bytes:
        """Read up to a separator, as the reader does."""
        return await self._timed(self._source.readuntil(*separator, **options))

    async def readany(self) -> bytes:
        """Read the bytes that are there, waiting for the first."""
        return await self._timed(self._source.readany())

    async def read(self, n: int = -1) -> bytes:
        """Read at most `n` bytes, or all to the end."""
        reading: Awaitable[bytes] = self._source.read(n)
        return await (reading if n == 0 else self._timed(reading))

    async def readexactly(self, n: int) -> bytes:
        """Read exactly `n` bytes, as the reader does."""
        reading: Awaitable[bytes] = self._source.readexactly(n)
        return await (reading if n == 0 else self._timed(reading))

    async def readchunk(self) -> tuple[bytes, bool]:
        """Read a chunk, and whether it is the end of one as it was sent."""
        return await self._timed(self._source.readchunk())

    def read_nowait(self, n: int = -1) -> bytes:
        """Read the bytes that are there already, without waiting."""
        data: bytes = self._source.read_nowait(n)
        self._got(data)
        return data

    async def _timed(self, reading: Awaitable[T]) -> T:
        recording = self._recording
        if recording.ended or not recording.open:
            return await reading
        self._boundary(reading=True)
        try:
            got: Any = await reading
        except BaseException as error:
            cancellation.failed(recording, error)
            raise
        data, *chunk_end = got if isinstance(got, tuple) else (got,)
        if not data and not any(chunk_end):
            self._end()  # while it still waits: the wait up to the end is a gap
        else:
            self._boundary(reading=False)
            self._got(data)
        return cast("T", got)

    def _boundary(self, *, reading: bool) -> None:
        try:
            self._recording.switch_interval(reading=reading)
        except Exception as error:  # noqa: BLE001 - the stream goes on untimed
            internal_error("record", error)

    def _got(self, data: bytes) -> None:
        recording = self._recording
        try:
            if recording.first_byte is None:
                recording.first_byte = recording.mark
            if self._look is not None:
                self._look(data)
            recording.event(self._classify(recording, data))
        except Exception as error:  # noqa: BLE001
            internal_error("record", error)
        if self._at_once and self._source.at_eof():
            self._end()

    def _end(self) -> None:
        try:
            self._ended()
        except Exception as error:  # noqa: BLE001
            internal_error("record", error)
