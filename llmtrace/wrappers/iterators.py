"""How is any iterator, async iterator or context manager timed, whoever made it?

Proxies: they stand for the object they wrap, pass on everything else it has, and end the row when
it is exhausted, raises, is closed, is left, or is let go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

from llmtrace.failopen import internal_error
from llmtrace.record import Recording
from llmtrace.runtime import entered
from llmtrace.wrappers.cancel import cancelled
from llmtrace.wrappers.reads import Classify


def proxy(recording: Recording, value: Any, classify: Classify) -> Any:
    """Return what stands for a stream, or for a context manager that gives one; else `None`."""
    if hasattr(value, "__anext__"):
        return TracedAsyncIterator(recording, value, value, classify)
    if hasattr(value, "__next__"):
        return TracedIterator(recording, value, value, classify)
    # An iterable that is entered first, like httpx's streams, is iterated through its manager.
    if hasattr(value, "__aenter__") or hasattr(value, "__enter__"):
        return TracedManager(recording, value, classify)
    if hasattr(value, "__aiter__"):
        return TracedAsyncIterator(recording, value, aiter(value), classify)
    return None


class _Proxy:
    """What the proxies share: the wrapped object shines through; the row ends with it."""

    def __init__(self, recording: Recording, source: Any, classify: Classify) -> None:
        self._llmtrace = recording
        self._source = source
        self._classify = classify
        # The proxy is around whatever happens inside: a client's own stream may join the
        # recording, and then keeps the time, but does not end the row.
        recording.outer = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def __repr__(self) -> str:
        return f"<traced {self._source!r}>"

    def _asks(self) -> None:
        recording = self._llmtrace
        if not recording.joined:
            try:
                recording.boundary(reading=True)
            except Exception as error:  # noqa: BLE001 - the stream goes on untimed
                internal_error("record", error)

    def _got(self, chunk: Any) -> None:
        recording = self._llmtrace
        if not recording.joined:
            try:
                recording.boundary(reading=False)
                recording.event(self._classify(recording, chunk))
            except Exception as error:  # noqa: BLE001
                internal_error("record", error)

    def _exhausted(self) -> None:
        self._llmtrace.outer = False
        self._llmtrace.exhausted()

    def _failed(self, error: BaseException) -> None:
        self._llmtrace.outer = False
        if isinstance(error, asyncio.CancelledError):
            cancelled(self._llmtrace, error)
        else:
            self._llmtrace.failed(error)

    def _left(self) -> None:
        self._llmtrace.outer = False
        self._llmtrace.abandoned()

    def __del__(self) -> None:
        try:
            self._left()
        except AttributeError:  # __init__ never ran
            return


class TracedIterator(_Proxy):
    """Stands for an iterator or a generator."""

    def __init__(
        self, recording: Recording, source: Any, iterator: Any, classify: Classify
    ) -> None:
        super().__init__(recording, source, classify)
        self._iterator = iterator
        recording.opened()

    def __iter__(self) -> TracedIterator:
        """Return itself."""
        return self

    def __next__(self) -> Any:
        """Read the next chunk."""
        return self._step(self._iterator.__next__)

    def send(self, value: Any) -> Any:
        """Send a value into the generator, as the next read."""
        return self._step(self._iterator.send, value)

    def throw(self, *raised: Any) -> Any:
        """Raise inside the generator, as the next read."""
        return self._step(self._iterator.throw, *raised)

    def _step(self, advance: Callable[..., Any], *args: Any) -> Any:
        self._asks()
        try:
            with entered(self._llmtrace):
                chunk = advance(*args)
        except StopIteration:
            self._exhausted()
            raise
        except BaseException as error:
            self._failed(error)
            raise
        self._got(chunk)
        return chunk

    def close(self) -> None:
        """Close the iterator, if it can be closed, and end the row."""
        try:
            close = getattr(self._source, "close", None)
            if close is not None:
                close()
        finally:
            self._left()

    def __enter__(self) -> Any:
        """Enter the stream, where it is a context manager too."""
        enter = getattr(self._source, "__enter__", None)
        entered_as = self._source if enter is None else enter()
        if entered_as is not self._source and hasattr(entered_as, "__next__"):
            self._iterator = entered_as
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        """Leave the stream and end the row."""
        try:
            leave = getattr(self._source, "__exit__", None)
            if leave is not None:
                return leave(kind, error, trace)
            close = getattr(self._source, "close", None)
            if close is not None:
                close()
        finally:
            if error is None:
                self._left()
            else:
                self._failed(error)
        return None


class TracedAsyncIterator(_Proxy):
    """Stands for an async iterator or an async generator."""

    def __init__(
        self, recording: Recording, source: Any, iterator: Any, classify: Classify
    ) -> None:
        super().__init__(recording, source, classify)
        self._iterator = iterator
        recording.opened()

    def __aiter__(self) -> TracedAsyncIterator:
        """Return itself."""
        return self

    async def __anext__(self) -> Any:
        """Read the next chunk."""
        return await self._step(self._iterator.__anext__)

    async def asend(self, value: Any) -> Any:
        """Send a value into the generator, as the next read."""
        return await self._step(self._iterator.asend, value)

    async def athrow(self, *raised: Any) -> Any:
        """Raise inside the generator, as the next read."""
        return await self._step(self._iterator.athrow, *raised)

    async def _step(self, advance: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        self._asks()
        try:
            # Set and taken back within one await: nothing leaks to the consumer, and no task
            # is made, so cancellation and time-outs reach the generator as they would without us.
            with entered(self._llmtrace):
                chunk = await advance(*args)
        except StopAsyncIteration:
            self._exhausted()
            raise
        except BaseException as error:
            self._failed(error)
            raise
        self._got(chunk)
        return chunk

    async def aclose(self) -> None:
        """Close the iterator, if it can be closed, and end the row."""
        try:
            close = getattr(self._source, "aclose", None) or getattr(self._source, "close", None)
            if close is not None:
                await close()
        finally:
            self._left()

    async def close(self) -> None:
        """Close the iterator and end the row: the name SDKs use."""
        await self.aclose()

    async def __aenter__(self) -> Any:
        """Enter the stream, where it is a context manager too."""
        enter = getattr(self._source, "__aenter__", None)
        entered_as = self._source if enter is None else await enter()
        if entered_as is not self._source and hasattr(entered_as, "__anext__"):
            self._iterator = entered_as
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        """Leave the stream and end the row."""
        try:
            leave = getattr(self._source, "__aexit__", None)
            if leave is not None:
                return await leave(kind, error, trace)
            await self.aclose()
        finally:
            if error is None:
                self._left()
            else:
                self._failed(error)
        return None


class TracedManager(_Proxy):
    """Stands for a context manager whose entering makes the request: the SDKs' `.stream()`."""

    def __init__(self, recording: Recording, source: Any, classify: Classify) -> None:
        super().__init__(recording, source, classify)
        recording.stream = True

    def __enter__(self) -> Any:
        """Enter, with the recording current, and stand for the stream that comes out."""
        recording = self._llmtrace
        self._asks()
        try:
            with entered(recording):
                value = self._source.__enter__()
        except BaseException as error:
            self._failed(error)
            raise
        return self._inside(value)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        """Leave, and end the row."""
        try:
            return self._source.__exit__(kind, error, trace)
        finally:
            self._end(error)

    async def __aenter__(self) -> Any:
        """Enter, with the recording current, and stand for the stream that comes out."""
        self._asks()
        try:
            with entered(self._llmtrace):
                value = await self._source.__aenter__()
        except BaseException as error:
            self._failed(error)
            raise
        return self._inside(value)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        """Leave, and end the row."""
        try:
            return await self._source.__aexit__(kind, error, trace)
        finally:
            self._end(error)

    def _inside(self, value: Any) -> Any:
        if self._llmtrace.joined:
            return value  # the client's own stream keeps the time
        inside = proxy(self._llmtrace, value, self._classify)
        return value if inside is None else inside

    def _end(self, error: BaseException | None) -> None:
        if error is None:
            self._left()
        else:
            self._failed(error)
