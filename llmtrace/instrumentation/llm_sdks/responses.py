"""Time the result of an SDK's call from then on; it stays the SDK's own object.

A stream is timed by its iterator, a raw response by its bytes or by what it is parsed into, a
unary response is read for what it reports.
"""

from __future__ import annotations

import inspect
from functools import lru_cache, partial
from typing import Any, Final, get_origin

from llmtrace.core.failopen import internal_error
from llmtrace.core.recording import Recording
from llmtrace.instrumentation.llm_sdks import message_content
from llmtrace.instrumentation.llm_sdks.attribute_view import viewed
from llmtrace.instrumentation.llm_sdks.endpoints import Endpoint
from llmtrace.instrumentation.streams import cancellation
from llmtrace.instrumentation.streams.chunk_timing import (
    Classify,
    atimed_reads,
    only_usage,
    timed_reads,
)


def adopt(recording: Recording, stream: Any, classify: Classify) -> None:
    """Time an SDK's stream by replacing its iterator: the stream stays the SDK's own object."""
    recording.opened()
    recording.reads_bytes = False
    recording.expects_finish = True
    classify = message_content.collecting(recording, classify)
    cast_to = getattr(stream, "_cast_to", None)
    if (get_origin(cast_to) or cast_to) in _JSON:
        classify = partial(_classify_json, classify)
    iterator = _apart(stream)
    if hasattr(iterator, "__anext__"):
        stream._iterator = atimed_reads(recording, iterator.__anext__, classify)  # noqa: SLF001
    else:
        stream._iterator = timed_reads(recording, iterator.__next__, classify)  # noqa: SLF001
    stream._llmtrace = recording  # noqa: SLF001 - how a decorator knows it


def _apart(stream: Any) -> Any:
    """Return a stream's iterator, made anew on a copy if it is unread and refers to the stream.

    OpenAI's does: left to that cycle, a stream that is dropped, and its connection, would stay
    open until the garbage collector runs. Anthropic's SDK makes its own on a copy.
    """
    iterator = stream._iterator  # noqa: SLF001 - the only attribute that keeps the stream's class
    try:
        frame = getattr(iterator, "gi_frame", None) or getattr(iterator, "ag_frame", None)
        if frame is not None and frame.f_locals == {"self": stream}:
            return _copy(stream).__stream__()
    except Exception as error:  # noqa: BLE001 - then the row ends late
        internal_error("sdk", error)
    return iterator


def _copy(stream: Any) -> Any:
    """Copy a stream but for its iterator, which refers to it: faster than `copy.copy`."""
    copied = object.__new__(type(stream))
    vars(copied).update(vars(stream))
    del copied._iterator
    return copied


# What the SDKs' `cast_to` is for an application that wants JSON as it came: cheaper than objects.
_JSON: Final = (object, dict, Any)


def _classify_json(classify: Classify, recording: Recording, chunk: Any) -> int:
    return classify(recording, viewed(chunk))


def hide_usage(stream: Any) -> None:
    """Hide the usage chunk from the consumer of a stream that could not be timed."""
    iterator = stream._iterator  # noqa: SLF001
    if hasattr(iterator, "__anext__"):
        stream._iterator = (  # noqa: SLF001
            chunk async for chunk in iterator if not only_usage(chunk)
        )
    else:
        stream._iterator = (chunk for chunk in iterator if not only_usage(chunk))  # noqa: SLF001


def deliver(recording: Recording, endpoint: Endpoint, result: Any) -> None:
    """Time a call's result from here on, or end the row where nothing is left to time."""
    if not recording.stream:
        _whole(recording, endpoint, result)
    elif hasattr(result, "_iterator"):
        adopt(recording, result, endpoint.chunk)
    else:
        _raw(recording, endpoint, result)


def _whole(recording: Recording, endpoint: Endpoint, result: Any) -> None:
    response = getattr(result, "http_response", None)
    if response is not None and not response.is_closed:
        # `with_streaming_response`: the application still has to read the body.
        _raw(recording, endpoint, result)
        recording.stream = False
        return
    try:
        answer = viewed(result if response is None else _parse_raw(result))
        if hasattr(answer, "id"):
            endpoint.answer(recording, answer)
            message_content.note_response(recording, endpoint.chunk, answer)
    except Exception as error:  # noqa: BLE001 - an odd response is still the application's
        internal_error("sdk.answer", error)
    recording.finish("success")


def _parse_raw(result: Any) -> Any:
    """Parse a raw response whose body is here, as the application would do anyway."""
    if inspect.iscoroutinefunction(result.parse):
        return result._parse()  # noqa: SLF001 - what the coroutine calls once it has the body
    return result.parse()


def _raw(recording: Recording, endpoint: Endpoint, result: Any) -> None:
    """Time a raw response: by its bytes until it is parsed; its close ends the row anyway."""
    _watch_parsing(recording, endpoint, result)
    recording.opened()
    recording.reads_bytes = True


def _watch_parsing(recording: Recording, endpoint: Endpoint, result: Any) -> None:
    result._llmtrace_parsing = recording, endpoint  # noqa: SLF001 - our own, on their object
    kind: Any = type(result)
    result.__class__ = _parsing(kind)


@lru_cache(maxsize=16)
def _parsing(kind: Any) -> type[Any]:
    """Make the subclass of a raw response that times what it is parsed into.

    A subclass and not an attribute on the instance: that would be a reference cycle, and keep
    connections of released responses open until the garbage collector runs.
    """

    class Sync(kind):  # type: ignore[misc]
        def parse(self, *args: Any, **kwargs: Any) -> Any:
            _parses(self._llmtrace_parsing[0])
            try:
                parsed = super().parse(*args, **kwargs)
            except BaseException as error:
                cancellation.failed(self._llmtrace_parsing[0], error)
                raise
            return _parsed(parsed, *self._llmtrace_parsing)

    class Async(kind):  # type: ignore[misc]
        async def parse(self, *args: Any, **kwargs: Any) -> Any:
            _parses(self._llmtrace_parsing[0])
            try:
                parsed = await super().parse(*args, **kwargs)
            except BaseException as error:
                cancellation.failed(self._llmtrace_parsing[0], error)
                raise
            return _parsed(parsed, *self._llmtrace_parsing)

    return copy_identity(Async if inspect.iscoroutinefunction(kind.parse) else Sync, kind)


def _parses(recording: Recording) -> None:
    """Note that a whole body is read now, by its parsing: the consumer waits for it."""
    if not recording.ended and not recording.stream:
        try:
            recording.reads_bytes = False
            recording.switch_interval(reading=True)
        except Exception as error:  # noqa: BLE001
            internal_error("sdk", error)


def _parsed(parsed: Any, recording: Recording, endpoint: Endpoint) -> Any:
    try:
        if getattr(parsed, "_llmtrace", None) is recording:
            return parsed
        if hasattr(parsed, "_iterator"):
            if not recording.ended:
                adopt(recording, parsed, endpoint.chunk)
            elif recording.usage_hidden:
                hide_usage(parsed)
        elif not recording.ended:
            if hasattr(answer := viewed(parsed), "id"):
                endpoint.answer(recording, answer)
                message_content.note_response(recording, endpoint.chunk, answer)
            recording.finish("success")
    except Exception as error:  # noqa: BLE001
        unrecorded(recording, endpoint, parsed, error)
    return parsed


def unrecorded(recording: Recording, endpoint: Endpoint, result: Any, error: Exception) -> None:
    """Stop recording a call's result, since recording it has failed."""
    internal_error("sdk", error)
    recording.finish("success")
    if recording.usage_hidden:
        if hasattr(result, "_iterator"):
            hide_usage(result)
        elif hasattr(result, "parse") and not hasattr(result, "_llmtrace_parsing"):
            _watch_parsing(recording, endpoint, result)


def copy_identity(made: type[Any], kind: type[Any]) -> type[Any]:
    """Give a class the name and module of the class it replaces, and return it."""
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(made, name, getattr(kind, name))
    return made
