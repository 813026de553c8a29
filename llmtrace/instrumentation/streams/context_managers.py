"""Time a stream, or a context manager whose entering makes the request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmtrace.core.recording import Recording
from llmtrace.instrumentation.http import requests_bodies
from llmtrace.instrumentation.http.unary_body import UnaryBody
from llmtrace.instrumentation.llm_sdks import message_content
from llmtrace.instrumentation.streams.chunk_timing import Classify
from llmtrace.instrumentation.streams.iterators import iterator_proxy
from llmtrace.instrumentation.streams.proxy import StreamProxy, make_proxy


def proxy(recording: Recording, value: Any, classify: Classify) -> Any:
    """Return the proxy of a stream or of a context manager that returns one; else `None`."""
    classify = message_content.collecting(recording, classify)
    if (timed := _body(value)) is not None:
        return timed(recording, value, classify)
    iterator = hasattr(value, "__anext__") or hasattr(value, "__next__")
    # An iterable that is entered first, like httpx's streams, is iterated through its manager.
    if not iterator and (hasattr(value, "__aenter__") or hasattr(value, "__enter__")):
        return make_proxy(TracedManager, recording, value, classify)
    kind = getattr(getattr(value, "headers", None), "get", lambda _name: "")
    if hasattr(value, "read") and "json" in str(kind("content-type")):
        classify = UnaryBody()
    return iterator_proxy(recording, value, classify)


def _body(value: Any) -> Callable[[Recording, Any, Classify], Any] | None:
    """Return what times the body of a response of a known library; else `None`."""
    if hasattr(value, "iter_content"):
        return requests_bodies.timed
    if hasattr(value, "content") and type(value).__module__.startswith("aiohttp."):
        from llmtrace.instrumentation.http import aiohttp_bodies

        return aiohttp_bodies.timed
    return None


class TracedManager(StreamProxy):
    """Proxy of a context manager whose entering makes the request: the SDKs' `.stream()`."""

    def __init__(self, recording: Recording, source: Any, classify: Classify) -> None:
        super().__init__(recording, source, classify)
        # A span the manager makes current must stay current for the block, so none of ours
        # encloses it; a client's call inside has its own.
        self._context = None
        recording.switch_interval(reading=False)

    def __enter__(self) -> Any:
        """Enter, with the recording current, and return the proxy of the stream that comes out."""
        self._llmtrace.stream = True
        return self._inside(self._step(self._source.__enter__))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> Any:
        """Leave the context manager, and end the row."""
        try:
            return self._source.__exit__(kind, error, trace)
        finally:
            self._end(error)

    async def __aenter__(self) -> Any:
        """Enter, with the recording current, and return the proxy of the stream that comes out."""
        self._llmtrace.stream = True
        return self._inside(await self._astep(self._source.__aenter__))

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> Any:
        """Leave the context manager, and end the row."""
        try:
            return await self._source.__aexit__(kind, error, trace)
        finally:
            self._end(error)

    def _inside(self, value: Any) -> Any:
        if self._llmtrace.joined:
            return value  # the client's own stream keeps the time
        timed = _body(value) or iterator_proxy
        inside = timed(self._llmtrace, value, self._classify)
        return value if inside is None else inside
