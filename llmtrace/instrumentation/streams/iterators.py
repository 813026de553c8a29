"""Time any iterator or async iterator.

Each read is one step: the recording and the stream's own context are current inside it, and the
consumer's again after it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final

from llmtrace.core.failopen import internal_error
from llmtrace.core.recording import Recording
from llmtrace.instrumentation.streams.chunk_timing import Classify
from llmtrace.instrumentation.streams.proxy import StreamProxy, make_proxy
from llmtrace.runtime.runtime import current


def iterator_proxy(recording: Recording, value: Any, classify: Classify) -> Any:
    """Return the proxy of an iterator, or of an iterable that has to be read; else `None`."""
    if hasattr(value, "read") and is_read(value):
        return None
    if hasattr(value, "__anext__"):
        kind = TracedBoth if hasattr(value, "__next__") else TracedAsyncIterator
        return make_proxy(kind, recording, value, value, classify)
    if hasattr(value, "__next__"):
        return make_proxy(TracedIterator, recording, value, value, classify)
    if hasattr(value, "__aiter__"):
        return make_proxy(TracedAsyncIterator, recording, value, aiter(value), classify)
    # Many a result can be iterated. What is closed, and has no length, is a stream: botocore's.
    if hasattr(value, "__iter__") and hasattr(value, "close") and not hasattr(value, "__len__"):
        return make_proxy(TracedIterator, recording, value, iter(value), classify)
    return None


def is_read(body: Any) -> bool:
    """Return whether nothing is left to read of a file, or of a response's body."""
    closed = getattr(body, "isclosed", None)
    return (closed() if callable(closed) else getattr(body, "closed", False)) is True


class _Traced(StreamProxy):
    """Proxy of an iterable; the consumer holds the proxy from now on."""

    def __init__(
        self, recording: Recording, source: Any, iterator: Any, classify: Classify
    ) -> None:
        super().__init__(recording, source, classify)
        self._iterator = iterator
        recording.opened()


# Methods that read a file, or a body of `urllib` or `urllib3`; the last ones give its pieces.
_READS: Final = frozenset(
    {"read", "read1", "readline", "readlines", "readinto", "json", "stream", "read_chunked"}
)


class TracedIterator(_Traced):
    """Proxy of an iterator, a generator, or a file that can be iterated."""

    def __getattr__(self, name: str) -> Any:
        if name == "data" and hasattr(type(self._source), "read_chunked"):
            return self._read_by(partial(getattr, self._source, name))
        value = super().__getattr__(name)
        reads = name in _READS and hasattr(self._source, "read")
        return partial(self._read_by, value) if reads else value

    def _read_by(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Read by a method of the object's own; the row ends with its last byte."""
        if self._llmtrace.left().ended or args[:1] == (0,):
            return method(*args, **options)
        piece = self._step(partial(method, *args, **options))
        if hasattr(piece, "__next__"):
            return self._pieces(piece)
        read: Any = bytes(args[0][:piece]) if isinstance(piece, int) and args else piece
        self._got(read[0][:0].join(read) if read and isinstance(read, list) else read)
        if not piece or is_read(self._source):
            self._exhausted()
        return piece

    def _pieces(self, pieces: Any) -> Iterator[Any]:
        self._iterator = pieces
        for piece in self:  # noqa: UP028 - a generator that is closed leaves the body open
            yield piece

    def __iter__(self) -> TracedIterator:
        """Return the proxy itself, as iterators do."""
        return self

    def __next__(self) -> Any:
        """Return the next chunk, timing the read."""
        if self._context is not None:
            return self._read(next, self._iterator)
        # The same inline, for every chunk.
        recording = self._llmtrace
        if not recording.joined:
            try:
                recording.wait_started = recording.clock()
            except Exception as error:  # noqa: BLE001 - the stream goes on untimed
                internal_error("record", error)
        token = current.set(recording)
        try:
            try:
                chunk = next(self._iterator)
            finally:
                current.reset(token)
        except StopIteration:
            self._exhausted()
            raise
        except BaseException as error:
            self._failed(error)
            raise
        self._got(chunk)
        return chunk

    def send(self, value: Any) -> Any:
        """Send a value into the generator, as the next read."""
        return self._read(self._iterator.send, value)

    def throw(self, *raised: Any) -> Any:
        """Raise inside the generator, as the next read."""
        return self._read(self._iterator.throw, *raised)

    def _read(self, advance: Callable[..., Any], *args: Any) -> Any:
        chunk = self._step(advance, *args)
        self._got(chunk)
        return chunk

    def close(self) -> Any:
        """Close the iterator, if it can be closed, and end the row."""
        step = self._enter()
        try:
            close = getattr(self._source, "close", None)
            return None if close is None else close()
        finally:
            self._leave(step)
            self._left()

    def __enter__(self) -> Any:
        """Enter the stream, where it is a context manager too."""
        enter = getattr(self._source, "__enter__", None)
        entered_as = self._source if enter is None else enter()
        if entered_as is not self._source and hasattr(entered_as, "__next__"):
            self._iterator = entered_as
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> Any:
        """Leave the stream and end the row."""
        try:
            leave = getattr(self._source, "__exit__", None)
            if leave is not None:
                return leave(kind, error, trace)
            close = getattr(self._source, "close", None)
            if close is not None:
                close()
        finally:
            self._end(error)
        return None


class TracedAsyncIterator(_Traced):
    """Proxy of an async iterator or an async generator."""

    def __aiter__(self) -> TracedAsyncIterator:
        """Return the proxy itself, as iterators do."""
        return self

    async def __anext__(self) -> Any:
        """Return the next chunk, timing the read."""
        if self._context is not None:
            return await self._aread(self._iterator.__anext__)
        # The same inline, for every chunk.
        recording = self._llmtrace
        if not recording.joined:
            try:
                recording.wait_started = recording.clock()
            except Exception as error:  # noqa: BLE001 - the stream goes on untimed
                internal_error("record", error)
        token = current.set(recording)
        try:
            chunk = await self._iterator.__anext__()
        except StopAsyncIteration:
            current.reset(token)
            self._exhausted()
            raise
        except BaseException as error:
            self._leave((token, None))
            self._failed(error)
            raise
        current.reset(token)
        self._got(chunk)
        return chunk

    async def asend(self, value: Any) -> Any:
        """Send a value into the generator, as the next read."""
        return await self._aread(self._iterator.asend, value)

    async def athrow(self, *raised: Any) -> Any:
        """Raise inside the generator, as the next read."""
        return await self._aread(self._iterator.athrow, *raised)

    async def _aread(self, advance: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        chunk = await self._astep(advance, *args)
        self._got(chunk)
        return chunk

    async def aclose(self) -> None:
        """Close the iterator, if it can be closed, and end the row."""
        source = self._source
        close = getattr(source, "aclose", None) or getattr(source, "close", None)
        await self._closing(None if close is None else close())

    def close(self) -> Any:
        """Close the iterator and end the row; to be awaited if the iterator's own `close` is."""
        closing = None
        try:
            closing = self._source.close()
        finally:
            if not inspect.isawaitable(closing):
                self._left()
        return self._closing(closing) if inspect.isawaitable(closing) else closing

    async def _closing(self, closing: Any) -> Any:
        step = self._enter()
        try:
            return await closing if inspect.isawaitable(closing) else closing
        finally:
            self._leave(step)
            self._left()

    async def __aenter__(self) -> Any:
        """Enter the stream, where it is a context manager too."""
        enter = getattr(self._source, "__aenter__", None)
        entered_as = self._source if enter is None else await enter()
        if entered_as is not self._source and hasattr(entered_as, "__anext__"):
            self._iterator = entered_as
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> Any:
        """Leave the stream and end the row."""
        try:
            leave = getattr(self._source, "__aexit__", None)
            if leave is not None:
                return await leave(kind, error, trace)
            await self.aclose()
        finally:
            self._end(error)
        return None


class TracedBoth(TracedAsyncIterator, TracedIterator):
    """Proxy of a stream that can be read sync and async, as LiteLLM's can."""
