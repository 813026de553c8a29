"""Time the body of a response of `requests`; the response stays the same object."""

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache
from typing import Any

from llmtrace.core.recording import Recording
from llmtrace.instrumentation.http import llm_requests
from llmtrace.instrumentation.http.sse import Events
from llmtrace.instrumentation.http.unary_body import UnaryBody
from llmtrace.instrumentation.llm_sdks.responses import copy_identity
from llmtrace.instrumentation.streams import finalize
from llmtrace.instrumentation.streams.chunk_timing import Classify, timed_reads


def timed(recording: Recording, response: Any, classify: Classify) -> Any:
    """Return a response that is still to be read, with its reads timed; else `None`.

    Args:
        recording: of the request.
        response: of any status; an error's code is noted.
        classify: for the pieces of a body of no type that models answer with.
    """
    if response.status_code >= llm_requests.HTTP_ERROR:
        because = llm_requests.code(response._content or None)  # noqa: SLF001 - `False` = unread
        recording.failure = ("error", because or str(response.status_code))
    if response._content is not False:  # noqa: SLF001
        return None
    content_type = response.headers.get("content-type", "")
    recording.opened()
    recording.in_decorated_function = False
    recording.stream = llm_requests.is_stream(content_type)
    if recording.stream:
        classify = Events().__call__
    elif "json" in content_type:
        classify = UnaryBody().__call__
    kind: Any = type(response)
    response.__class__ = _watched(kind)
    response._llmtrace_finalizer = finalize.StreamFinalizer(recording)  # noqa: SLF001
    response._llmtrace, response._llmtrace_classify = recording, classify  # noqa: SLF001
    return response


@lru_cache(maxsize=8)
def _watched(kind: Any) -> type[Any]:
    """Make the subclass of a response of which every way to read the body is timed."""

    class Response(kind):  # type: ignore[misc]
        # Lines, the content and the response's own iteration are made of it.
        def iter_content(self, *args: Any, **kwargs: Any) -> Generator[Any, None, None]:
            pieces = super().iter_content(*args, **kwargs)
            if self._llmtrace.ended:
                return pieces  # type: ignore[no-any-return]
            return timed_reads(self._llmtrace, pieces.__next__, self._llmtrace_classify)

        def close(self) -> None:
            try:
                super().close()
            finally:
                finalize.closed(self._llmtrace)

    return copy_identity(Response, kind)
