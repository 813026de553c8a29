"""How is any iterator, async iterator or context manager timed, whoever made it?

Proxies: they stand for the object they wrap, pass on everything else it has, and end the row when
it is exhausted, raises, is closed, is left, or is let go.
"""

from __future__ import annotations

import asyncio
import inspect
from bisect import bisect_left
from collections.abc import Awaitable, Callable
from contextvars import Token
from functools import lru_cache
from types import TracebackType
from typing import Any

from opentelemetry import context as otel_context

from llmtrace.failopen import internal_error
from llmtrace.record import GAP_BOUNDS_NS, NOTHING, Recording
from llmtrace.runtime import current
from llmtrace.wrappers import letgo
from llmtrace.wrappers.cancel import cancelled
from llmtrace.wrappers.reads import Classify


def proxy(recording: Recording, value: Any, classify: Classify) -> Any:
    """Return what stands for a stream, or for a context manager that gives one; else `None`."""
    iterator = hasattr(value, "__anext__") or hasattr(value, "__next__")
    # An iterable that is entered first, like httpx's streams, is iterated through its manager.
    if not iterator and (hasattr(value, "__aenter__") or hasattr(value, "__enter__")):
        return _stand_in(TracedManager, value)(recording, value, classify)
    return _iterator_proxy(recording, value, classify)


def _iterator_proxy(recording: Recording, value: Any, classify: Classify) -> Any:
    if hasattr(value, "__anext__"):
        return _stand_in(TracedAsyncIterator, value)(recording, value, value, classify)
    if hasattr(value, "__next__"):
        return _stand_in(TracedIterator, value)(recording, value, value, classify)
    if hasattr(value, "__aiter__"):
        made = _stand_in(TracedAsyncIterator, value)
        return made(recording, value, aiter(value), classify)
    return None


def _stand_in(proxy_class: Any, value: Any) -> Any:
    kind: Any = type(value)
    return _standing_for(proxy_class, kind)


@lru_cache(maxsize=256)
def _standing_for(proxy_class: Any, kind: Any) -> Any:
    """Make the subclass of a proxy that has every special method of what it stands for, too.

    `len(x)`, `await x` or `bool(x)` look at the class and would miss `__getattr__`.
    """
    special = [name for name in dir(kind) if name.startswith("__") and name.endswith("__")]
    return type(
        proxy_class.__name__,
        (proxy_class,),
        {
            name: _passed_on(name)
            for name in special
            if not hasattr(proxy_class, name) and callable(getattr(kind, name, None))
        },
    )


def _passed_on(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._source, name)(*args, **kwargs)

    return method


class _Proxy:
    """What the proxies share: the wrapped object shines through; the row ends with it."""

    def __init__(self, recording: Recording, source: Any, classify: Classify) -> None:
        self._llmtrace = recording
        self._source = source
        self._classify = classify
        # The proxy is around whatever happens inside: a client's own stream may join the
        # recording, and then keeps the time, but does not end the row.
        recording.outer = True
        letgo.prepare()
        # What is current inside: the request's span at first, then what the stream left there.
        self._context: Any = recording.span.context

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of what it stands for, so that `isinstance` says what it always said."""
        return type(self._source)

    def __getattr__(self, name: str) -> Any:
        if name in {"_source", "_llmtrace"}:  # __init__ never ran
            raise AttributeError(name)
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
        # `Recording.boundary` and `Recording.more` in line, as in `reads`: this is every chunk.
        recording = self._llmtrace
        if recording.joined:
            return
        try:
            recording.mark = now = recording.clock()
            if recording.asked:
                recording.waited += now - recording.asked
                recording.asked = 0
            kind = self._classify(recording, chunk)
            if kind > NOTHING and recording.firsts[kind] is not None:
                waited = recording.waited
                gap = waited - recording.waited_at_content
                recording.gap_counts[bisect_left(GAP_BOUNDS_NS, gap)] += 1
                if gap > recording.max_gap:  # noqa: PLR1730 - the faster way
                    recording.max_gap = gap
                recording.waited_at_content = waited
                recording.last_content = now
            else:
                recording.event(kind)
        except Exception as error:  # noqa: BLE001
            internal_error("record", error)

    def _enter(self) -> tuple[Token[Recording | None], Any]:
        """Make the recording and the stream's own context current, for one step."""
        token = current.set(self._llmtrace)
        return token, None if self._context is None else otel_context.attach(self._context)

    def _leave(self, step: tuple[Token[Recording | None], Any]) -> None:
        """Give the consumer its own context back, and keep the stream's for its next step."""
        token, attached = step
        if current.get() is not self._llmtrace:
            return  # torn down by the garbage collector, in a context where nothing of ours is set
        if attached is not None:
            self._context = otel_context.get_current()
            otel_context.detach(attached)
        try:
            current.reset(token)
        except ValueError:  # torn down in a copy of the context
            return

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
        letgo.abandon(self._llmtrace)

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
        if self._context is not None:
            return self._step(next, self._iterator)
        # The same in line, for every chunk.
        recording = self._llmtrace
        if not recording.joined:
            try:
                recording.asked = recording.clock()
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
        return self._step(self._iterator.send, value)

    def throw(self, *raised: Any) -> Any:
        """Raise inside the generator, as the next read."""
        return self._step(self._iterator.throw, *raised)

    def _step(self, advance: Callable[..., Any], *args: Any) -> Any:
        self._asks()
        step = self._enter()
        try:
            try:
                chunk = advance(*args)
            finally:
                self._leave(step)
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
        step = self._enter()
        try:
            close = getattr(self._source, "close", None)
            if close is not None:
                close()
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
        if self._context is not None:
            return await self._step(self._iterator.__anext__)
        # The same in line, for every chunk.
        recording = self._llmtrace
        if not recording.joined:
            try:
                recording.asked = recording.clock()
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
        return await self._step(self._iterator.asend, value)

    async def athrow(self, *raised: Any) -> Any:
        """Raise inside the generator, as the next read."""
        return await self._step(self._iterator.athrow, *raised)

    async def _step(self, advance: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        self._asks()
        # Set and taken back within one await: nothing leaks to the consumer, and no task is
        # made, so cancellation and time-outs reach the generator as they would without us.
        step = self._enter()
        try:
            try:
                chunk = await advance(*args)
            finally:
                self._leave(step)
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
        # A span the manager makes current is to stay so for the block, so none of ours is put
        # around it; a client's call inside has its own.
        self._context = None
        recording.boundary(reading=False)

    def __enter__(self) -> Any:
        """Enter, with the recording current, and stand for the stream that comes out."""
        self._begin()
        step = self._enter()
        try:
            try:
                value = self._source.__enter__()
            finally:
                self._leave(step)
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
        self._begin()
        step = self._enter()
        try:
            try:
                value = await self._source.__aenter__()
            finally:
                self._leave(step)
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

    def _begin(self) -> None:
        self._llmtrace.stream = True
        self._asks()

    def _inside(self, value: Any) -> Any:
        if self._llmtrace.joined:
            return value  # the client's own stream keeps the time
        inside = _iterator_proxy(self._llmtrace, value, self._classify)
        return value if inside is None else inside

    def _end(self, error: BaseException | None) -> None:
        if error is None:
            self._left()
        else:
            self._failed(error)
