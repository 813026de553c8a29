"""Keep a scope active inside a function's own code, and inactive in the code that calls it.

A scope is a turn or a tool call. Each step of a generator runs inside it; between two steps, while
the consumer runs, it is not active.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import nullcontext
from contextvars import Token
from functools import partial, wraps
from typing import Any, Protocol

from opentelemetry import context as otel_context
from opentelemetry.context import Context

from llmtrace.core.recording import Recording
from llmtrace.instrumentation.streams import finalize
from llmtrace.instrumentation.streams.generators import body_of
from llmtrace.runtime.runtime import current


class Run(Protocol):
    """A turn or tool call that runs. None of its methods raises.

    Attributes:
        context: the one its code runs in.
    """

    context: Context

    def gave(self, item: Any) -> None:
        """Note one of the items that a generator gives."""

    def returned(self, value: Any) -> None:
        """End the scope with what the function returned."""

    def failed(self, error: BaseException) -> None:
        """End the scope with the exception that was raised."""


# Begins a run of a function called with these arguments; `None` where nothing is recorded.
Begin = Callable[[tuple[Any, ...], dict[str, Any]], Run | None]


class inside:  # noqa: N801 - reads as what it is: `with inside(run):`
    """Make a scope the current one for the code inside; requests around it are not current there.

    The context is kept as the code leaves it, for the next step of the same run.
    """

    __slots__ = ("_attached", "_run", "_token")

    _attached: Token[Context]
    _token: Token[Recording | None]

    def __init__(self, run: Run) -> None:
        self._run = run

    def __enter__(self) -> None:
        self._token = current.set(None)
        self._attached = otel_context.attach(self._run.context)

    def __exit__(self, *_: object) -> None:
        try:
            current.reset(self._token)
        except ValueError:  # in another context: a generator's end, or the garbage collector
            return
        self._run.context = otel_context.get_current()
        otel_context.detach(self._attached)


def scoped(target: Callable[..., Any], begin: Begin) -> Callable[..., Any]:
    """Make a function that runs each call of another in a scope of its own.

    Frameworks inspect the kind of a function, so each kind stays its kind: coroutine function,
    generator function and so on. `begin` returns `None` where nothing is recorded.
    """
    if inspect.isgeneratorfunction(target):
        return _stepped(target, begin)
    if inspect.isasyncgenfunction(target):
        return _astepped(target, begin)
    if inspect.iscoroutinefunction(target):

        @wraps(target)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            run = begin(args, kwargs)
            answer = _called(run, target, args, kwargs)
            return await (answer if run is None else _awaited(run, answer))

        return acall

    @wraps(target)
    def call(*args: Any, **kwargs: Any) -> Any:
        run = begin(args, kwargs)
        if run is None:
            return target(*args, **kwargs)
        try:
            with inside(run):
                result = target(*args, **kwargs)
        except BaseException as error:
            run.failed(error)
            raise
        if inspect.iscoroutine(result):
            return _awaited(run, result)
        return _returned(run, result)

    return call


def _returned(run: Run, result: Any) -> Any:
    """End a run with what its function returned, or with the body that is still to be sent."""
    body, put = body_of(result)
    if put is None:
        run.returned(result)
        return result
    if hasattr(body, "__anext__"):
        return put(_astepped(lambda: (each async for each in body), lambda *_: run)())
    return put(_steps(run, (each for each in body)))


def _called(
    run: Run | None, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a function whose body runs later: an error now means that the arguments do not fit."""
    try:
        return target(*args, **kwargs)
    except BaseException as error:
        if run is not None:
            run.failed(error)
        raise


async def _awaited(run: Run, answer: Any) -> Any:
    try:
        with inside(run):
            result = await answer
    except BaseException as error:
        run.failed(error)
        raise
    return _returned(run, result)


def _stepped(
    target: Callable[..., Generator[Any, Any, Any]], begin: Begin
) -> Callable[..., Generator[Any, Any, Any]]:
    @wraps(target)
    def generate(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        run = begin(args, kwargs)
        source = _called(run, target, args, kwargs)
        return (yield from source if run is None else _steps(run, source))

    return generate


def _steps(run: Run, source: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    finalize.prepare()
    advance: Any = source.send
    given: Any = None
    while True:
        try:
            with inside(run):
                item = advance(given)
        except StopIteration as stop:
            run.returned(stop.value)
            return stop.value
        except BaseException as error:
            run.failed(error)
            raise
        run.gave(item)
        try:
            given = yield item
        except GeneratorExit as error:
            try:
                with inside(run):
                    source.close()
            finally:
                run.failed(error)
            raise
        except BaseException as error:  # noqa: BLE001 - thrown in by the consumer
            advance, given = source.throw, error
        else:
            advance = source.send


def _astepped(
    target: Callable[..., AsyncGenerator[Any, Any]], begin: Begin
) -> Callable[..., AsyncGenerator[Any, Any]]:
    @wraps(target)
    async def generate(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        run = begin(args, kwargs)
        source = _called(run, target, args, kwargs)
        around: Any = nullcontext if run is None else partial(inside, run)
        run = _Nothing() if run is None else run
        finalize.prepare()
        advance: Any = source.asend
        given: Any = None
        while True:
            try:
                with around():
                    item = await advance(given)
            except StopAsyncIteration:
                run.returned(None)
                return
            except BaseException as error:
                run.failed(error)
                raise
            run.gave(item)
            try:
                given = yield item
            except GeneratorExit as error:
                try:
                    with around():
                        await source.aclose()
                finally:
                    run.failed(error)
                raise
            except BaseException as error:  # noqa: BLE001 - thrown in by the consumer
                advance, given = source.athrow, error
            else:
                advance = source.asend

    return generate


class _Nothing:
    """Stands for a run where nothing is recorded."""

    context = Context()

    def gave(self, _: Any) -> None:
        """Do nothing with an item, a result or an exception: no scope is open."""

    returned = failed = gave
