"""`llmtrace.wrap(stream)`: record one stream, made anywhere, as a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from llmtrace.core.failopen import internal_error
from llmtrace.instrumentation import join_call
from llmtrace.instrumentation.llm_sdks import endpoints, responses
from llmtrace.instrumentation.streams import generic_chunks
from llmtrace.instrumentation.streams.context_managers import proxy
from llmtrace.instrumentation.streams.nested import nested_recording
from llmtrace.instrumentation.trace_decorator import Scalar, labels
from llmtrace.runtime.runtime import Runtime, active

S = TypeVar("S")


def wrap(
    stream: S,
    *,
    model: str | None = None,
    route: str | None = None,
    tenant: str | None = None,
    tags: Sequence[str] | None = None,
    **attributes: Scalar | None,
) -> S:
    """Record the reading of a stream as one request, from now to its end.

    The request itself was made before this call, so the row starts late by that much: decorate the
    function that makes it with `@llmtrace.trace` where you can.

    Args:
        stream: any iterator, async iterator, or context manager that gives one. An SDK's own
            stream comes back as the same object; others come back as a proxy that forwards
            everything. A stream that is recorded already, or is made of one, comes back as
            it is, and its row gets the labels.
        model: the model's name.
        route: the part of the application that makes the request.
        tenant: on whose behalf.
        tags: a list of words to find it by, in Langfuse.
        **attributes: recorded on the row's span under their own names; `user` and `session` as
            `user.id` and `session.id`.

    Returns:
        The stream to read. What cannot be read chunk by chunk, or an argument that cannot be
        recorded, is logged and counted, and the stream comes back as it is: a running request is
        no place to raise.

    Example:
        >>> import llmtrace
        >>> "".join(llmtrace.wrap(iter(["Hello, ", "world"])))
        'Hello, world'
    """
    runtime = active()
    if runtime is None:
        return stream
    try:
        given = {"model": model, "route": route, "tenant": tenant, "tags": tags, **attributes}
        fields, extra = labels(given, "llmtrace.wrap")
        return _recorded(runtime, stream, fields, extra)
    except Exception as error:  # noqa: BLE001 - the stream goes on unrecorded
        internal_error("wrap", error)
        return stream


def _recorded(runtime: Runtime, stream: S, fields: dict[str, Any], extra: dict[str, Any]) -> S:
    """Return the stream with its reads recorded, under these fields and attributes."""
    readable = ("__next__", "__anext__", "__enter__", "__aenter__", "__aiter__")
    if not any(hasattr(stream, method) for method in readable):
        internal_error(
            "wrap",
            f"llmtrace.wrap takes an iterator or async iterator, not {type(stream).__name__}; "
            "for a list or another iterable, wrap iter(…) of it",
        )
        return stream
    nested = nested_recording(stream)
    if nested is not None:
        nested.info.update(fields)
        nested.attributes.update(extra)
        return stream
    join_call.enters(runtime, call=False)
    recording = runtime.start(fields)
    recording.attributes.update(extra)
    recording.labels = "wrap", fields, extra
    if endpoints.is_stream(stream):
        responses.adopt(recording, stream, endpoints.classify_for(stream))
        return stream
    traced: S | None = proxy(recording, stream, generic_chunks.reader(recording, stream))
    if traced is None:  # it was read before
        recording.end("success")
    return stream if traced is None else traced
