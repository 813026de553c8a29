"""`@llmtrace.trace`: record each call of a function as one row, of any return type.

A function returning a stream, a generator, an async generator, a coroutine returning a stream or a
unary response, a context manager: each stays what it was, timed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import weakref
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, Final, TypeVar, overload

from llmtrace.core.errors import ConfigError
from llmtrace.core.failopen import internal_error
from llmtrace.core.recording import Recording
from llmtrace.instrumentation import join_call
from llmtrace.instrumentation.llm_sdks import endpoints, responses
from llmtrace.instrumentation.streams import cancellation, generators, generic_chunks
from llmtrace.instrumentation.streams.context_managers import TracedManager, proxy
from llmtrace.instrumentation.streams.proxy import StreamProxy, make_proxy
from llmtrace.runtime.runtime import active, enclosing, entered

F = TypeVar("F", bound=Callable[..., Any])
Scalar = str | bool | int | float

_LABELS: Final = ("model", "route", "tenant", "region", "version", "gateway")
# The user's own attributes that have a standard name.
_NAMED: Final = {"user": "user.id", "session": "session.id", "tags": "tag.tags"}


def labels(
    given: dict[str, Any], where: str
) -> tuple[dict[str, Any], dict[str, Scalar | tuple[str, ...]]]:
    """Split keyword arguments into row fields and attributes of the user's own.

    `user`, `session` and `tags` become the attributes `user.id`, `session.id` and `tag.tags`.

    Raises:
        ConfigError: one is of a kind that cannot be recorded; the message names it.
    """
    fields: dict[str, Any] = {}
    attributes: dict[str, Scalar | tuple[str, ...]] = {}
    for name, value in given.items():
        if value is None:
            continue
        if name == "tags":
            if not isinstance(value, list | tuple) or not all(isinstance(t, str) for t in value):
                raise ConfigError(f'{where}: tags must be a list of strings, as in tags=["beta"]')
            attributes[_NAMED[name]] = tuple(value)
        elif name in _LABELS:
            if not isinstance(value, str):
                raise ConfigError(f"{where}: {name} must be a string, not {type(value).__name__}")
            fields[name] = value
        elif name == "cache_hit":
            if not isinstance(value, bool):
                msg = f"{where}: cache_hit must be true or false, not {type(value).__name__}"
                raise ConfigError(msg)
            fields[name] = value
        elif isinstance(value, str | bool | int | float):
            if name in _NAMED:
                attributes[_NAMED[name]] = str(value)  # ids are often numbers
            else:
                attributes[name] = value
        else:
            raise ConfigError(
                f"{where}: {name} must be a string, number or bool, not "
                f"{type(value).__name__}; leave it out or record a short name for it"
            )
    return fields, attributes


@overload
def trace(function: F, /) -> F: ...
@overload
def trace(
    *,
    model: str | None = None,
    route: str | None = None,
    tenant: str | None = None,
    tags: Sequence[str] | None = None,
    **attributes: Scalar | None,
) -> Callable[[F], F]: ...
def trace(
    function: Any = None,
    /,
    *,
    model: str | None = None,
    route: str | None = None,
    tenant: str | None = None,
    tags: Sequence[str] | None = None,
    **attributes: Scalar | None,
) -> Any:
    """Record each call of a function as one request.

    Put it, bare or with arguments, on the function that makes one request to a model. Its return
    value stays what it is: its chunks, order, exceptions and cancellation are not
    touched. Without `llmtrace.init` the function runs as if it were not decorated.

    Args:
        function: when used bare.
        model: the model's name, where the call itself does not name it.
        route: the part of the application, a low-cardinality name such as `"chat"`.
        tenant: on whose behalf.
        tags: a list of words to find it by, in Langfuse.
        **attributes: recorded on the row's span under their own names; `user` and `session` as
            `user.id` and `session.id`.

    Raises:
        ConfigError: at decoration, for something that cannot be decorated or recorded.

    Example:
        >>> import llmtrace
        >>> from llmtrace.testing import capture
        >>> @llmtrace.trace(route="hello")
        ... def answer():
        ...     yield "Hello, "
        ...     yield "world"
        >>> with capture() as rows:
        ...     text = "".join(answer())
        >>> text, rows[0].outcome, rows[0].stages.total == rows[0].e2e_ns
        ('Hello, world', 'success', True)
    """
    given = {"model": model, "route": route, "tenant": tenant, "tags": tags, **attributes}
    fields, extra = labels(given, "@llmtrace.trace")

    def decorate(target: Any) -> Any:
        return _decorated(target, fields, extra)

    hint = "; write @llmtrace.trace or @llmtrace.trace(route=…)"
    apply = partial(apply_decorator, decorate, where="@llmtrace.trace", hint=hint)
    return apply if function is None else apply(function)


def apply_decorator(
    decorate: Callable[[Any], Any], target: Any, *, where: str, hint: str = ""
) -> Any:
    """Apply a decorator to a function, or to the one inside a static or class method.

    `where` and `hint` are for the error: the decorator's name, and how it is used.

    Raises:
        ConfigError: it is no function.
    """
    if isinstance(target, staticmethod | classmethod):
        inner = apply_decorator(decorate, target.__func__, where=where, hint=hint)
        return type(target)(inner)
    if not callable(target) or inspect.isclass(target):
        raise ConfigError(f"{where} decorates functions, not {target!r}{hint}")
    return decorate(target)


def _decorated(target: Any, fields: dict[str, Any], extra: dict[str, Any]) -> Any:
    name = getattr(target, "__qualname__", type(target).__name__)

    def start() -> Recording | None:
        return _start(name, fields, extra)

    # Frameworks check the kind of a function, so each kind stays its kind.
    if inspect.isgeneratorfunction(target):
        return generators.traced(target, start)
    if inspect.isasyncgenfunction(target):
        return generators.atraced(target, start)
    if inspect.iscoroutinefunction(target):

        @wraps(target)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            answer = target(*args, **kwargs)  # before the start: arguments may not fit
            recording = start()
            return await (answer if recording is None else _awaited(recording, answer))

        return acall

    @wraps(target)
    def call(*args: Any, **kwargs: Any) -> Any:
        recording = start()
        if recording is None:
            return target(*args, **kwargs)
        try:
            with entered(recording):
                result = target(*args, **kwargs)
        except BaseException as error:
            recording = recording.left()
            recording.failed(error)
            raise
        if inspect.iscoroutine(result):
            waiting = _awaited(recording, result)
            weakref.finalize(waiting, result.close).atexit = False  # it may never be started
            return waiting
        if asyncio.isfuture(result) or isinstance(result, concurrent.futures.Future):
            result.add_done_callback(partial(_done, recording))
            return result
        if inspect.isawaitable(result) and not any(hasattr(result, name) for name in _ITERATED):
            kind = _AwaitableManager if hasattr(result, "__aenter__") else _Awaitable
            return make_proxy(kind, recording, result, generic_chunks.reader(recording, result))
        return _deliver(recording, result)

    return call


# What is iterated is timed by that, also where it can be awaited.
_ITERATED: Final = ("__aiter__", "__anext__")


class _Awaitable(StreamProxy):
    """Proxy of an awaitable that is no coroutine."""

    def __await__(self) -> Any:
        vars(self).pop("_classify", None)  # from here on the row is of what it is awaited into
        return _awaited(self._llmtrace, self._source).__await__()

    def __del__(self) -> None:
        if "_classify" in vars(self):
            super().__del__()


class _AwaitableManager(_Awaitable, TracedManager):
    """Proxy of what can be awaited or entered, as a request of aiohttp."""

    def __await__(self) -> Any:
        self._wait_starts()
        return super().__await__()


def _done(recording: Recording, future: Any) -> None:
    """End with a future, or leave the row to the stream it returns: it is not awaited here."""
    if future.cancelled():
        recording.left().finish("cancelled", "asyncio.exceptions.CancelledError")
    elif (error := future.exception()) is not None:
        recording.left().failed(error)
    else:
        _deliver(recording, future.result(), proxied=False)


def _start(name: str, fields: dict[str, Any], extra: dict[str, Any]) -> Recording | None:
    runtime = active()
    if runtime is None:
        return None
    try:
        join_call.enters(runtime, call=False)
        recording = runtime.start(dict(fields))
        recording.attributes.update(extra)
        outer = enclosing()
        inherited = None if outer is None or outer.ended else outer.labels
        _, said, more = ("", {}, {}) if inherited is None else inherited
        recording.labels = name, {**said, **fields}, {**more, **extra}
        recording.in_decorated_function = True
    except Exception as error:  # noqa: BLE001 - the function runs unrecorded
        internal_error("trace", error)
        return None
    return recording


async def _awaited(recording: Recording, answer: Any) -> Any:
    try:
        with entered(recording):
            result = await answer
    except BaseException as error:
        cancellation.failed(recording.left(), error)
        raise
    return _deliver(recording, result)


def _deliver(recording: Recording, result: Any, *, proxied: bool = True) -> Any:
    """Return a decorated function's result, timed if there is something left to time.

    `proxied`: a stream proxy may be handed on in place of it.
    """
    try:
        if recording.function is not None and isinstance(
            getattr(result, "_llmtrace", None), Recording
        ):
            recording.left().end("success")  # the function is a span, and the stream a call's own
            return result
        if getattr(result, "_llmtrace", None) is recording:
            return _handed_over(recording, result)
        if not recording.joined and endpoints.is_stream(result):
            recording.in_decorated_function = False
            responses.adopt(recording, result, endpoints.classify_for(result))
            return result
        body, put = generators.body_of(result)
        if proxied or put:
            whole = False if put else None
            traced = proxy(recording, body, generic_chunks.reader(recording, body, whole=whole))
            if traced is not None:
                return traced if put is None else put(traced)
        if recording.open:
            # The stream went somewhere inside what was returned: it ends the row.
            return _handed_over(recording, result)
        recording = recording.left()
        if not recording.joined:
            generic_chunks.read_answer(recording, result)
        recording.end("success")
    except Exception as error:  # noqa: BLE001
        internal_error("trace", error)
        recording.left().end("success")
    return result


def _handed_over(recording: Recording, result: Any) -> Any:
    recording = recording.left()
    if not recording.open:  # it was read to its end inside
        recording.end("success")
    return result
