"""Make a proxy of any stream that times it and otherwise behaves like it.

The proxy forwards every attribute, reports the stream's class as its own, and ends the row when
the stream is exhausted, raises, is closed, is left or is garbage collected.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import Token
from functools import lru_cache
from typing import Any, Final

from opentelemetry import context as otel_context

from llmtrace.core.failopen import internal_error
from llmtrace.core.recording import Recording
from llmtrace.instrumentation.streams import cancellation, finalize
from llmtrace.instrumentation.streams.chunk_timing import Classify
from llmtrace.runtime.runtime import current


def make_proxy(kind: Any, recording: Recording, source: Any, *rest: Any) -> Any:
    """Make a proxy that records how an object is read."""
    of: Any = type(source)
    return _kind_for(kind, of)(recording, source, *rest)


@lru_cache(maxsize=256)
def _kind_for(kind: Any, of: Any) -> Any:
    """Make the subclass of a proxy class that has every special method of the object's class.

    `len(x)`, `await x` or `bool(x)` look at the class and would miss `__getattr__`.
    """
    special = [name for name in dir(of) if name.startswith("__") and name.endswith("__")]
    return type(
        kind.__name__,
        (kind,),
        {
            name: _passed_on(name)
            for name in special
            if not any(name in vars(base) for base in kind.__mro__)  # a class has its metaclass's
            and callable(getattr(of, name, None))
        },
    )


def _passed_on(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._source, name)(*args, **kwargs)

    return method


# Attributes of the proxy itself; every other one is the object's.
_OWN: Final = frozenset({"_llmtrace", "_source", "_classify", "_context", "_iterator"})


class StreamProxy:
    """Base of the proxies: forwards to the object, and ends the row with it."""

    def __init__(self, recording: Recording, source: Any, classify: Classify) -> None:
        self._llmtrace = recording
        self._source = source
        self._classify = classify
        # The proxy encloses all that happens inside: a client's own stream may join the
        # recording, and then keeps the time, but does not end the row.
        recording.in_decorated_function = True
        if recording.labels is None:
            recording.labels = type(source).__qualname__, {}, {}
        finalize.prepare()
        # What is current inside: the request's span at first, then what the stream left there.
        self._context: Any = recording.span.context

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Return the object's class, so that `isinstance` is unchanged."""
        return type(self._source)

    def __getattr__(self, name: str) -> Any:
        if name in {"_source", "_llmtrace"}:  # __init__ never ran
            raise AttributeError(name)
        return getattr(self._source, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _OWN:
            try:
                setattr(self._source, name, value)
            except AttributeError:  # a generator takes none: then it is kept here
                pass
            else:
                return
        object.__setattr__(self, name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy and pickle the object itself: the copy reads what is left, untimed."""
        return self._source.__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return f"<traced {self._source!r}>"

    def _wait_starts(self) -> None:
        recording = self._llmtrace
        if not recording.joined:
            try:
                recording.switch_interval(reading=True)
            except Exception as error:  # noqa: BLE001 - the stream goes on untimed
                internal_error("record", error)

    def _got(self, chunk: Any) -> None:
        recording = self._llmtrace
        if recording.joined:
            return
        try:
            recording.switch_interval(reading=False)
            recording.event(self._classify(recording, chunk))
        except Exception as error:  # noqa: BLE001
            internal_error("record", error)

    def _enter(self) -> tuple[Token[Recording | None], Any]:
        """Make the recording and the stream's own context current, for one step."""
        token = current.set(self._llmtrace)
        return token, None if self._context is None else otel_context.attach(self._context)

    def _leave(self, step: tuple[Token[Recording | None], Any]) -> None:
        """Restore the consumer's context, and keep the stream's for its next step."""
        token, attached = step
        if current.get() is not self._llmtrace:
            return  # torn down by the garbage collector, in a context where nothing of ours is set
        try:
            current.reset(token)
        except ValueError:  # torn down in a copy of the context
            return
        if attached is not None:
            self._context = otel_context.get_current()
            otel_context.detach(attached)

    def _step(self, advance: Callable[..., Any], *args: Any) -> Any:
        """Have the object do one step, and return its result."""
        self._wait_starts()
        step = self._enter()
        try:
            try:
                return advance(*args)
            finally:
                self._leave(step)
        except StopIteration:
            self._exhausted()
            raise
        except BaseException as error:
            self._failed(error)
            raise

    async def _astep(self, advance: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """Await one step of the object, and return its result."""
        self._wait_starts()
        # Set and taken back within one await: nothing leaks to the consumer, and no task is
        # made, so cancellation and time-outs reach the stream as they would without us.
        step = self._enter()
        try:
            try:
                return await advance(*args)
            finally:
                self._leave(step)
        except StopAsyncIteration:
            self._exhausted()
            raise
        except BaseException as error:
            self._failed(error)
            raise

    def _exhausted(self) -> None:
        self._llmtrace.left().exhausted()

    def _failed(self, error: BaseException) -> None:
        cancellation.failed(self._llmtrace.left(), error)

    def _left(self) -> None:
        finalize.abandon(self._llmtrace.left())

    def _end(self, error: BaseException | None) -> None:
        """End with what the consumer's block ended with."""
        if error is None:
            self._left()
        else:
            self._failed(error)

    def __del__(self) -> None:
        try:
            self._left()
        except AttributeError:  # __init__ never ran
            return
