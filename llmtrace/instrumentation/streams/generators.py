"""Decorate a generator function, sync or async, so that it stays one; find one in a response.

Frameworks call `inspect.isgeneratorfunction` to decide how to call a function. So the decorated
function is one; nothing runs before the first read, and the recording begins there, too.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial, reduce, wraps
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Final

from llmtrace.core.failopen import internal_error
from llmtrace.core.recording import Recording
from llmtrace.instrumentation.streams import generic_chunks
from llmtrace.instrumentation.streams.context_managers import proxy


def traced(
    target: Callable[..., Generator[Any, Any, Any]], start: Callable[[], Recording | None]
) -> Callable[..., Generator[Any, Any, Any]]:
    """Make the generator function that records each run of another.

    Args:
        target: the generator function.
        start: starts a recording, or returns `None` where nothing is recorded.
    """

    @wraps(target)
    def generate(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        # Reads, sent values, raised errors, closing and the returned value go through as they are.
        return (yield from _recorded_stream(target(*args, **kwargs), start))

    return generate


def atraced(
    target: Callable[..., AsyncGenerator[Any, Any]], start: Callable[[], Recording | None]
) -> Callable[..., AsyncGenerator[Any, Any]]:
    """Make the async generator function that records each run of another; arguments as above."""

    @wraps(target)
    async def generate(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        source = _recorded_stream(target(*args, **kwargs), start)
        # What `yield from` would do, were there one for async generators.
        try:
            read = source.__anext__
            chunk = await read()
            while True:
                try:
                    sent = yield chunk
                except GeneratorExit:
                    await source.aclose()
                    raise
                except BaseException as error:  # noqa: BLE001 - thrown in by the consumer
                    chunk = await source.athrow(error)
                else:
                    chunk = await (read() if sent is None else source.asend(sent))
        except StopAsyncIteration:
            return

    return generate


# Responses of web frameworks, and where in them the body is that is still to be sent.
_SENT: Final = (
    ("starlette.responses", "Response", "body_iterator"),
    ("werkzeug.wrappers", "Response", "response"),
    ("django.http", "StreamingHttpResponse", "streaming_content"),
    ("quart", "Response", "response.iter"),
    ("litestar.response", "Stream", "iterator"),
    ("aiohttp.web", "Response", "_body._iter"),
)


def body_of(result: Any) -> tuple[Any, Callable[[Any], Any] | None]:
    """Return the body that a framework's streaming response is to send.

    With it, the function that puts another in its place and returns the response. Of anything
    else, the result itself and `None`.
    """
    # Of Flask and Quart: a body, then a status, headers, or both.
    if type(result) is tuple and len(result) > 1 and isinstance(result[1], int | str | dict):
        body, put = body_of(result[0])
        if put is not None or isinstance(body, GeneratorType | AsyncGeneratorType):
            return body, lambda traced: (put(traced) if put else traced, *result[1:])
    for module, name, path in _SENT:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and issubclass(type(result), kind):
            *holders, attribute = path.split(".")
            holder = reduce(lambda one, key: getattr(one, key, None), holders, result)
            body = getattr(holder, attribute, None)
            if hasattr(body, "__anext__") or hasattr(body, "__next__"):
                return body, partial(_put, result, holder, attribute)
    return result, None  # unseen: a result may break when it is looked at


def _put(result: Any, holder: Any, attribute: str, traced: Any) -> Any:
    setattr(holder, attribute, traced)
    return result


def _recorded_stream(source: Any, start: Callable[[], Recording | None]) -> Any:
    recording = start()
    if recording is None:
        return source
    try:
        return proxy(recording, source, generic_chunks.reader(recording, source, whole=False))
    except Exception as error:  # noqa: BLE001 - the generator runs unrecorded
        internal_error("trace", error)
        return source
