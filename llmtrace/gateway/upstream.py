"""Let a gateway's code report what cannot be seen: an upstream call, a response from a cache."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from llmtrace.core.failopen import internal_error
from llmtrace.runtime import proxied_request

_KIND: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")


@contextmanager
def upstream() -> Iterator[dict[str, str]]:
    """Mark the time inside as spent waiting on an upstream: it is not the gateway's own.

    For upstream calls that llmtrace does not record by itself: those over gRPC, a queue, a client
    that is not instrumented. Enclose the waiting only. For a stream that is passed on piece
    by piece, that is all up to its first content; what comes after it does not matter.

    If the code inside raises, its time is the gateway's own: a failed attempt.

    Yields:
        Headers to send along: `traceparent`, `tracestate` and `x-request-id`, by which the
        upstream's own spans and logs can be joined. Outside a request through the middleware it
        does nothing, and there are none.

    Example:
        >>> with upstream() as headers:
        ...     pass  # response = client.post(url, headers=headers)
        >>> headers
        {}
    """
    passing = proxied_request.current.get()
    if passing is None:
        yield {}
        return
    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers)
    headers["x-request-id"] = passing.next_request_id()
    waits = passing.upstream()
    waits.begin(passing.clock())
    try:
        yield headers
    except Exception:
        waits.drop()
        raise
    finally:
        waits.end(passing.clock())


def cache_hit(kind: str | None = None) -> None:
    """Report that the request being handled is answered from a cache, without an engine.

    The client's row then has `cache_hit`, the gateway's own time, and no stages of an engine.
    `llmtrace.annotate(cache_hit=True)` does the same, and `annotate(cache_hit=False)` that the
    cache had no entry.

    Args:
        kind: what kind of cache, for the gateway's span: `"exact"`, `"semantic"`. Anything but
            a short word is left out and logged: a running request is no place to raise.
    """
    passing = proxied_request.current.get()
    if passing is None:
        return
    passing.cache_hit = True
    if kind is None:
        return
    if isinstance(kind, str) and _KIND.fullmatch(kind):
        passing.cache_kind = kind
    else:
        internal_error("gateway.cache_hit", f"a kind of cache is a short word, not {kind!r}")
